package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
)

func explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain NAME",
		Short: "Explain a scenario, system, profile, fault or guarantee",
		Long: `Explain what a name means: of a scenario what goes wrong in it, what it needs and
puts to the test, and its script; of a guarantee how it is judged and who claims
it; of a fault what it strikes and how it is written; of a system or profile what
it promises, under which faults, and where that promise is made.`,
		Example: `  custody explain ack-lost
  custody explain no-accepted-loss
  custody explain drop
  custody explain nats`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("say what to explain: one scenario, system, profile, fault or guarantee, as in custody explain ack-lost")
			}
			return explain(cmd.OutOrStdout(), args[0])
		},
	}
}

// explain explains everything with this name: a fault and a scenario may share
// one.
func explain(w io.Writer, name string) error {
	var names []string
	told := false
	for _, s := range subjects {
		for _, e := range s.Entries() {
			_, profile, _ := strings.Cut(e.Name, ":")
			if e.Name != name && profile != name {
				names = append(names, e.Name)
				continue
			}
			if told {
				fmt.Fprintln(w)
			}
			told = true
			fmt.Fprintf(w, "%s %s\n", s.Name, e.Name)
			sentence(w, e.Text)
			e.Explain(w)
		}
	}
	if told {
		return nil
	}
	if near := script.Nearest(name, names); near != "" {
		return fmt.Errorf("nothing is called %q; did you mean %s?", name, near)
	}
	return fmt.Errorf("nothing is called %q; custody list scenarios, systems, profiles, faults or guarantees shows the names", name)
}

func explainScenario(w io.Writer, s scenarioView) {
	section(w, "puts to the test", s.Expect)
	var needs []string
	for _, n := range s.Needs {
		needs = append(needs, string(n))
	}
	section(w, "needs of the system", []string{cmp.Or(strings.Join(needs, ", "), "nothing special")})
	var lacking []string
	for _, d := range descriptions() {
		for _, n := range s.Needs {
			if why, lacks := d.Lacks[n]; lacks {
				lacking = append(lacking, profileName(d)+"\t"+why)
				break
			}
		}
	}
	section(w, "does not apply to", lacking)
	section(w, "script", strings.Split(strings.TrimSpace(s.Script), "\n"))
	section(w, "run it", []string{"custody run " + s.Name})
}

func explainSystem(w io.Writer, s systemView) {
	var lines []string
	for _, d := range descriptions() {
		if d.System == s.Name {
			lines = append(lines, profileName(d)+"\t"+d.Profile.Summary)
		}
	}
	section(w, "profiles, the first is the default", lines)
	section(w, "run the checklist on it", []string{"custody run --system " + s.Name})
}

// redelivery says how an unsettled message is redelivered.
var redelivery = map[evidence.Redelivery]string{
	evidence.RedeliverTimeout:   "an unsettled message comes again after a timeout",
	evidence.RedeliverReconnect: "an unsettled message comes again after a reconnection",
	evidence.RedeliverClaim:     "an unsettled message comes again when another consumer claims it",
	evidence.RedeliverRebalance: "an unsettled message comes again after a rebalance",
	evidence.RedeliverNever:     "an unsettled message never comes again",
}

func explainProfile(w io.Writer, p profileView) {
	var settings []string
	for _, s := range p.Profile.Settings {
		settings = append(settings, s.Name+" = "+s.Value)
	}
	section(w, "settings", settings)
	l := p.Profile.Limits
	facts := []string{
		redelivery[p.Profile.Redelivers],
		"acknowledgements count " + p.Profile.AckCounting,
		fmt.Sprintf("redelivery period %v, recovery bound %v", l.RedeliveryPeriod, l.RecoveryBound),
	}
	for _, f := range []struct {
		so      bool
		yes, no string
	}{
		{p.Profile.AckConfirms, "acknowledgements are confirmed", "acknowledgements are not confirmed"},
		{p.Profile.ConfirmIsDurable, "a confirmed acknowledgement outlives a crash", ""},
		{p.Profile.KeepsRows, "settled rows stay, marked processed", ""},
		{p.Profile.MarksAgain, "a redelivery says that it is one", "a redelivery does not say that it is one"},
		{p.Profile.KeepsSubscribers, "a logical subscriber outlives its sessions", "a logical subscriber ends with its last session"},
	} {
		if text := map[bool]string{true: f.yes, false: f.no}[f.so]; text != "" {
			facts = append(facts, text)
		}
	}
	facts = append(facts, fmt.Sprintf("tolerances: expiry %v, in flight %v, delete %v; a drain ends after %v", l.ExpiryTolerance, l.InFlightBound, l.DeleteBound, l.DrainDeadline))
	if l.DropsAfter > 0 {
		facts = append(facts, fmt.Sprintf("dropped after %d deliveries, by design", l.DropsAfter))
	}
	if l.MaxAttempts > 0 {
		facts = append(facts, fmt.Sprintf("at most %d deliveries of one message", l.MaxAttempts))
	}
	if l.OrderScope != "" {
		facts = append(facts, "order is kept per "+l.OrderScope)
	}
	section(w, "behaviour", facts)
	var claims []string
	for _, c := range p.Claims {
		claims = append(claims, claimLine(c.Guarantee, c))
	}
	section(w, "claims", claims)
	var lacks []string
	for _, n := range slices.Sorted(maps.Keys(p.Lacks)) {
		lacks = append(lacks, string(n)+"\t"+p.Lacks[n])
	}
	section(w, "lacks", lacks)
	section(w, "run the checklist on it", []string{"custody run --system " + p.Name})
}

func explainFault(w io.Writer, f faultView) {
	class := string(f.Class)
	if f.Class == evidence.BrokerCrash || f.Class == evidence.BrokerRestart || f.Class == evidence.BrokerPause {
		class += " (client-crash where it strikes a consumer)"
	}
	section(w, "strikes", []string{string(f.Strikes)})
	section(w, "class, by which a claim covers it", []string{class})
	section(w, "in a script", []string{f.Example})
	var used []string
	for _, s := range scenarios.All() {
		for _, step := range s.Steps {
			if c, ok := step.(script.Comment); ok {
				step = c.Step
			}
			if fault, ok := step.(script.Fault); ok && fault.Verb == f.Verb {
				used = append(used, s.Name+"\t"+script.Line(fault))
			}
		}
	}
	section(w, "used in", used)
}

func explainGuarantee(w io.Writer, g guaranteeView) {
	section(w, "also known as", []string{g.Usual})
	section(w, "how it is judged", []string{g.Rule})
	var claims []string
	for _, d := range descriptions() {
		for _, c := range d.Claims {
			if c.Guarantee == g.Name {
				claims = append(claims, claimLine(profileName(d), c))
			}
		}
	}
	section(w, "claimed by", claims)
	var exercised []string
	for _, s := range scenarios.All() {
		if slices.Contains(s.Expect, g.Name) {
			exercised = append(exercised, s.Name)
		}
	}
	section(w, "put to the test in", exercised)
	section(w, "in a script", []string{"expect " + g.Name})
}

// claimLine formats a claim: what or by whom, under which classes, and its
// source.
func claimLine(what string, c evidence.Claim) string {
	under := "runs without faults only"
	if len(c.Under) > 0 {
		var classes []string
		for _, class := range c.Under {
			classes = append(classes, string(class))
		}
		under = "under " + strings.Join(classes, ", ")
	}
	line := what + "\t" + under
	if c.Source != "" {
		line += "\t(" + c.Source + ")"
	}
	return line
}

// section prints a title and its lines of tab-separated columns, or nothing
// without lines.
func section(w io.Writer, title string, lines []string) {
	if len(lines) == 0 || len(lines) == 1 && lines[0] == "" {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	columns(w, "  ", lines)
}
