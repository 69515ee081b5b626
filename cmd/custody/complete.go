package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/scenarios"
)

// words completes one word of a command line.
type words = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// arguments complete the arguments of each command.
var arguments = map[string]words{
	"run":     withFiles(scenarioNames, "scenario", "custody"),
	"explain": only(everyName),
	"list":    nil, // completed by the command itself
	"judge":   runNames, "replay": runNames, "report": runNames, "diff": runNames, "verify": runNames,
	"matrix":  withFiles(profileNames, "yaml", "yml"),
	"defects": defectsOf,
}

// flagValues complete the value of a flag of any command.
var flagValues = map[string]words{
	"system":    withFiles(profileNames, "yaml", "yml"),
	"profile":   withFiles(nil, "yaml", "yml"),
	"defect":    defectsOf,
	"scenarios": only(scenarioNames),
	"guarantee": only(guaranteeNames),
	"format":    formatsOf,
	"out":       folders,
}

// complete registers completion for every command below root.
func complete(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		if f := arguments[cmd.Name()]; f != nil && cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = f
		}
		for flag, f := range flagValues {
			if cmd.Flags().Lookup(flag) != nil {
				_ = cmd.RegisterFlagCompletionFunc(flag, f) // fails only if already registered
			}
		}
		complete(cmd)
	}
}

func only(names func() []string) words {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return names(), cobra.ShellCompDirectiveNoFileComp
	}
}

// withFiles completes names, or files with these endings once a path is typed.
func withFiles(names func() []string, endings ...string) words {
	return func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		if names == nil || strings.ContainsAny(typed, "./") {
			return endings, cobra.ShellCompDirectiveFilterFileExt
		}
		return names(), cobra.ShellCompDirectiveDefault
	}
}

func folders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func scenarioNames() []string {
	var names []string
	for _, s := range scenarios.All() {
		names = append(names, s.Name+"\t"+s.Why)
	}
	return names
}

// profileNames lists every profile and system.
func profileNames() []string {
	var names []string
	system := ""
	for _, d := range descriptions() {
		if d.System != system {
			system = d.System
			names = append(names, system+"\tits first profile")
		}
		names = append(names, profileName(d)+"\t"+d.Profile.Summary)
	}
	return names
}

func guaranteeNames() []string {
	var names []string
	for _, g := range guarantees.Guarantees() {
		names = append(names, g.Name)
	}
	return names
}

// everyName lists every name that custody explain knows.
func everyName() []string {
	var names []string
	for _, s := range subjects {
		for _, e := range s.Entries() {
			names = append(names, e.Name+"\t"+s.Name)
		}
	}
	return names
}

// defectsOf completes the defects of the system named so far.
func defectsOf(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	system, err := cmd.Flags().GetString("system")
	if err != nil {
		system = referenceBroker
	}
	var names []string
	for _, d := range seededIn(system) {
		if d.NotBuilt == "" {
			names = append(names, d.Name+"\t"+d.Text)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// grids are the commands that print a grid.
var grids = map[string]bool{"matrix": true, "sweep": true}

// rendered are the commands that print a report of runs.
var rendered = map[string]bool{"run": true, "judge": true, "report": true}

func formatsOf(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	names := []string{"text", "json"}
	switch {
	case grids[cmd.Name()]:
		names = nil
		for _, f := range reports.GridFormats() {
			names = append(names, f.Name)
		}
	case rendered[cmd.Name()]:
		names = nil
		for _, f := range reports.Formats() {
			names = append(names, f.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// maxFolders bounds the directories that completion visits.
const maxFolders = 1000

// runNames completes directories of runs below what is typed, by default below
// custody-runs/, including those that hold several.
func runNames(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	where := filepath.Dir(typed + "x")
	if typed == "" {
		if _, err := os.Stat(defaultRuns); err == nil {
			where = defaultRuns
		}
	}
	entries, err := os.ReadDir(where)
	if err != nil {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	var names []string
	for _, e := range entries[:min(len(entries), maxFolders)] {
		dir := filepath.Join(where, e.Name())
		if !e.IsDir() || !strings.HasPrefix(dir, typed) && typed != "" && !strings.HasPrefix(typed, "./") {
			continue
		}
		if holdsRun(dir) {
			names = append(names, dir)
		}
	}
	if names == nil {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// holdsRun reports whether a directory is a run or directly holds one.
func holdsRun(dir string) bool {
	if _, err := evidence.Open(dir); !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries[:min(len(entries), maxFolders)] {
		if e.IsDir() {
			if _, err := evidence.Open(filepath.Join(dir, e.Name())); !errors.Is(err, fs.ErrNotExist) {
				return true
			}
		}
	}
	return false
}
