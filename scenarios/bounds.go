package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/script"
)

// tightly probes a broker with tight limits before any other client connects:
// only its answers show the state of a broker that serves nobody.
func tightly(name, why string, steps ...script.Step) script.Scenario {
	return with("tight", name, why, steps...)
}

// with is the same for a broker with limits of this name.
func with(limits, name, why string, steps ...script.Step) script.Scenario {
	s := script.Scenario{Name: name, Why: why, Expect: usual(evidence.StrangersRefused), Reached: []evidence.Condition{script.Effect("order-1")}}
	for _, step := range steps {
		if f, ok := step.(script.Fault); ok {
			s.Reached = append(s.Reached, script.Fired(f.Label))
		}
	}
	s.Steps = append([]script.Step{
		script.Set{Setting: "limits", Value: limits},
		script.Restart{Actor: faults.Broker},
	}, append(steps,
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Effect("order-1")},
	)...)
	return s
}

func talk(kind string) script.Step { return script.Probe{Target: faults.Broker, Kind: kind} }

// bounds: conversations in which every answer is determined.
var bounds = tightly("bounds",
	"The broker's limits are so tight that a few sessions meet each of them: what they say to it, and it to them, is what the protocol says, message by message, and nothing is left behind.",
	talk("talks"), talk("before-restart"), script.Restart{Actor: faults.Broker}, talk("after-restart"))

// periods: the same for everything with a timeout.
var periods = tightly("periods",
	"Deliveries stay unanswered, are given back with a delay, expire and are forgotten, in virtual time: each at its time and not before.",
	talk("periods"))

// crowds: the same where more is to be done than is done at once.
var crowds = with("wide", "crowds",
	"Hundreds of messages and topics are waited for, given back, expire and are listed at once, in virtual time: what one step of the broker leaves over is done by the next.",
	talk("crowds"), talk("crowd-before-restart"), script.Restart{Actor: faults.Broker}, talk("crowd-after-restart"))

// storeTroubles: the same while operations of the store fail.
var storeTroubles = tightly("store-troubles",
	"One operation of the store after another fails, and works again: what a session is told meanwhile is true, nothing is half done, and afterwards all is made good.",
	failing()...)

func failing() (steps []script.Step) {
	fail := func(label, verb, operation string) script.Step {
		when := script.Before
		if verb == "lose-reply" {
			when = script.After
		}
		return script.Fault{Label: label, Verb: verb, Target: "store", Repeat: script.Every, When: when, Event: "operation " + operation}
	}
	for _, operation := range []string{"dead-letter", "attempt", "delete", "content"} {
		steps = append(steps, fail(operation, "unreachable", operation), talk(operation+"s-fail"), script.Heal{Label: operation}, talk(operation+"s-mended"))
	}
	return append(steps,
		fail("redrive", "unreachable", "redrive"), fail("discard", "unreachable", "discard"), talk("redrives-fail"),
		script.Heal{Label: "redrive"}, script.Heal{Label: "discard"}, talk("redrives-mended"),
		fail("insert", "unreachable", "insert"), talk("inserts-fail"), script.Heal{Label: "insert"},
		fail("reply", "lose-reply", "insert"), fail("proof", "unreachable", "reestablish"), fail("undo", "unreachable", "delete"), talk("inserts-in-doubt"),
		script.Heal{Label: "reply"}, script.Heal{Label: "proof"}, script.Heal{Label: "undo"}, talk("inserts-resolved"),
		script.Set{Setting: "acks", Value: "confirmed"}, script.Restart{Actor: faults.Broker}, talk("talks"),
		fail("confirm", "unreachable", "delete"), talk("confirms-fail"), script.Heal{Label: "confirm"})
}

// storeSlow: the same while operations of the store are slow.
var storeSlow = tightly("store-slow",
	"Inserts, attempts and reads are on their way for a while, in virtual time: what can be asked, given back and expire meanwhile does.",
	slowed("insert", "inserts-slow", 300*time.Millisecond, slowed("attempt", "attempts-slow", time.Second, slowed("content", "contents-slow", 3*time.Second, nil)))...)

func slowed(operation, kind string, by time.Duration, rest []script.Step) []script.Step {
	return append([]script.Step{
		script.Fault{Label: operation, Verb: "slow", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation " + operation, By: by},
		talk(kind), script.Heal{Label: operation},
	}, rest...)
}
