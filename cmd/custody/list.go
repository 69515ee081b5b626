package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/registry"
)

// entry is one item to list and explain.
type entry struct {
	Name    string
	Text    string          // one sentence
	Data    any             // for list --format json
	Explain func(io.Writer) // below its name and text
}

// subject is one kind of entries.
type subject struct {
	Name    string // singular
	Plural  string
	Entries func() []entry
}

// subjects lists all kinds.
var subjects = []subject{
	{"scenario", "scenarios", scenarioEntries},
	{"system", "systems", systemEntries},
	{"profile", "profiles", profileEntries},
	{"fault", "faults", faultEntries},
	{"guarantee", "guarantees", guaranteeEntries},
}

func listCommand() *cobra.Command {
	var format string
	var plurals []string
	for _, s := range subjects {
		plurals = append(plurals, s.Plural)
	}
	cmd := &cobra.Command{
		Use:   "list " + strings.Join(plurals, "|"),
		Short: "List the scenarios, systems, profiles, faults or guarantees",
		Long: `List what there is, each with one sentence. A profile is one configuration of a
system, with what it promises; it is what --system takes.`,
		Example: `  custody list scenarios
  custody list profiles
  custody list faults --format json`,
		ValidArgs: plurals,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("say what to list, one of: %s", strings.Join(plurals, ", "))
			}
			for _, s := range subjects {
				if s.Plural == args[0] {
					return list(cmd.OutOrStdout(), format, s.Entries())
				}
			}
			return fmt.Errorf("cannot list %q%s", args[0], script.Suggest(args[0], plurals))
		},
	}
	textOrJSON(cmd, &format)
	return cmd
}

func list(w io.Writer, format string, entries []entry) error {
	data := make([]any, len(entries))
	for i, e := range entries {
		data[i] = e.Data
	}
	return printAs(w, format, data, func(w io.Writer) {
		var lines []string
		for _, e := range entries {
			lines = append(lines, e.Name+"\t"+e.Text)
		}
		columns(w, "", lines)
	})
}

type scenarioView struct {
	Name   string         `json:"name"`
	Why    string         `json:"why"`
	Needs  []systems.Need `json:"needs,omitempty"`
	Expect []string       `json:"expect"`
	Script string         `json:"script"`
}

func scenarioEntries() []entry {
	var entries []entry
	for _, s := range scenarios.All() {
		view := scenarioView{s.Name, s.Why, runner.Needs(s), s.Expect, script.Print(s)}
		entries = append(entries, entry{s.Name, s.Why, view, func(w io.Writer) { explainScenario(w, view) }})
	}
	return entries
}

type systemView struct {
	Name     string            `json:"name"`
	Versions map[string]string `json:"versions"`
	Profiles []string          `json:"profiles"` // the first is the default
}

func systemEntries() []entry {
	var views []*systemView
	for _, d := range descriptions() {
		if len(views) == 0 || views[len(views)-1].Name != d.System {
			views = append(views, &systemView{Name: d.System, Versions: d.Versions})
		}
		last := views[len(views)-1]
		last.Profiles = append(last.Profiles, d.Profile.Name)
	}
	var entries []entry
	for _, v := range views {
		entries = append(entries, entry{v.Name, versionsOf(v.Versions), v, func(w io.Writer) { explainSystem(w, *v) }})
	}
	return entries
}

type profileView struct {
	Name    string                  `json:"name"` // for --system
	Profile evidence.Profile        `json:"profile"`
	Claims  []evidence.Claim        `json:"claims"`
	Lacks   map[systems.Need]string `json:"lacks,omitempty"` // unsupported needs with reasons
}

func profileEntries() []entry {
	var entries []entry
	for _, d := range descriptions() {
		view := profileView{profileName(d), d.Profile, d.Claims, d.Lacks}
		entries = append(entries, entry{view.Name, d.Profile.Summary, view, func(w io.Writer) { explainProfile(w, view) }})
	}
	return entries
}

type faultView struct {
	Verb    string         `json:"verb"`
	Class   evidence.Class `json:"class"`
	Strikes faults.Strikes `json:"strikes"`
	Text    string         `json:"text"`
	Example string         `json:"example"`
}

func faultEntries() []entry {
	var entries []entry
	for _, f := range faults.All() {
		view := faultView{f.Verb, f.Class, f.Strikes, f.Text, f.Example}
		entries = append(entries, entry{f.Verb, f.Text, view, func(w io.Writer) { explainFault(w, view) }})
	}
	return entries
}

type guaranteeView struct {
	Name  string `json:"name"`
	Usual string `json:"usual"` // the usual term in the field
	Text  string `json:"text"`
	Rule  string `json:"rule"`
}

func guaranteeEntries() []entry {
	var entries []entry
	for _, g := range guarantees.Guarantees() {
		view := guaranteeView{g.Name, g.Usual, g.Text, g.Rule}
		entries = append(entries, entry{g.Name, g.Text, view, func(w io.Writer) { explainGuarantee(w, view) }})
	}
	return entries
}

// descriptions returns the description of every profile at scale 1.
func descriptions() []systems.Description {
	var ds []systems.Description
	for _, s := range registry.Systems(runner.DefaultScale) {
		ds = append(ds, s.Describe())
	}
	return ds
}

func profileName(d systems.Description) string { return d.System + ":" + d.Profile.Name }
