package main

import "github.com/spf13/cobra"

func listCommand() *cobra.Command { return &cobra.Command{Use: "list"} }
