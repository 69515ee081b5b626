package guarantees

import (
	"fmt"
	"maps"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var order = Guarantee{
	Name: evidence.Order, Usual: "FIFO",
	Text: "What one producer connection publishes reaches one active consumer in publish order.",
	Rule: "First deliveries only, per logical subscriber, destination and the profile's scope; while consumers compete nothing is compared, and one whose session has just ended may still compete. Pairs with a retry, an Unknown or a struck delivery are left out, and so is what comes again after its subscriber was put back, and a first delivery that says it is a repetition (the first one never arrived).",
	new:  func() checker { return &ordered{last: make(map[scope]latest)} },
}

// maxTentative bounds the pairs kept until the acceptance of both is known.
const maxTentative = 1 << 16

type ordered struct {
	last      map[scope]latest
	tentative []pair
}

// scope is what order is promised within.
type scope struct {
	sub, session, destination symbol
	key                       uint64
}

// latest is, among the publishes delivered so far, the one called last.
type latest struct {
	ref         ref
	called, seq uint64
	consumer    symbol
}

type pair struct {
	earlier, later ref
	seq, before    uint64
	sub            symbol
}

func (c *ordered) on() []evidence.Kind {
	return []evidence.Kind{evidence.Delivered, evidence.Commanded}
}

func (c *ordered) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if e.Command == evidence.CommandRewind { // the order restarts there
		maps.DeleteFunc(c.last, func(k scope, _ latest) bool { return v.Name(k.sub) == e.Subscription })
		return
	}
	if m == nil || r.Deliveries != 1 || m.Called.Seq == 0 || m.Frozen || r.FirstStruck {
		return
	}
	k := scope{r.Sub, m.Session, m.Destination, 0}
	switch v.Limits.OrderScope {
	case "":
		return
	case "key", "partition":
		k.key = m.Key
	}
	if s := v.Subscriber(r.Sub); s != nil && (s.Live > 1 || v.Lingers(s)) {
		delete(c.last, k)
		return
	}
	last, ok := c.last[k]
	if ok {
		out.instances++
		if m.Called.Seq < last.called {
			again := e.Mark == evidence.MarkRedelivered || e.Attempt > 1
			marked := e.Mark == evidence.MarkFirst || e.Attempt == 1
			if !again && (last.consumer == r.Session || marked) {
				if len(c.tentative) < maxTentative {
					c.tentative = append(c.tentative, pair{m.Ref, last.ref, e.Seq, last.seq, r.Sub})
				} else {
					out.undecided("too many pairs out of order to remember")
				}
			}
			return
		}
	}
	c.last[k] = latest{ref: m.Ref, called: m.Called.Seq, seq: e.Seq, consumer: r.Session}
}

// eligible reports whether a publish was accepted on its only try.
func eligible(m *message) bool {
	return m.Accepted() && m.Sole() && m.Try <= 1 && !m.StruckAt(ledger.FrameDeliver)
}

func (c *ordered) conclude(v view, out *ruling) {
	if v.Limits.OrderScope == "" {
		out.notApplicable = "the profile names no scope of order"
		return
	}
	v.misordered(c.tentative, "overtaken", "%s was published before %s and delivered after it", out)
}

// misordered judges pairs that are out of order, once the acceptance of both
// is known. text is a format for the two labels, the earlier publish first.
func (v view) misordered(pairs []pair, kind, text string, out *ruling) {
	for _, p := range pairs {
		m, later := v.Message(p.earlier), v.Message(p.later)
		if !eligible(m) || !eligible(later) {
			continue
		}
		f := v.finding(m, nil, kind, BrokerToConsumer, p.before, p.seq)
		f.Subscription = v.Name(p.sub)
		f.Text = fmt.Sprintf(text, v.Label(m), v.Label(later))
		out.violate(byEvents, f)
	}
}
