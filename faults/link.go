package faults

import (
	"context"
	"errors"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// linkFaults strike a whole link, whatever it carries.
func linkFaults() []Fault {
	fault := func(verb, text, clause string, arm func(l links.Interruptible, s Spec) (Injection, error)) Fault {
		return Fault{Verb: verb, Class: evidence.Link, Strikes: StrikesLink, Text: text, Example: "fault it: " + verb + " on p1" + clause,
			arm: func(_ context.Context, s Spec, t Targets) (Injection, error) {
				link, err := t.Link(s.On)
				if err != nil {
					return nil, err
				}
				return arm(link, s)
			}}
	}
	bytes := func(f Fault, timed bool) Fault {
		f.Bytes, f.Timed = true, timed
		return f
	}
	return []Fault{
		fault("black-hole", "Every byte is lost, both ways, and no connection is closed: a silent partition.", "",
			func(l links.Interruptible, s Spec) (Injection, error) {
				return l.BlackHole(s.Label, evidence.NoDirection)
			}),
		fault("down", "The listener is closed and every connection is reset: connections are refused.", "",
			func(l links.Interruptible, s Spec) (Injection, error) {
				a, err := l.Down(s.Label)
				if errors.Is(err, links.ErrDown) {
					return nil, &AbsentError{"the link of " + s.On + " was down already"}
				}
				return a, err
			}),
		fault("reset", "Every open connection is reset.", "",
			func(l links.Interruptible, s Spec) (Injection, error) {
				a := l.Reset(s.Label)
				if a.Count() == 0 {
					return nil, &AbsentError{"no connection of " + s.On + " was open"}
				}
				return a, nil
			}),
		bytes(fault("latency", "Every byte is delayed (Toxiproxy).", " by 50ms",
			func(l links.Interruptible, s Spec) (Injection, error) {
				if s.By <= 0 {
					return nil, errors.New("say how much, as in \"by 50ms\"")
				}
				return l.AddToxic(s.Label, links.Toxic{Type: "latency", To: evidence.ToClient, Attributes: map[string]any{"latency": s.By.Milliseconds()}})
			}), true),
		bytes(fault("bandwidth", "Bandwidth is limited (Toxiproxy).", " at 64 KiB/s",
			func(l links.Interruptible, s Spec) (Injection, error) {
				if s.Rate <= 0 {
					return nil, errors.New("say how much, as in \"at 64 KiB/s\"")
				}
				return l.AddToxic(s.Label, links.Toxic{Type: "bandwidth", To: evidence.ToBroker, Attributes: map[string]any{"rate": s.Rate}})
			}), false),
	}
}
