package main

import "github.com/spf13/cobra"

func brokerCommand() *cobra.Command { return &cobra.Command{Use: "broker"} }
