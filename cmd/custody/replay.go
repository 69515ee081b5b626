package main

import "github.com/spf13/cobra"

func replayCommand() *cobra.Command { return &cobra.Command{Use: "replay"} }
