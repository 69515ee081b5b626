package guarantees

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
)

var recoveryBounded = Guarantee{
	Name: evidence.RecoveryBounded, Usual: "RTO",
	Text: "From the latest of heal, acceptance and a ready matching consumer, an accepted message is settled within the bound.",
	Rule: "The bound is the profile's and longer than its redelivery period. While a fault is at work the time does not run; it starts anew when the handler itself failed, and with each earlier message that its subscriber is handed or settles: a consumer that works through a backlog is not free. Unsettled at the end of the drain, with the bound passed, is a violation. The longest time is reported.",
	new:  func() checker { return &recovery{progress: make(map[uint32]*progress)} },
}

type recovery struct {
	longest  time.Duration
	settled  int
	progress map[uint32]*progress // by logical subscriber
}

// progress is when a subscriber last had to do with a message that was published
// before a given one: the times that no later one of an earlier message makes
// needless, oldest first, so that their refs ascend.
type progress struct{ recent []work }

type work struct {
	ref ref
	at  time.Duration
}

// maxRecent times are kept of a subscriber. In the order of publishing
// one is enough; beyond the bound a backlog is forgotten and excuses nothing.
const maxRecent = 1 << 12

// before is when a message published before r was last at work; 0 if none was.
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

func (c *recovery) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || l.limits.RecoveryBound <= 0 {
		return
	}
	first := r.acked.seq == e.Seq
	if l.automatic {
		first = e.Kind == evidence.Delivered && r.deliveries == 1
	}
	if !first && e.Kind != evidence.Delivered {
		return
	}
	p := c.progress[r.sub]
	if p == nil {
		p = &progress{}
		c.progress[r.sub] = p
	}
	took := e.At - max(l.recoveryStart(m, r), p.before(m.ref))
	p.note(m.ref, e.At)
	if !first {
		return
	}
	out.instances++
	c.settled++
	if len(l.active) > 0 {
		return
	}
	c.longest = max(c.longest, took)
	if took > l.limits.RecoveryBound {
		f := l.finding(m, r, "too-slow", m.returned.seq, l.healed.seq, e.Seq)
		f.HandOver = BrokerToConsumer
		f.Text = fmt.Sprintf("%s was settled %v after everything was ready for it; the bound is %v", l.label(m), took, l.limits.RecoveryBound)
		out.violate(byEvents, f)
	}
}

// recoveryStart is when the last thing that a message had to wait for was there.
func (l *ledger) recoveryStart(m *message, r *receipt) time.Duration {
	start := max(l.healed.at, m.called.at, m.returned.at, r.failed.at, r.rewound.at) // it may be settled before its publisher has the answer
	if s := l.bySymbol[r.sub]; s != nil {
		start = max(start, s.liveSince.at)
	}
	return start
}

func (c *recovery) close(l *ledger, m *message, out *ruling) {
	if l.limits.RecoveryBound <= 0 || m.frozen || !m.accepted() {
		return
	}
	if l.clockSet && m.ttl > 0 {
		return // for the broker its time to live may be over
	}
	for _, r := range l.obliged(m) {
		if l.acknowledged(r) || !l.ready(m, r.sub) {
			continue
		}
		switch l.fateOf(m, r).fate {
		case fulfilled:
			// Its acknowledgement had no answer. That it was heard is what the
			// rows say; where its row still waits, it was not.
			if row := l.anyEndRow(m, r.sub, evidence.RowPending); row == nil || row.Expired || l.foreign(l.brokerEnd, row) {
				out.instances++
				continue
			}
		case excused, kept:
			continue
		}
		out.instances++
		start := l.recoveryStart(m, r)
		if p := c.progress[r.sub]; p != nil {
			start = max(start, p.before(m.ref))
		}
		switch {
		case l.drain.seq == 0:
			out.undecided(l.label(m) + ": the run has no end of its drain")
		case l.drain.at-start <= l.limits.RecoveryBound:
			out.undecided(l.label(m) + ": the drain ended before the bound had passed")
		default:
			f := l.finding(m, r, "never-settled", m.returned.seq, l.healed.seq, r.last.seq, l.drain.seq)
			f.HandOver = BrokerToConsumer
			f.Text = fmt.Sprintf("%s was not settled %v after everything was ready for it; the bound is %v", l.label(m), l.drain.at-start, l.limits.RecoveryBound)
			out.violate(byAbsence, f)
		}
	}
}

func (c *recovery) conclude(l *ledger, out *ruling) {
	if l.limits.RecoveryBound <= 0 {
		out.notApplicable = "the profile names no bound"
		return
	}
	if c.settled > 0 {
		out.measures = []Measure{{"longest recovery", milliseconds(c.longest), "ms"}}
	}
	out.layers = []Layer{{"broker", "redelivered", l.redelivered}}
}
