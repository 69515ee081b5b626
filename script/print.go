package script

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Print prints a scenario's script. Parse(Print(s)) equals s.
func Print(s Scenario) string {
	var b strings.Builder
	fmt.Fprintf(&b, "scenario %s\n", s.Name)
	if s.Why != "" {
		fmt.Fprintf(&b, "why %s\n", s.Why)
	}
	if len(s.Needs) > 0 {
		fmt.Fprintf(&b, "needs %s\n", strings.Join(s.Needs, ", "))
	}
	for _, step := range s.Steps {
		if c, ok := step.(Comment); ok {
			for _, l := range c.Lines {
				b.WriteString(strings.TrimRight("# "+l, " ") + "\n")
			}
		}
		b.WriteString(step.line() + "\n")
	}
	for _, c := range s.Reached {
		fmt.Fprintf(&b, "reached %s\n", c.Line)
	}
	if len(s.Expect) > 0 {
		fmt.Fprintf(&b, "expect %s\n", strings.Join(s.Expect, ", "))
	}
	return b.String()
}

// Line prints one step without its comments.
func Line(s Step) string { return s.line() }

// phrase joins the non-empty words.
func phrase(words ...string) string {
	kept := words[:0:0]
	for _, w := range words {
		if w != "" {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}

// options appends options, each after a comma.
func options(head string, opts ...string) string {
	for _, o := range opts {
		if o != "" {
			head += ", " + o
		}
	}
	return head
}

func when(on bool, s string) string {
	if on {
		return s
	}
	return ""
}

func named(name, value string) string { return when(value != "", name+" "+value) }

func counted(name string, n int) string { return when(n != 0, name+" "+strconv.Itoa(n)) }

func timed(name string, d time.Duration) string { return when(d != 0, name+" "+d.String()) }

func (s Producer) line() string {
	return options(phrase("producer", s.Name, "to", s.Destination), s.Mode, timed("ttl", s.TTL), named("commits", s.Commits), when(s.Outbox, "outbox"))
}

func (s Consumer) line() string {
	var fails []string
	for _, f := range s.Fails {
		fails = append(fails, phrase("fails", f.On.String(), when(f.Times > 0, strconv.Itoa(f.Times)+" times")))
	}
	opts := []string{
		named("as", s.As), s.Mode, when(s.Idempotent, "idempotent"), named("handler", s.Handler), when(s.Child, "child"), when(s.Offline, "offline"),
		when(s.Silent, "silent"), counted("window", s.Window), when(s.Takes != 0, phrase(timed("takes", s.Takes), named("on", s.TakesOn.String()))),
	}
	return options(phrase("consumer", s.Name, "on", s.Destination), append(opts, fails...)...)
}

func (s Relay) line() string {
	return options(phrase("relay", s.Name, "from", s.Destination), s.Mode, named("policy", s.Policy), when(s.Child, "child"), when(s.Offline, "offline"))
}

func (s Publish) line() string {
	what := IDs{s.BusinessID, s.From, s.To}.String()
	size := counted("size", s.Size)
	if s.SizeTo > 0 {
		size = fmt.Sprintf("size %d..%d", s.Size, s.SizeTo)
	}
	return options(phrase("publish", what, "by", s.By),
		size, timed("ttl", s.TTL), counted("headers", s.Headers), named("key", s.Key), counted("keys", s.Keys), named("id", s.MessageID),
		counted("window", s.Window), when(s.Background, "background"), when(s.Cancel, "cancelled"), named("until", s.Until))
}

func (s Retry) line() string {
	return options(phrase("retry", s.BusinessID, "by", s.By), when(s.SameID, "same-id"))
}

func (s Resolve) line() string { return phrase("resolve", s.BusinessID, "by", s.By) }

func (s Fault) line() string {
	return phrase("fault", s.Label+":", s.Verb, s.Target, string(s.Repeat), string(s.When), s.Event, when(s.N > 0, strconv.Itoa(s.N)),
		named("of", s.Of), named("on", s.On), timed("by", s.By), when(s.Rate > 0, "at "+strconv.Itoa(s.Rate)+" KiB/s"))
}

func (s Heal) line() string { return phrase("heal", s.Label) }

func (s Await) line() string { return phrase("await", s.Condition.Line, timed("within", s.Within)) }

func (s Wait) line() string {
	return phrase("wait", timed("quiet", s.Quiet), timed("within", s.Within))
}

func (s Provoke) line() string { return phrase("provoke", "redelivery", "of", s.BusinessID) }

func (s Settle) line() string { return phrase("settle", s.By, timed("within", s.Within)) }

func (s Start) line() string    { return phrase("start", s.Actor) }
func (s Stop) line() string     { return phrase("stop", s.Actor) }
func (s Restart) line() string  { return phrase("restart", s.Actor) }
func (s Snapshot) line() string { return phrase("snapshot", s.Checkpoint) }

func (s Set) line() string { return phrase("set", "broker", s.Setting, "to", s.Value) }

func (s Plant) line() string { return phrase("plant", s.What, s.BusinessID, "on", s.Destination) }

func (Swap) line() string { return phrase("swap", "broker", "store") }
func (s Migrate) line() string {
	return phrase("migrate", "broker", "from", s.From, "to", s.To)
}

func (s Probe) line() string { return phrase("probe", s.Target, s.Kind) }

func (s Redrive) line() string { return phrase("redrive", s.BusinessID) }
func (s Discard) line() string { return phrase("discard", s.BusinessID) }

func (s Restore) line() string {
	of := "business"
	if s.Broker {
		of = "broker"
	}
	return phrase("restore", of, "to", s.Checkpoint)
}

func (s Rewind) line() string {
	return phrase("rewind", s.Consumer, "to", s.Checkpoint, "by", s.By)
}

func (s Elapse) line() string {
	return phrase("elapse", "ttl", "of", s.BusinessID, timed("plus", s.Margin))
}

func (s Comment) line() string { return s.Step.line() }
