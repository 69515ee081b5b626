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
		return &router{filters: make(map[symbol][]string), matches: make(map[route]bool)}
	},
}

type router struct {
	filters map[symbol][]string // by session: the destinations it subscribed to
	matches map[route]bool
	early   []routed // deliveries recorded before the call of their publish
}

type route struct{ session, destination symbol }

type routed struct {
	ref          ref
	seq          uint64
	sub, session symbol
	destination  string
}

func (c *router) on() []evidence.Kind {
	return []evidence.Kind{evidence.SubscribeCalled, evidence.Delivered}
}

func (c *router) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	switch {
	case e.Kind == evidence.SubscribeCalled:
		s := v.Symbol(e.Session)
		if e.Destination != "" && !slices.Contains(c.filters[s], e.Destination) {
			c.filters[s] = append(c.filters[s], strings.Clone(e.Destination))
			clear(c.matches)
		}
		return
	case m == nil:
		return
	case m.Destination != 0:
		c.compare(v, m, routed{m.Ref, e.Seq, r.Sub, r.Session, e.Destination}, out)
	case m.Called.Seq != 0: // the publish named no destination
	case len(c.early) < maxEarly:
		c.early = append(c.early, routed{m.Ref, e.Seq, r.Sub, r.Session, strings.Clone(e.Destination)})
	default:
		out.undecided("too many deliveries were recorded before their publish was called")
	}
}

func (c *router) compare(v view, m *message, d routed, out *ruling) {
	out.instances++
	sent := v.Name(m.Destination)
	kind, what := "", ""
	switch {
	case d.destination != "" && d.destination != sent:
		kind, what = "wrong-destination", fmt.Sprintf("as if it had been published to %s", d.destination)
	case !c.matching(v, d.session, m.Destination):
		kind, what = "misrouted", fmt.Sprintf("on a session that subscribed to %s", strings.Join(c.filters[d.session], ", "))
	default:
		return
	}
	if m.StruckBy("corrupt") {
		return
	}
	f := v.finding(m, nil, kind, BrokerToConsumer, d.seq)
	f.Subscription = v.Name(d.sub)
	f.Text = fmt.Sprintf("%s was published to %s, and was delivered %s", v.Label(m), sent, what)
	out.violate(byEvents, f)
}

// matching reports whether a session may receive messages of a destination.
// One whose subscription is unknown may receive any.
func (c *router) matching(v view, session, destination symbol) bool {
	k := route{session, destination}
	ok, known := c.matches[k]
	if !known {
		filters := c.filters[session]
		ok = len(filters) == 0 || slices.ContainsFunc(filters, func(f string) bool {
			return evidence.Filter(f).Foreign() || evidence.Filter(f).Matches(v.Name(destination))
		})
		c.matches[k] = ok
	}
	return ok
}

func (c *router) close(v view, m *message, out *ruling) {
	if m.Destination == 0 || m.StruckBy("corrupt") {
		return
	}
	for _, s := range m.Rows {
		if !s.Certain || s.Row.Destination == "" {
			continue
		}
		out.instances++
		if s.Row.Destination != v.Name(m.Destination) {
			f := v.finding(m, nil, "row-elsewhere", BrokerToStore, s.Snapshot.Seq)
			f.Text = fmt.Sprintf("%s was published to %s, and %s stands under %s", v.Label(m), v.Name(m.Destination), v.rowText(s), s.Row.Destination)
			out.violate(byEvents, f)
			return
		}
	}
}

func (c *router) conclude(v view, out *ruling) {
	for _, d := range c.early {
		if m := v.Message(d.ref); m.Destination != 0 {
			c.compare(v, m, d, out)
		}
	}
}
