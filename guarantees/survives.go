package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var survives = Guarantee{
	Name: evidence.Survives, Usual: "availability under fault",
	Text: "The system's own process does not end by itself during the run.",
	Rule: "An exit or crash that the harness did not order is a violation, with its status and last log lines. Killed from outside (SIGKILL that we did not send) is a failure to measure.",
	new:  func() checker { return survival{} },
}

type survival struct{}

func (survival) on() []evidence.Kind {
	return []evidence.Kind{evidence.ProcessStarted, evidence.HealthChecked, evidence.ProcessExited}
}

func (survival) observe(_ view, e *evidence.Event, _ *message, _ *receipt, out *ruling) {
	switch {
	case e.Kind == evidence.HealthChecked:
		if e.OK {
			out.instances++ // it is running
		}
	case e.Actor != ledger.Broker:
	case e.Kind == evidence.ProcessStarted:
		out.instances++
	case e.Kind == evidence.ProcessExited && e.Exit != nil && !e.Exit.Ordered && e.Exit.Signal != "killed":
		how := fmt.Sprintf("with status %d", e.Exit.Code)
		if e.Exit.Signal != "" {
			how = "by signal " + e.Exit.Signal
		}
		text := "the broker ended by itself " + how + quote(e)
		out.violate(byEvents, Finding{Kind: "ended-by-itself", Events: []uint64{e.Seq}, Text: text,
			Follows: []string{evidence.NoAcceptedLoss, evidence.RecoveryBounded}})
	}
}
