package guarantees

import (
	"fmt"
	"slices"
	"strings"

	"github.com/custodymq/custody/evidence"
)

var routing = Guarantee{
	Name: evidence.Routing, Usual: "topic routing, addressing",
	Text: "A message is delivered only on subscriptions that match its destination, under that destination, and stored under it.",
	Rule: "The destination of the publish is compared with that of each delivery, with what the delivery's session subscribed to (\"+\" and \"#\" as in MQTT; a filter with other wildcards decides nothing), and with each stored row that is certainly its own. That each matching logical subscriber gets it is judged by no-accepted-loss. What our own faults corrupted is left out.",
	new: func() checker {
		return &router{filters: make(map[uint32][]string), matches: make(map[route]bool)}
	},
}

type router struct {
	filters map[uint32][]string // by session: what it subscribed to
	matches map[route]bool
	early   []routed // deliveries recorded before the call of their publish
}

type route struct{ session, destination uint32 }

type routed struct {
	ref          ref
	seq          uint64
	sub, session uint32
	destination  string
}

func (c *router) on() []evidence.Kind {
	return []evidence.Kind{evidence.SubscribeCalled, evidence.Delivered}
}

func (c *router) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	switch {
	case e.Kind == evidence.SubscribeCalled:
		s := l.symbol(e.Session)
		if e.Destination != "" && !slices.Contains(c.filters[s], e.Destination) {
			c.filters[s] = append(c.filters[s], strings.Clone(e.Destination))
			clear(c.matches)
		}
		return
	case m == nil:
		return
	case m.destination != 0:
		c.compare(l, m, routed{m.ref, e.Seq, r.sub, r.session, e.Destination}, out)
	case m.called.seq != 0: // its publisher named no destination
	case len(c.early) < maxEarly:
		c.early = append(c.early, routed{m.ref, e.Seq, r.sub, r.session, strings.Clone(e.Destination)})
	default:
		out.undecided("too many deliveries were recorded before their publish was called")
	}
}

func (c *router) compare(l *ledger, m *message, d routed, out *ruling) {
	out.instances++
	sent := l.name(m.destination)
	kind, what := "", ""
	switch {
	case d.destination != "" && d.destination != sent:
		kind, what = "wrong-destination", fmt.Sprintf("as if it had been published to %s", d.destination)
	case !c.matching(l, d.session, m.destination):
		kind, what = "misrouted", fmt.Sprintf("on a session that subscribed to %s", strings.Join(c.filters[d.session], ", "))
	default:
		return
	}
	if m.struckBy("corrupt") {
		return
	}
	f := l.finding(m, nil, kind, d.seq)
	f.Subscription, f.HandOver = l.name(d.sub), BrokerToConsumer
	f.Text = fmt.Sprintf("%s was published to %s, and was delivered %s", l.label(m), sent, what)
	out.violate(byEvents, f)
}

// matching reports whether a session may get what was published to a
// destination; one whose subscription is not known may get anything.
func (c *router) matching(l *ledger, session, destination uint32) bool {
	k := route{session, destination}
	ok, known := c.matches[k]
	if !known {
		filters := c.filters[session]
		ok = len(filters) == 0 || slices.ContainsFunc(filters, func(f string) bool {
			return evidence.Filter(f).Foreign() || evidence.Filter(f).Matches(l.name(destination))
		})
		c.matches[k] = ok
	}
	return ok
}

func (c *router) close(l *ledger, m *message, out *ruling) {
	if m.destination == 0 || m.struckBy("corrupt") {
		return
	}
	for _, s := range m.rows {
		if !s.certain || s.row.Destination == "" {
			continue
		}
		out.instances++
		if s.row.Destination != l.name(m.destination) {
			f := l.finding(m, nil, "row-elsewhere", s.snapshot.Seq)
			f.HandOver = BrokerToStore
			f.Text = fmt.Sprintf("%s was published to %s, and %s stands under %s", l.label(m), l.name(m.destination), l.rowText(s), s.row.Destination)
			out.violate(byEvents, f)
			return
		}
	}
}

func (c *router) conclude(l *ledger, out *ruling) {
	for _, d := range c.early {
		if m := l.message(d.ref); m.destination != 0 {
			c.compare(l, m, d, out)
		}
	}
}
