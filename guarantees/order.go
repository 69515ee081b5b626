package guarantees

import (
	"fmt"
	"maps"

	"github.com/custodymq/custody/evidence"
)

var order = Guarantee{
	Name: evidence.Order, Usual: "FIFO",
	Text: "What one producer connection publishes reaches one active consumer in publish order.",
	Rule: "First deliveries only, per logical subscriber, destination and the profile's scope; while consumers compete nothing is compared, and one whose session has just ended may still compete. Pairs with a retry, an Unknown or a struck delivery are left out, and so is what comes again after its subscriber was put back, and a first delivery that says it is a repetition (the first one never arrived).",
	new:  func() checker { return &ordered{last: make(map[scope]latest)} },
}

// maxTentative pairs wait for the acceptance of both to be known.
const maxTentative = 1 << 16

type ordered struct {
	last      map[scope]latest
	tentative []pair
}

// scope is what order is promised within.
type scope struct {
	sub, session, destination uint32
	key                       uint64
}

// latest is the publish called last of those delivered so far.
type latest struct {
	ref         ref
	called, seq uint64
	consumer    uint32
}

type pair struct {
	earlier, later ref
	seq, before    uint64
	sub            uint32
}

func (c *ordered) on() []evidence.Kind {
	return []evidence.Kind{evidence.Delivered, evidence.Commanded}
}

func (c *ordered) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if e.Command == evidence.CommandRewind { // it begins anew from there
		maps.DeleteFunc(c.last, func(k scope, _ latest) bool { return l.name(k.sub) == e.Subscription })
		return
	}
	if m == nil || r.deliveries != 1 || m.called.seq == 0 || m.frozen || r.firstStruck {
		return
	}
	k := scope{r.sub, m.session, m.destination, 0}
	switch l.limits.OrderScope {
	case "":
		return
	case "key", "partition":
		k.key = m.key
	}
	if s := l.bySymbol[r.sub]; s != nil && (s.live > 1 || l.lingers(s)) {
		delete(c.last, k)
		return
	}
	last, ok := c.last[k]
	if ok {
		out.instances++
		if m.called.seq < last.called {
			again := e.Mark == evidence.MarkRedelivered || e.Attempt > 1
			marked := e.Mark == evidence.MarkFirst || e.Attempt == 1
			if !again && (last.consumer == r.session || marked) {
				if len(c.tentative) < maxTentative {
					c.tentative = append(c.tentative, pair{m.ref, last.ref, e.Seq, last.seq, r.sub})
				} else {
					out.undecided("too many pairs out of order to remember")
				}
			}
			return
		}
	}
	c.last[k] = latest{ref: m.ref, called: m.called.seq, seq: e.Seq, consumer: r.session}
}

// lingers reports whether the system may not have seen yet that a session has
// ended, so that it competes with its successor. A broker that has ended since
// has none of before.
func (l *ledger) lingers(s *subscriber) bool {
	return s.ended.seq > l.brokerEnded.seq && l.now.at-s.ended.at <= l.limits.InFlightBound
}

// eligible: accepted at its only try.
func eligible(m *message) bool {
	return m.accepted() && m.sole() && m.try <= 1 && !m.struckAt(frameDeliver)
}

func (c *ordered) conclude(l *ledger, out *ruling) {
	if l.limits.OrderScope == "" {
		out.notApplicable = "the profile names no scope of order"
		return
	}
	l.misordered(c.tentative, "overtaken", "%s was published before %s and delivered after it", out)
}

// misordered judges pairs out of order, when the acceptance of both is known.
// The text has room for the two, the earlier published first.
func (l *ledger) misordered(pairs []pair, kind, text string, out *ruling) {
	for _, p := range pairs {
		m, later := l.message(p.earlier), l.message(p.later)
		if !eligible(m) || !eligible(later) {
			continue
		}
		f := l.finding(m, nil, kind, p.before, p.seq)
		f.Subscription, f.HandOver = l.name(p.sub), BrokerToConsumer
		f.Text = fmt.Sprintf(text, l.label(m), l.label(later))
		out.violate(byEvents, f)
	}
}
