package main

import "github.com/spf13/cobra"

func doctorCommand() *cobra.Command { return &cobra.Command{Use: "doctor"} }
