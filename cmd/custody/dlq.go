package main

import "github.com/spf13/cobra"

func dlqCommand() *cobra.Command { return &cobra.Command{Use: "dlq"} }
