package main

import "github.com/spf13/cobra"

func versionCommand() *cobra.Command { return &cobra.Command{Use: "version"} }
