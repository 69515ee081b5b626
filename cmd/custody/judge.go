package main

import "github.com/spf13/cobra"

func judgeCommand() *cobra.Command { return &cobra.Command{Use: "judge"} }
