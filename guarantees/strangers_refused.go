package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var strangersRefused = Guarantee{
	Name: evidence.StrangersRefused, Usual: "access control, input validation",
	Text: "Who may not enter is turned away, what is malformed or over a limit is refused, what is within the limits is accepted, and each is answered as the protocol says.",
	Rule: "Per probe: what came of it is what the protocol says must come of it, with the cause that it must name. A probe that could not be made decides nothing, and one that ended or stayed unanswered while a fault was at work, or the machine stood still, neither.",
	new:  func() checker { return &probing{} },
}

// probing compares probe outcomes with the wanted ones. Probes bypass the
// links, so only faults on the system itself can affect them.
type probing struct {
	stopped bool // since the last probe, the harness stopped the broker or the machine stood still
}

func (c *probing) on() []evidence.Kind {
	return []evidence.Kind{evidence.Probed, evidence.ProcessExited, evidence.ProcessPaused}
}

func (c *probing) observe(v view, e *evidence.Event, _ *message, _ *receipt, out *ruling) {
	if e.Kind != evidence.Probed {
		c.stopped = c.stopped || e.Kind == evidence.ProcessPaused || e.Actor == ledger.Broker && e.Exit != nil && e.Exit.Ordered
		return
	}
	struck := c.stopped || v.FaultActive()
	c.stopped = false
	out.instances++
	switch {
	case e.Got == evidence.NoProbeOutcome || e.Wanted == evidence.NoProbeOutcome:
		out.undecided(fmt.Sprintf("the probe %s could not be made%s", e.Probe, quote(e)))
		return
	case e.Got == e.Wanted && (e.WantedCause == evidence.NoCause || e.Cause == e.WantedCause):
		return
	case struck && (e.Got == evidence.ProbeUnanswered || e.Got == evidence.ProbeEnded):
		out.undecided(fmt.Sprintf("the probe %s was %s while a fault was at work", e.Probe, e.Got))
		return
	}
	f := Finding{Kind: "probe-" + e.Got.String(), HandOver: ClientToBroker, Events: []uint64{e.Seq}}
	f.Text = fmt.Sprintf("the probe %s was %s, and must be %s", e.Probe, e.Got, e.Wanted)
	if e.Got == e.Wanted {
		f.Kind = "probe-cause"
		f.Text = fmt.Sprintf("the probe %s was %s with the cause %s, and must be with %s", e.Probe, e.Got, nameOrNone(e.Cause), e.WantedCause)
	}
	f.Text += quote(e)
	out.violate(byEvents, f)
}

func nameOrNone(c evidence.Cause) string {
	if c == evidence.NoCause {
		return "none"
	}
	return c.String()
}
