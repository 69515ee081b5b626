package zeromq

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/broker"
)

// Widened has the periods of a tight broker, and limits in which a crowd of
// messages and topics has room: more than one step of the broker takes.
func Widened(c broker.Config) broker.Config {
	limits := c.Limits
	c = Tightened(c)
	c.Limits = limits
	c.Limits.InFlight, c.Limits.Topics, c.Limits.SettledIDs = crowd+100, 2*manyPlaces, 4*crowd
	return c
}

// limitsOf a broker, by the value of the setting.
var limitsOf = map[string]func(broker.Config) broker.Config{
	"default": func(c broker.Config) broker.Config { return c },
	"tight":   Tightened,
	"wide":    Widened,
}

// Limited is a configuration under the limits of this name.
func Limited(c broker.Config, limits string) broker.Config {
	if of := limitsOf[limits]; of != nil {
		return of(c)
	}
	return c
}

const (
	crowd      = 600  // messages
	manyPlaces = 200  // topics
	pageOfRows = 1000 // at most
)

// crowds are talks in which more is to be done than the broker does at once: what
// is left over is done too.
const (
	crowds                  = "crowds"
	crowdBefore, crowdAfter = "crowd-before-restart", "crowd-after-restart"
)

// crowded are its talks.
var crowded = []dialogue{
	{crowds, "crowd-comes-late", "Who comes late to hundreds of messages in many topics gets all of them, in order.", func(t *talk) {
		k, p := t.keep("c/#"), t.enter("p")
		names := numbered(crowd)
		p.bring(func(i int) string { return fmt.Sprintf("c/%d", i*i%97) }, names)
		c := t.enter("c")
		c.subscribe("c/+", modeLeast, crowd).is(answerAccepted)
		c.gets("c/+", names...)
		c.settle(names)
		k.quiet()
	}},
	{crowds, "crowd-is-given-back", "Hundreds of messages whose holder leaves go to another, in order.", func(t *talk) {
		p, a, b := t.enter("p"), t.enter("a"), t.enter("b")
		names := numbered(crowd)
		a.subscribe("g", modeLeast, crowd).is(answerAccepted)
		p.bring(func(int) string { return "g" }, names)
		a.gets("g", names...)
		b.subscribe("g", modeLeast, crowd).is(answerAccepted)
		a.leave()
		for _, m := range names {
			b.getsAttempt("g", m, 2)
		}
		b.settle(names)
	}},
	{crowds, "crowd-is-unanswered", "Hundreds of deliveries whose time is up at once are made again, in order.", func(t *talk) {
		p, a := t.enter("p"), t.enter("a")
		names := numbered(crowd)
		a.subscribe("u", modeLeast, crowd).is(answerAccepted)
		p.bring(func(int) string { return "u" }, names, ttl(time.Minute))
		a.gets("u", names...)
		t.wait(tight.visibility)
		for _, m := range names {
			a.getsAttempt("u", m, 2)
		}
		a.settle(names)
	}},
	{crowds, "crowd-expires", "Behind hundreds of messages that have expired the one that has not is served.", func(t *talk) {
		for round := range 3 { // before, at and after a purge
			topic, last := fmt.Sprintf("e/%d", round), fmt.Sprintf("last-%d", round)
			k, p := t.keep(topic), t.enter("p")
			var names []string
			for _, m := range numbered(crowd) {
				names = append(names, fmt.Sprintf("%d-%s", round, m))
			}
			p.bring(func(int) string { return topic }, names, ttl(time.Second))
			p.publish(topic, last).is(answerAccepted)
			t.wait(time.Second + time.Duration(round)*tight.expiry/3)
			k.grant(topic, 1)
			k.gets(topic, last)
			k.ack(last)
			k.leave()
			p.leave()
		}
	}},
	{crowdBefore, "crowd-kept", "Hundreds of messages are left behind.", func(t *talk) {
		t.keep("k/#")
		t.enter("p").bring(func(i int) string { return fmt.Sprintf("k/%d", i%5) }, numbered(crowd), text(tagKey, "K"))
	}},
	{crowdAfter, "crowd-kept-again", "All of them are delivered whole after the restart, in order, as many at once as there is credit.", func(t *talk) {
		c := t.enter("c")
		for i, m := range numbered(crowd) {
			t.remember(fmt.Sprintf("k/%d", i%5), m, len("payload of ")+len(m), text(tagKey, "K"))
		}
		c.subscribe("k/#", modeLeast, crowd).is(answerAccepted)
		c.gets("k/#", numbered(crowd)...)
		c.settle(numbered(crowd))
		c.quiet()
	}},
	{crowds, "crowd-of-topics", "A filter that comes while topics are emptied finds all that hold messages.", func(t *talk) {
		for round := range 8 {
			place := func(i int) string { return fmt.Sprintf("t%d/%d", round, i) }
			filter := fmt.Sprintf("t%d/#", round)
			k, p, c := t.keep(filter), t.enter("p"), t.enter("c")
			var names []string
			for i := range manyPlaces {
				names = append(names, fmt.Sprintf("%d-%d", round, i))
			}
			p.bring(place, names)
			for i := range 3 {
				c.subscribe(place(i), modeLeast, 0).is(answerAccepted)
			}
			// One after another is emptied while the filter looks through them.
			request := c.say(kindSubscribe, "", text(tagTopic, filter), number(tagMode, modeLeast), number(tagCredit, manyPlaces))
			c.subs[filter] = request
			after := c.say(kindSubscribe, "", text(tagTopic, fmt.Sprintf("t%d/+", round)), number(tagMode, modeLeast)) // looks after that
			for i := range 3 {
				c.sayAs(c.subs[place(i)], kindCredit, "", number(tagCredit, 1))
			}
			c.answer(request, "Subscribe to "+filter).is(answerAccepted)
			c.answer(after, "Subscribe to another filter").is(answerAccepted)
			c.serves(manyPlaces)
			c.quiet()
			k.leave()
			c.leave()
			p.leave()
		}
	}},
	{crowds, "crowd-of-rows", "Rows that fill more than a page are listed in full, each once, page by page.", func(t *talk) {
		k, p := t.keep("r"), t.enter("p")
		names := numbered(2*pageOfRows + 10)
		for at := 0; at < len(names); at += crowd {
			p.bring(func(int) string { return "r" }, names[at:min(at+crowd, len(names))])
		}
		t.listed("rows", "pending", names, 0) // beside what is left of finished messages
		k.grant("r", crowd)
		for at := 0; at < len(names); at += crowd {
			some := names[at:min(at+crowd, len(names))]
			k.gets("r", some...)
			for _, m := range some {
				k.say(kindNack, "", dead, text(tagMessage, t.id(m)))
			}
			for i, m := range some {
				k.answer(k.last-uint64(len(some)-1-i), "Nack of "+m).is(answerAccepted)
			}
		}
		t.wait(settling)
		t.listed("dlq.list", "dead", names, 3)
		for _, m := range names {
			p.admin("dlq.discard", m).is(answerAccepted)
		}
		t.listed("dlq.list", "dead", nil, 1)
	}},
}

// bring publishes many messages without waiting in between; all are accepted, in
// order.
func (p *party) bring(topic func(i int) string, names []string, more ...field) {
	for i, m := range names {
		p.say(kindPublish, string(payloadOf(m, len("payload of ")+len(m))),
			append([]field{text(tagTopic, topic(i)), number(tagMode, modeLeast), text(tagMessage, p.id(m))}, more...)...)
	}
	for i, m := range names {
		p.answer(p.last-uint64(len(names)-1-i), "Publish of "+m).is(answerAccepted, text(tagMessage, p.id(m)))
	}
}

// settle acknowledges many deliveries without waiting in between.
func (p *party) settle(names []string) {
	for _, m := range names {
		p.say(kindAck, "", text(tagMessage, p.id(m)))
	}
	for i, m := range names {
		p.answer(p.last-uint64(len(names)-1-i), "Ack of "+m).is(answerAccepted, text(tagMessage, p.id(m)))
	}
}

// serves demands n deliveries of different messages, whichever they are, and
// acknowledges each.
func (p *party) serves(n int) {
	seen := map[string]bool{}
	for len(seen) < n && !p.over() {
		if len(p.here) == 0 {
			p.here = append(p.here, p.next().heard)
		}
		h := p.here[0]
		p.here = p.here[1:]
		if p.over() {
			return
		}
		if id := h.text(tagMessage); h.kind != kindDeliver || seen[id] {
			p.deviates("%s: %s of %q, after %d of %d deliveries", p.name, h, id, len(seen), n)
		} else {
			seen[id] = true
			p.answer(p.say(kindAck, "", text(tagMessage, id)), "Ack").is(answerAccepted)
		}
	}
}

// stores demands that these messages are pending rows once all is written that was
// asked for.
func (t *talk) stores(names ...string) {
	for _, m := range names {
		found := false
		for next, more := "", true; more && !found && !t.over(); more = next != "" {
			view := t.page("rows", next)
			found = slices.ContainsFunc(view.Rows, func(r broker.RowView) bool { return r.MessageID == t.id(m) && r.State == "pending" })
			next = view.Next
		}
		if !found {
			t.deviates("%q is accepted, or asked for before, and is no pending row", m)
		}
	}
}

// page asks for one page of rows.
func (t *talk) page(command, next string) (view broker.RowsView) {
	fields := []field{text(tagTopic, command)}
	if next != "" {
		fields = append(fields, text(tagMessage, next))
	}
	r := t.clerk.answer(t.clerk.say(kindAdmin, "", fields...), command)
	r.as(r.kind, number(tagAnswer, answerAccepted))
	if t.over() {
		return view
	}
	if err := json.Unmarshal(r.payload, &view); err != nil {
		t.deviates("%s: %v", command, err)
	}
	return view
}

// listed demands that a command lists these messages and no other of this state,
// on so many pages; 0 is any number.
func (t *talk) listed(command, state string, names []string, pages int) {
	var found []string
	next := ""
	for page := 1; ; page++ {
		view := t.page(command, next)
		if len(view.Rows) > pageOfRows || view.Truncated != (view.Next != "") {
			t.deviates("page %d of %s has %d rows, truncated: %v, next: %q", page, command, len(view.Rows), view.Truncated, view.Next)
		}
		for _, row := range view.Rows {
			if row.State == state {
				found = append(found, row.MessageID)
			}
		}
		if next = view.Next; next == "" || t.over() {
			if pages > 0 && page != pages {
				t.deviates("%s has %d pages, and must have %d", command, page, pages)
			}
			break
		}
		if page > 100 {
			t.deviates("the pages of %s do not end", command)
			return
		}
	}
	if len(found) != len(names) {
		t.deviates("%s lists %d messages, and must list %d", command, len(found), len(names))
		return
	}
	for i, m := range names {
		if found[i] != t.id(m) {
			t.deviates("%s lists %q in place %d, where %q is due", command, found[i], i+1, t.id(m))
		}
	}
}
