package guarantees

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var recoveryBounded = Guarantee{
	Name: evidence.RecoveryBounded, Usual: "RTO",
	Text: "From the latest of heal, acceptance and a ready matching consumer, an accepted message is settled within the bound.",
	Rule: "The bound is the profile's and longer than its redelivery period. While a fault is at work the time does not run; it starts anew when the handler itself failed, and with each earlier message that its subscriber is handed or settles: a consumer that works through a backlog is not free. Unsettled at the end of the drain, with the bound passed, is a violation. The longest time is reported.",
	new:  func() checker { return &recovery{progress: make(map[symbol]*progress)} },
}

type recovery struct {
	longest  time.Duration
	settled  int
	progress map[symbol]*progress // by logical subscriber
}

// progress answers when a subscriber last handled a message published before a
// given one. It keeps only works not superseded by a later work on an earlier
// message, oldest first, so that their refs ascend.
type progress struct{ recent []work }

type work struct {
	ref ref
	at  time.Duration
}

// maxRecent bounds the works kept per subscriber. A subscriber that works in
// publish order needs only one; dropped works excuse nothing.
const maxRecent = 1 << 12

// before returns when a message published before r was last handled; 0 if none
// was.
func (p *progress) before(r ref) time.Duration {
	for i := len(p.recent) - 1; i >= 0; i-- {
		if p.recent[i].ref < r {
			return p.recent[i].at
		}
	}
	return 0
}

func (p *progress) note(r ref, at time.Duration) {
	n := len(p.recent)
	for n > 0 && p.recent[n-1].ref >= r {
		n--
	}
	p.recent = append(p.recent[:n], work{r, at})
	if len(p.recent) > maxRecent {
		p.recent = p.recent[:copy(p.recent, p.recent[maxRecent/2:])]
	}
}

func (c *recovery) on() []evidence.Kind {
	return []evidence.Kind{evidence.AckReturned, evidence.Delivered}
}

func (c *recovery) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || v.Limits.RecoveryBound <= 0 {
		return
	}
	first := r.Acked.Seq == e.Seq
	if v.Automatic {
		first = e.Kind == evidence.Delivered && r.Deliveries == 1
	}
	if !first && e.Kind != evidence.Delivered {
		return
	}
	p := c.progress[r.Sub]
	if p == nil {
		p = &progress{}
		c.progress[r.Sub] = p
	}
	took := e.At - max(v.recoveryStart(m, r), p.before(m.Ref))
	p.note(m.Ref, e.At)
	if !first {
		return
	}
	out.instances++
	c.settled++
	if v.FaultActive() {
		return
	}
	c.longest = max(c.longest, took)
	if took > v.Limits.RecoveryBound {
		f := v.finding(m, r, "too-slow", BrokerToConsumer, m.Returned.Seq, v.Healed.Seq, e.Seq)
		f.Text = fmt.Sprintf("%s was settled %v after everything was ready for it; the bound is %v", v.Label(m), took, v.Limits.RecoveryBound)
		out.violate(byEvents, f)
	}
}

// recoveryStart returns when everything that a message had to wait for was in
// place.
func (v view) recoveryStart(m *message, r *receipt) time.Duration {
	start := max(v.Healed.At, m.Called.At, m.Returned.At, r.Failed.At, r.Rewound.At) // a message may be settled before its publish is answered
	if s := v.Subscriber(r.Sub); s != nil {
		start = max(start, s.LiveSince.At)
	}
	return start
}

func (c *recovery) close(v view, m *message, out *ruling) {
	if v.Limits.RecoveryBound <= 0 || m.Frozen || !m.Accepted() {
		return
	}
	if v.ClockSet && m.TTL > 0 {
		return // it may have expired by the broker's clock
	}
	for _, r := range v.obliged(m) {
		if v.Acknowledged(r) || !v.Ready(m, r.Sub) {
			continue
		}
		switch v.fateOf(m, r).fate {
		case fulfilled:
			// Its acknowledgement was not answered; a missing row shows that
			// it was processed.
			if row := v.anyEndRow(m, r.Sub, evidence.RowPending); row == nil || row.Expired || ledger.Foreign(v.BrokerEnd, row) {
				out.instances++
				continue
			}
		case excused, kept:
			continue
		}
		out.instances++
		start := v.recoveryStart(m, r)
		if p := c.progress[r.Sub]; p != nil {
			start = max(start, p.before(m.Ref))
		}
		switch {
		case v.Drain.Seq == 0:
			out.undecided(v.Label(m) + ": the run has no end of its drain")
		case v.Drain.At-start <= v.Limits.RecoveryBound:
			out.undecided(v.Label(m) + ": the drain ended before the bound had passed")
		default:
			f := v.finding(m, r, "never-settled", BrokerToConsumer, m.Returned.Seq, v.Healed.Seq, r.Last.Seq, v.Drain.Seq)
			f.Text = fmt.Sprintf("%s was not settled %v after everything was ready for it; the bound is %v", v.Label(m), v.Drain.At-start, v.Limits.RecoveryBound)
			out.violate(byAbsence, f)
		}
	}
}

func (c *recovery) conclude(v view, out *ruling) {
	if v.Limits.RecoveryBound <= 0 {
		out.notApplicable = "the profile names no bound"
		return
	}
	if c.settled > 0 {
		out.measures = []Measure{{"longest recovery", milliseconds(c.longest), "ms"}}
	}
	out.layers = []Layer{{"broker", "redelivered", v.Redelivered}}
}
