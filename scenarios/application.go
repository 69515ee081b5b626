package scenarios

import (
	"cmp"
	"embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/script"
)

// A group is a set of scenarios with a purpose of its own.
const (
	GroupChecklist   = "checklist"   // of the system: All
	GroupApplication = "application" // of the application's mechanisms: Application and Variants
)

//go:embed application/*.scenario
var applicationFiles embed.FS

// Application returns the scenarios of the application's mechanisms, in which all
// of them are in place.
func Application() []script.Scenario { return slices.Clone(application()) }

var application = sync.OnceValue(func() (list []script.Scenario) {
	files, err := applicationFiles.ReadDir("application")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, f := range files {
		text, err := applicationFiles.ReadFile("application/" + f.Name())
		if err != nil {
			panic(err)
		}
		s, err := script.Parse(f.Name(), string(text))
		if err != nil {
			panic(err) // a test parses them all
		}
		list = append(list, s)
	}
	return list
})

// Variant is a scenario of the application with other lines. An ablation takes a
// mechanism away, and must break a guarantee that the complete application claims.
// Any other puts an equal mechanism in its place, and must hold.
type Variant struct {
	Name   string
	Of     string      // the scenario
	Lines  [][2]string // the line there, and the one instead
	Needs  []string
	Breaks string // the guarantee that an ablation breaks first, or empty
	At     guarantees.HandOver
	// Follows are the guarantees that the same cause may break.
	Follows []string
}

// Scenario returns the variant's script, and the complete one.
func (v Variant) Scenario() (varied, complete script.Scenario, err error) {
	i := slices.IndexFunc(application(), func(s script.Scenario) bool { return s.Name == v.Of })
	if i < 0 {
		return varied, complete, fmt.Errorf("scenarios: %s is a variant of %q, which does not exist", v.Name, v.Of)
	}
	complete = application()[i]
	text := script.Print(complete)
	for _, l := range slices.Concat([][2]string{{"scenario " + v.Of, "scenario " + v.Name}}, v.Lines) {
		if n := strings.Count("\n"+text, "\n"+l[0]+"\n"); n != 1 {
			return varied, complete, fmt.Errorf("scenarios: %s replaces the line %q, which is in %s %d times", v.Name, l[0], v.Of, n)
		}
		text = strings.TrimPrefix(strings.Replace("\n"+text, "\n"+l[0]+"\n", "\n"+l[1]+"\n", 1), "\n")
	}
	if varied, err = script.Parse(v.Name, text); err != nil {
		return varied, complete, err
	}
	varied.Needs = slices.Compact(slices.Sorted(slices.Values(append(varied.Needs, v.Needs...))))
	return varied, complete, nil
}

// completeOf returns the complete scenario if s is a variant of one, so that s is
// judged by its claims; else nil.
func completeOf(s script.Scenario) *script.Scenario {
	i := slices.IndexFunc(variants, func(v Variant) bool { return v.Name == s.Name })
	if i < 0 {
		return nil
	}
	varied, complete, err := variants[i].Scenario()
	if err != nil || script.Print(varied) != script.Print(s) {
		return nil
	}
	return &complete
}

// Variants returns all of them.
func Variants() []Variant { return slices.Clone(variants) }

// instead replaces lines in pairs.
func instead(lines ...string) (pairs [][2]string) {
	for i := 0; i+1 < len(lines); i += 2 {
		pairs = append(pairs, [2]string{lines[i], lines[i+1]})
	}
	return pairs
}

// handler replaces a consumer's pattern, whatever else its line says.
func handler(line, pattern string) [][2]string {
	return instead(line, strings.Replace(line, "handler log", "handler "+pattern, 1))
}

const (
	inChild  = "consumer c1 on orders, handler log, child"
	plain    = "consumer c1 on orders, handler log"
	slow     = "consumer c1 on orders, handler log, takes 400ms"
	slower   = "consumer c2 on orders, handler log, takes 400ms"
	outboxed = "producer p1 to orders, outbox"
	relayed  = "relay r1 from orders"
	relaying = "relay r1 from orders, child"
)

// both replaces the pattern of both instances.
func both(pattern string) [][2]string {
	return append(handler(slow, pattern), handler(slower, pattern)...)
}

var variants = slices.Concat(
	twice("none-and-dies", "consumer-dies-before-ack", handler(inChild, "none")),
	twice("none-and-disconnected", "connection-lost-before-ack", handler(plain, "none")),
	twice("log-in-memory-and-dies", "consumer-dies-before-ack", handler(inChild, "log-in-memory")),
	twice("log-after-commit-and-dies", "consumer-dies-at-its-log", handler(inChild, "log-after-commit")),
	twice("log-after-commit", "database-down-at-the-log", handler(plain, "log-after-commit")),
	twice("none-and-its-answer-lost", "commit-answer-lost", handler(plain, "none")),
	twice("log-without-constraint", "two-instances", both("log-without-constraint")),
	twice("log-in-memory", "two-instances", both("log-in-memory")),
	twice("lock-after-check", "two-instances", both("lock-after-check")),
	twice("log-pruned", "late-repeat", instead("consumer c1 on orders, handler log, window 2", "consumer c1 on orders, handler log-pruned, window 2")),
	twice("sent-anew-past-the-log", "sent-anew", instead("consumer c1 on orders, handler business-key", plain)),
	gone("log-before-commit-and-dies", "consumer-dies-at-its-effect", handler(inChild, "log-before-commit")),
	gone("log-before-commit", "database-down-at-the-effect", handler(plain, "log-before-commit")),
	gone("ack-on-receipt-and-dies", "consumer-dies-in-transaction", handler(inChild, "ack-on-receipt")),
	gone("ack-on-receipt", "database-down-at-the-effect", handler(plain, "ack-on-receipt")),
	gone("acks-failures", "database-down-at-the-effect", handler(plain, "acks-failures")),
	gone("log-key-too-short", "many-messages", instead("consumer c1 on orders, handler log, window 4", "consumer c1 on orders, handler log-key-too-short, window 4")),

	torn("commit-then-publish", "broker-out-of-reach", instead(outboxed, "producer p1 to orders, commits first", "fault refused: down on r1", "fault refused: down on p1")),
	torn("publish-then-commit", "answer-lost", instead(outboxed, "producer p1 to orders, commits last", "fault lost: drop frame accept of order-2 on r1", "fault lost: drop frame accept of order-2 on p1")),
	torn("trusts-no-error", "publish-lost-on-the-way", instead(relayed, relayed+", policy trusts-no-error")),
	torn("declined-taken-for-sent", "declined-at-first", instead(relayed, relayed+", policy trusts-no-error")),
	torn("marks-first", "relay-dies-before-publish", instead(relaying, "relay r1 from orders, policy marks-first, child")),
	torn("by-position", "commits-out-of-order", instead(relayed, relayed+", policy by-position")),
	knownAgain(twice("new-ids-and-dies", "relay-dies-before-mark", instead(relaying, "relay r1 from orders, policy new-ids, child"))),
	knownAgain(twice("new-ids-and-database-down", "database-down-before-mark", instead(relayed, relayed+", policy new-ids"))),
	knownAgain(twice("new-ids-and-answer-lost", "answer-lost", instead(relayed, relayed+", policy new-ids"))),

	torn("exactly-once-effect-without-outbox", "exactly-once-effect", instead(outboxed, "producer p1 to orders, commits first",
		"fault unmarked: kill r1 before operation mark of order-1 on business", "fault unmarked: kill r1",
		"fault refused: down on r1", "fault refused: down on p1")),
	gone("exactly-once-effect-without-late-ack", "exactly-once-effect", handler(inChild, "ack-on-receipt")),
	twice("exactly-once-effect-without-log", "exactly-once-effect", handler(inChild, "none")),

	equal("business-key", "natural", "state-machine", "lock"),

	// What a lesser way is good for.
	enough("late-repeat", "log, window 2", "log-after-commit", "log-before-commit", "log-without-constraint", "lock-after-check", "ack-on-receipt", "acks-failures"),
	enough("connection-lost-before-ack", "log", "log-in-memory"),
	enough("commit-answer-lost", "log", "log-key-too-short", "log-pruned"),
	enough("database-down-at-the-effect", "log", "none"),
	serves("broker-out-of-reach", "new-ids"),
	serves("answer-lost", "marks-first", "by-position"),
)

// twice is an ablation that has an effect twice.
func twice(name, of string, lines [][2]string) []Variant {
	return []Variant{{Name: name, Of: of, Lines: lines, Breaks: evidence.SingleEffect, At: guarantees.ConsumerToBusiness}}
}

// gone is an ablation that loses what it has acknowledged.
func gone(name, of string, lines [][2]string) []Variant {
	return []Variant{{Name: name, Of: of, Lines: lines, Breaks: evidence.NoAcceptedLoss, At: guarantees.ConsumerToBusiness, Follows: []string{evidence.RecoveryBounded}}}
}

// torn is an ablation that has a row without its message, or a message without its
// row.
func torn(name, of string, lines [][2]string) []Variant {
	return []Variant{{Name: name, Of: of, Lines: lines, Breaks: evidence.OutboxAtomicity, At: guarantees.ClientToBroker}}
}

// knownAgain are those that need a message ID which the publisher chooses: by any
// other key the log knows the message again.
func knownAgain(list []Variant) []Variant {
	for i := range list {
		list[i].Needs = []string{"message-id"}
	}
	return list
}

// enough puts each of the patterns in the place of the log where it suffices. handler
// is how the consumer's line names and goes on from its own.
func enough(of, handler string, patterns ...string) (list []Variant) {
	line := "consumer c1 on orders, handler " + handler
	for _, p := range patterns {
		list = append(list, Variant{Name: p + "-suffices", Of: of, Lines: instead(line, strings.Replace(line, "handler log", "handler "+p, 1))})
	}
	return list
}

// serves is the same for the policies of a relay.
func serves(of string, policies ...string) (list []Variant) {
	for _, p := range policies {
		list = append(list, Variant{Name: p + "-suffices", Of: of, Lines: instead(relayed, relayed+", policy "+p)})
	}
	return list
}

// equal puts each of the patterns in the place of the log, where a message is
// handled twice.
func equal(patterns ...string) (list []Variant) {
	for _, p := range patterns {
		list = append(list,
			Variant{Name: p + "-two-instances", Of: "two-instances", Lines: both(p)},
			Variant{Name: p + "-dies-before-ack", Of: "consumer-dies-before-ack", Lines: handler(inChild, p)})
	}
	return list
}

// Showing is what one run of the group has shown.
type Showing struct {
	Name   string              `json:"name"`
	Of     string              `json:"of,omitempty"` // the scenario of which it is a variant
	Breaks string              `json:"breaks,omitempty"`
	At     guarantees.HandOver `json:"at,omitempty"`
	Result guarantees.Outcome  `json:"outcome"`
	Exit   int                 `json:"exit"` // guarantees.ExitHeld: it shows what it is there to show
	Text   string              `json:"text"`
	Dir    string              `json:"dir"`
}

// ApplicationGroup returns the scenarios of the application, each followed by its
// variants: those of the given names, or all.
func ApplicationGroup(names ...string) ([]script.Scenario, error) {
	var group []script.Scenario
	for _, s := range application() {
		group = append(group, s)
		for _, v := range variants {
			if v.Of != s.Name {
				continue
			}
			varied, _, err := v.Scenario()
			if err != nil {
				return nil, err
			}
			group = append(group, varied)
		}
	}
	if len(names) == 0 {
		return group, nil
	}
	var known []string
	for _, s := range group {
		known = append(known, s.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no scenario of the application %q%s", name, script.Suggest(name, known))
		}
	}
	return slices.DeleteFunc(group, func(s script.Scenario) bool { return !slices.Contains(names, s.Name) }), nil
}

// Show says what the run of an application's scenario or variant has shown. An
// ablation must break its guarantee at its hand-over, and nothing that does not
// follow; one that breaks nothing fails as a violation does, for it says that the
// mechanism is not needed.
func Show(o Outcome) Showing {
	j := o.Judgement
	s := Showing{Name: o.Name, Result: j.Outcome, Exit: o.Exit(), Text: j.Why, Dir: o.Dir}
	if o.Err != nil {
		first, _, _ := strings.Cut(o.Err.Error(), "\n")
		s.Text = "could not measure: " + first
	}
	scenario := cmp.Or(j.Scenario, o.Name) // a repeated run has a name of its own
	i := slices.IndexFunc(variants, func(v Variant) bool { return v.Name == scenario })
	if i < 0 {
		return s
	}
	v := variants[i]
	s.Of, s.Breaks, s.At = v.Of, v.Breaks, v.At
	if v.Breaks == "" || s.Exit == guarantees.ExitUnmeasured || j.Outcome == guarantees.NotApplicable {
		return s
	}
	wrong := ""
	for _, f := range j.Broken {
		switch {
		case f.Guarantee == v.Breaks && f.HandOver == v.At:
			if s.Exit = guarantees.ExitHeld; wrong == "" {
				s.Text = fmt.Sprintf("shown: %s broken at %s: %s", f.Guarantee, f.HandOver, f.Text)
			}
		case !slices.Contains(v.Follows, f.Guarantee):
			wrong = fmt.Sprintf("not shown: %s broken at %s: %s", f.Guarantee, f.HandOver, f.Text)
		}
	}
	if wrong != "" {
		s.Exit, s.Text = guarantees.ExitViolated, wrong
	}
	if len(j.Broken) == 0 {
		s.Text = "not shown: " + j.Why
		if s.Exit == guarantees.ExitHeld || s.Exit == guarantees.ExitNone {
			s.Exit = guarantees.ExitViolated
		}
	}
	return s
}
