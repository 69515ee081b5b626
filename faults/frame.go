package faults

import (
	"context"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// frameFaults strike exactly one frame.
func frameFaults() []Fault {
	fault := func(verb, text string, before, after links.Action) Fault {
		frame := actions{before, after}
		return Fault{Verb: verb, Class: evidence.Link, Strikes: StrikesFrame, Text: text,
			Example: "fault it: " + verb + " frame ack of order-1 on c1", frame: frame,
			arm: func(_ context.Context, s Spec, t Targets) (Injection, error) {
				return strike(s, t, s.Label, frame.of(s), s.Repeat, nil)
			}}
	}
	delay := fault("delay", "The frame and all that follow it are delayed.", links.Delay, links.Delay)
	delay.Timed = true
	delay.Example = "fault late: delay frame accept of order-1 on p1 by 200ms"
	cut := fault("cut", "The connection is cut before the frame, or right after it.", links.CutBefore, links.CutAfter)
	cut.Example = "fault gone: cut before frame ack of order-1 on c1"
	hold := fault("hold", "The frame and all that follow it in its direction are held until the fault is healed.", links.Hold, links.HoldAfter)
	hold.Lasts = true
	return []Fault{
		fault("drop", "The frame is discarded; the connection stays open.", links.Drop, links.Drop),
		hold,
		fault("duplicate", "The frame is sent twice.", links.Duplicate, links.Duplicate),
		delay,
		cut,
		fault("corrupt", "A byte of the payload is changed; the frame stays well formed.", links.Corrupt, links.Corrupt),
	}
}

// strike arms a fault on a link's frame; then is called when it first fires.
func strike(s Spec, t Targets, label string, action links.Action, repeat links.Repeat, then func()) (links.Injection, error) {
	link, err := t.Link(s.On)
	if err != nil {
		return nil, err
	}
	return link.Arm(links.Strike{Label: label, Action: action, Kind: s.Frame, N: s.N, Of: s.Of, Repeat: repeat, Delay: s.By, Then: then})
}
