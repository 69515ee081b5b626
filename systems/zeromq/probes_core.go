package zeromq

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/core"
)

// tight holds the limits of a broker set to "tight": a talk of a few sessions and
// seconds reaches each of them.
var tight = struct {
	attempts                                                 int
	visibility, backoff, slowest, ttl, expiry, memory, retry time.Duration
	limits                                                   core.Limits
}{
	attempts: 4, visibility: 4 * time.Second, backoff: 100 * time.Millisecond, slowest: 300 * time.Millisecond,
	ttl: 10 * time.Second, expiry: time.Second, memory: 20 * time.Second, retry: 100 * time.Millisecond,
	limits: core.Limits{Sessions: 12, Subscriptions: 4, InFlight: 8, InFlightBytes: 3000, PublishWindow: 4, Messages: 20, Topics: 8,
		SettledIDs: 16, Listeners: 3, FanOut: 5, Memory: 16 << 10, Errors: 3},
}

// Tightened lowers every limit of a broker.
func Tightened(c broker.Config) broker.Config {
	c.MaxAttempts, c.VisibilityTimeout, c.DefaultTTL, c.ExpiryInterval, c.SettledWindow = tight.attempts, tight.visibility, tight.ttl, tight.expiry, tight.memory
	c.Backoff = core.Backoff{Base: tight.backoff, Max: tight.slowest}
	c.StoreRetry = tight.retry
	c.Heartbeat = 2 * tight.memory // no heartbeat just to stay alive
	c.Limits = tight.limits
	return c
}

// Kinds of talks.
const (
	talks       = "talks"
	periods     = "periods"
	before      = "before-restart"
	after       = "after-restart"
	refusedRows = "refused-rows" // once the broker has read what the scenario has planted

	// While store operations fail, and after they work again.
	deadLettersFail, deadLettersMended = "dead-letters-fail", "dead-letters-mended"
	redrivesFail, redrivesMended       = "redrives-fail", "redrives-mended"
	attemptsFail, attemptsMended       = "attempts-fail", "attempts-mended"
	deletesFail, deletesMended         = "deletes-fail", "deletes-mended"
	insertsFail                        = "inserts-fail"
	confirmsFail                       = "confirms-fail"
	insertsInDoubt, insertsResolved    = "inserts-in-doubt", "inserts-resolved"
	contentsFail, contentsMended       = "contents-fail", "contents-mended"
	// While store operations are slow.
	insertsSlow, attemptsSlow, contentsSlow = "inserts-slow", "attempts-slow", "contents-slow"
)

// virtual are the kinds that take longer than anybody wants to wait, or are
// determined only where a moment is exact.
var virtual = map[string]bool{periods: true, crowds: true, crowdBefore: true, crowdAfter: true, insertsSlow: true, attemptsSlow: true, contentsSlow: true}

// inStore lists messages of which only the last has its content in memory.
var inStore = []struct {
	name string
	size int
}{{"m1", 2500}, {"m2", 12000}, {"m3", 12000}, {"m4", 12000}}

// retried is a time after which a failed write has been retried.
var retried = 3 * tight.retry

// Names of causes in PROTOCOL.md.
const (
	causeNobody    = 1
	causeMode      = 2
	causeLimit     = 3
	causeInvalid   = 4
	causeExpired   = 5
	causeDiscarded = 6
	causeForbidden = 7
)

func delay(d time.Duration) field { return milliseconds(tagDelay, d.Milliseconds()) }
func ttl(d time.Duration) field   { return milliseconds(tagTTL, d.Milliseconds()) }

var dead = number(tagDead, 1)

// numbered returns names of messages, m1 to mN.
func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("m%d", i+1))
	}
	return names
}

// level makes the broker remember these topics without any listener. The counters
// are compared from here on.
func (t *talk) level(topics ...string) {
	for _, topic := range topics {
		t.clerk.publish(topic, "nothing").is(answerDeclined, because(causeNobody))
	}
	t.before = t.counters()
}

// bare demands that nothing is held but the topics that are remembered, when
// nobody listens, no message waits and there are no dead letters.
func (t *talk) bare() {
	want := 0
	for i := range tight.limits.Topics {
		topic := fmt.Sprintf("bare/%d", i)
		t.clerk.publish(topic, "nothing").is(answerDeclined, because(causeNobody))
		want += topicShare + len(topic)
	}
	if held := t.counters()["heldBytes"]; held != want {
		t.deviates("%d bytes are held of %d topics, and must be %d", held, tight.limits.Topics, want)
	}
}

// leveled demands that nothing is left of what was said about these topics but
// the counts: not a byte is held.
func (t *talk) leveled(changes map[string]int, topics ...string) {
	for _, topic := range topics {
		t.clerk.publish(topic, "nothing").is(answerDeclined, because(causeNobody))
		changes["declined"]++
	}
	t.counts(changes)
}

// remembering settles more messages than the broker remembers, repeatedly.
func remembering(t *talk, rounds, length int) {
	p, c := t.enter("p"), t.enter("c")
	c.subscribe("r", modeLeast, 8).is(answerAccepted)
	n := tight.limits.SettledIDs
	for round := range rounds {
		name := func(i int) string { return fmt.Sprintf("%d-%d-%0*d", rounds, round, length+i%7, i) }
		for i := range n + 4 {
			p.publish("r", name(i), t.business(name(i))).is(answerAccepted)
			c.gets("r", name(i))
			c.ack(name(i))
		}
		t.wait(settling)
		for i := range n + 4 {
			if i < 4 {
				p.lookup(name(i), ttl(time.Minute)).is(answerForgotten)
			} else {
				p.lookup(name(i)).is(answerSettled, text(tagMessage, t.id(name(i))))
			}
			p.publish("r", name(i), t.business(name(i))).is(answerAccepted, again) // the store knows all of them
		}
		c.quiet()
		p.lookup("nothing", ttl(settling/4)).is(answerNotSeen)
		p.lookup("nothing", ttl(time.Minute)).is(answerForgotten)
		// One that only the store knows among others: it costs itself alone.
		var requests []uint64
		some := []string{fmt.Sprint("some-a-", round), fmt.Sprint("some-b-", round), name(round % 4), fmt.Sprint("some-c-", round)}
		for _, m := range some {
			requests = append(requests, p.say(kindPublish, string(payloadOf(m, 20)), text(tagTopic, "r"), number(tagMode, modeLeast), text(tagMessage, t.id(m)), t.business(m)))
		}
		for i, m := range some {
			if m == name(round%4) {
				p.answer(requests[i], "Publish of "+m).is(answerAccepted, again)
			} else {
				p.answer(requests[i], "Publish of "+m).is(answerAccepted)
			}
		}
		t.stores(some[0], some[1], some[3])
		c.gets("r", some[0], some[1], some[3])
		c.ack(some[0], some[1], some[3])
		c.quiet()
	}
	c.leave()
	p.leave()
}

// keep subscribes without credit, so that publishes are stored.
func (t *talk) keep(filter string) *party {
	k := t.enter("keeper")
	k.subscribe(filter, modeLeast, 0).is(answerAccepted)
	return k
}

// share requires the parties to receive equal numbers of these messages, in
// order.
func (t *talk) share(filter func(*party) string, names []string, parties ...*party) (got map[*party][]string) {
	got, seen := map[*party][]string{}, map[string]bool{}
	for _, p := range parties {
		latest := -1
		for range len(names) / len(parties) {
			if len(p.here) == 0 {
				p.here = append(p.here, p.next().heard)
			}
			at := -1
			for i, n := range names {
				if !t.over() && p.here[0].text(tagMessage) == t.id(n) {
					at = i
				}
			}
			if at <= latest || seen[names[max(at, 0)]] {
				t.deviates("%s: %s of %q, which is not due, or not now", p.name, p.here[0], p.here[0].text(tagMessage))
			}
			if t.over() {
				return got
			}
			latest, seen[names[at]] = at, true
			p.gets(filter(p), names[at])
			got[p] = append(got[p], names[at])
		}
	}
	return got
}

func only(filter string) func(*party) string { return func(*party) string { return filter } }

var dialogues = []dialogue{
	{talks, "window", "A subscription holds as many deliveries as it has credit; each Ack gives a place back, and Credit widens the window up to its limit.", func(t *talk) {
		t.level("w")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("w", modeLeast, 2).is(answerAccepted)
		for _, m := range numbered(4) {
			p.publish("w", m, t.business(m), text(tagKey, "key of "+m), headers("A", " "+m+"\t", "B", "", "b", m+"é ")).is(answerAccepted, text(tagMessage, t.id(m)))
		}
		c.gets("w", "m1", "m2")
		c.quiet()
		c.ack("m2")
		c.gets("w", "m3")
		c.quiet()
		c.grant("w", 1)
		c.gets("w", "m4")
		c.ack("m1", "m4", "m3")
		c.quiet()
		c.subscribe("w/over", modeLeast, uint64(tight.limits.InFlight+1)).is(answerDeclined)
		c.grant("w", 1<<20) // no more than the limit
		for _, m := range numbered(tight.limits.InFlight + 5)[4:] {
			p.publish("w", m).is(answerAccepted)
		}
		c.gets("w", numbered(tight.limits.InFlight + 4)[4:]...)
		c.quiet()
		c.ack("m5")
		c.gets("w", "m13")
		c.quiet()
		c.ack(numbered(tight.limits.InFlight + 5)[5:]...)
		c.quiet()
		// A returned credit does not widen it beyond its limit.
		p.publish("w", "n0").is(answerAccepted)
		c.gets("w", "n0")
		c.grant("w", 1<<20)
		c.ack("n0")
		var more []string
		for i := range tight.limits.InFlight + 1 {
			more = append(more, fmt.Sprintf("n%d", i+1))
			p.publish("w", more[i]).is(answerAccepted)
		}
		c.gets("w", more[:tight.limits.InFlight]...)
		c.quiet()
		c.ack(more[0])
		c.gets("w", more[tight.limits.InFlight])
		c.ack(more[1:]...)
		t.counts(map[string]int{"accepted": 23, "delivered": 23, "settled": 23, "sessions": 2, "subscriptions": 1, "heldBytes": subscribed("w", "") + matched})
		c.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 23, "delivered": 23, "settled": 23}, "w")
	}},
	{talks, "turns", "Two subscriptions of one filter, and two filters, are served in turn.", func(t *talk) {
		p, a, b := t.enter("p"), t.enter("a"), t.enter("b")
		a.subscribe("t/x", modeLeast, 4).is(answerAccepted)
		b.subscribe("t/x", modeLeast, 4).is(answerAccepted)
		t.level()
		for _, m := range numbered(8) {
			p.publish("t/x", m).is(answerAccepted)
		}
		for c, names := range t.share(only("t/x"), numbered(8), a, b) {
			c.quiet()
			c.ack(names...)
		}
		b.unsubscribe("t/x", modeLeast).is(answerAccepted)
		b.subscribe("t/+", modeLeast, 4).is(answerAccepted)
		more := numbered(16)[8:]
		for _, m := range more {
			p.publish("t/x", m).is(answerAccepted)
		}
		for c, names := range t.share(func(c *party) string {
			if c == a {
				return "t/x"
			}
			return "t/+"
		}, more, a, b) {
			c.quiet()
			c.ack(names...)
		}
		// A subscription without credit is passed over.
		b.unsubscribe("t/+", modeLeast).is(answerAccepted)
		b.subscribe("t/+", modeLeast, 1).is(answerAccepted)
		for _, m := range []string{"n1", "n2", "n3", "n4"} {
			p.publish("t/x", m).is(answerAccepted)
		}
		b.next()
		b.quiet()
		a.next()
		a.next()
		a.next()
		a.quiet()
		a.leave()
		b.leave()
		d := t.enter("d")
		d.subscribe("t/#", modeLeast, 8).is(answerAccepted)
		for i := range 4 {
			d.getsAttempt("t/#", fmt.Sprintf("n%d", i+1), 2)
		}
		d.ack("n1", "n2", "n3", "n4")
		t.counts(map[string]int{"accepted": 20, "delivered": 24, "redelivered": 4, "settled": 20, "heldBytes": t.counters()["heldBytes"] - t.before["heldBytes"]})
	}},
	{talks, "turns-kept", "Who was served alone for a while is served no more than others afterwards.", func(t *talk) {
		p, a, b := t.enter("p"), t.enter("a"), t.enter("b")
		a.subscribe("tk", modeLeast, 8).is(answerAccepted)
		for _, m := range numbered(12) {
			p.publish("tk", m).is(answerAccepted)
			a.gets("tk", m)
			a.ack(m)
		}
		b.subscribe("tk", modeLeast, 8).is(answerAccepted)
		more := numbered(24)[12:]
		for round := range 2 {
			some := more[6*round : 6*round+6]
			for _, m := range some {
				p.publish("tk", m).is(answerAccepted)
			}
			for c, names := range t.share(only("tk"), some, a, b) {
				c.quiet()
				c.ack(names...)
			}
		}
	}},
	{talks, "bytes", "A session's open deliveries are bounded in bytes; one message always passes, and who waits is served when there is room.", func(t *talk) {
		t.level("y", "z")
		p, c, d := t.enter("p"), t.enter("c"), t.enter("d")
		c.subscribe("y", modeLeast, 8).is(answerAccepted)
		c.subscribe("z", modeLeast, 8).is(answerAccepted)
		limit := tight.limits.InFlightBytes
		p.sized("y", "m1", limit-1000).is(answerAccepted)
		p.sized("y", "m2", 1000).is(answerAccepted) // exactly
		p.sized("y", "m3", 1).is(answerAccepted)
		p.sized("z", "m4", 1).is(answerAccepted)
		p.sized("y", "m5", limit-1001).is(answerAccepted)
		c.gets("y", "m1", "m2")
		c.quiet()
		c.ack("m2")
		c.gets("y", "m3")
		c.gets("z", "m4")
		c.quiet()
		c.ack("m1")
		c.gets("y", "m5")
		c.ack("m3", "m4", "m5")
		p.sized("z", "large", limit+1000).is(answerAccepted)
		p.sized("z", "small", 1).is(answerAccepted)
		c.gets("z", "large")
		c.quiet()
		d.subscribe("y", modeLeast, 1).is(answerAccepted) // another session has its own room
		p.sized("y", "m6", 1).is(answerAccepted)
		d.gets("y", "m6")
		c.ack("large")
		c.gets("z", "small")
		c.ack("small")
		d.ack("m6")
		d.unsubscribe("y", modeLeast).is(answerAccepted)
		for _, m := range []string{"n1", "n2"} { // a subscription that has waited for room waits again
			p.sized("z", m, limit).is(answerAccepted)
			p.sized("y", m+"+", 1).is(answerAccepted)
			c.gets("z", m)
			c.quiet()
			c.ack(m)
			c.gets("y", m+"+")
			c.ack(m + "+")
		}
		// Messages assigned to a session that has left take no room from another.
		p.sized("z", "m7", limit).is(answerAccepted)
		c.gets("z", "m7")
		c.unsubscribe("z", modeLeast).is(answerAccepted)
		c.subscribe("z", modeLeast, 1).is(answerAccepted)
		c.getsAttempt("z", "m7", 2)
		c.ack("m7")
		c.leave()
		d.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 13, "delivered": 14, "redelivered": 1, "settled": 13}, "y", "z")
	}},
	{talks, "leaving", "What a subscription holds goes to others, in order, when it ends by Unsubscribe or with its session; the old holder's Ack is refused.", func(t *talk) {
		t.level("l")
		p, a, b := t.enter("p"), t.enter("a"), t.enter("b")
		a.subscribe("l", modeLeast, 3).is(answerAccepted)
		for _, m := range numbered(5) {
			p.publish("l", m).is(answerAccepted)
		}
		a.gets("l", "m1", "m2", "m3")
		b.subscribe("l", modeLeast, 1).is(answerAccepted)
		b.gets("l", "m4")
		a.unsubscribe("l", modeMost).is(answerRefused)
		a.unsubscribe("l", modeLeast, text(tagGroup, "other")).is(answerRefused)
		a.unsubscribe("l", modeLeast).is(answerAccepted)
		a.unsubscribe("l", modeLeast).is(answerRefused)
		a.acks("m1").is(answerRefused)
		a.quiet()
		b.quiet()
		b.grant("l", 7)
		for _, m := range []string{"m1", "m2", "m3"} {
			b.getsAttempt("l", m, 2)
		}
		b.gets("l", "m5")
		a.acks("m1").is(answerRefused)
		twin := t.enter("b") // a name is not a session
		twin.acks("m1", number(tagAttempt, 2)).is(answerRefused)
		twin.nacks("m1", dead).is(answerRefused)
		twin.leave()
		b.acks("m1", number(tagAttempt, 1)).is(answerRefused)
		b.acks("m1", number(tagAttempt, 2)).is(answerAccepted)
		b.acks("m1").is(answerRefused)
		b.nacks("m2", number(tagAttempt, 3)).is(answerRefused)
		a.subscribe("l", modeLeast, 2).is(answerAccepted)
		b.leave()
		a.getsAttempt("l", "m2", 3)
		a.getsAttempt("l", "m3", 3)
		a.quiet()
		a.ack("m3")
		a.getsAttempt("l", "m4", 2)
		a.ack("m4", "m2")
		a.getsAttempt("l", "m5", 2)
		a.ack("m5")
		a.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 5, "delivered": 12, "redelivered": 7, "settled": 5}, "l")
	}},
	{talks, "dead-letters", "A Nack with dead-letter, a delay that is negative, redrive and discard.", func(t *talk) {
		t.level("d")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("d", modeLeast, 4).is(answerAccepted)
		for _, m := range numbered(3) {
			p.publish("d", m, t.business(m), text(tagKey, m), headers("h", m)).is(answerAccepted)
		}
		c.admin("dlq.show", "m1").is(answerRefused) // it is none
		c.gets("d", "m1", "m2", "m3")
		c.nacks("m1", delay(-time.Second)).is(answerRefused)
		c.nacks("m1", dead, text(tagReason, "no")).is(answerAccepted)
		// A reason is cut where it is too long, and not within a character.
		c.nacks("m2", dead, text(tagReason, "x"+strings.Repeat("é", 511))).is(answerAccepted)
		cut := "rejected by the consumer: x" + strings.Repeat("é", 498)
		c.lookup("m2").is(answerDead, text(tagMessage, t.id("m2")), text(tagReason, cut))
		if shown := string(c.admin("dlq.show", "m2").payload); !strings.Contains(shown, `"reason":"`+cut+`"`) {
			t.deviates("the dead letter with a long reason is shown as %s", shown)
		}
		c.lookup("m1").is(answerDead, text(tagMessage, t.id("m1")), text(tagReason, "rejected by the consumer: no"))
		if shown := string(c.admin("dlq.show", "m1").payload); !strings.Contains(shown, `"lastConsumer":"c"`) || !strings.Contains(shown, `"attempts":1`) ||
			!strings.Contains(shown, `"headers":{"h":"m1"}`) || !strings.Contains(shown, `"key":"m1"`) || !strings.Contains(shown, base64.StdEncoding.EncodeToString(payloadOf("m1", len("payload of m1")))) {
			t.deviates("the dead letter is shown as %s", shown)
		}
		c.acks("m1").is(answerRefused)
		c.nacks("m1").is(answerRefused)
		p.publish("d", "m1", t.business("m1")).is(answerAccepted, again, text(tagMessage, t.id("m1")))
		c.quiet()
		c.admin("dlq.redrive", "m3").is(answerRefused)
		c.ack("m3")
		c.admin("dlq.discard", "m3").is(answerRefused)
		c.admin("dlq.redrive", "m1").is(answerAccepted)
		c.gets("d", "m1") // counting from the first attempt again
		c.lookup("m1").is(answerStored, text(tagMessage, t.id("m1")))
		c.admin("dlq.redrive", "m1").is(answerRefused)
		c.nacks("m1", dead, text(tagReason, "never")).is(answerAccepted)
		c.admin("dlq.discard", "m1").is(answerAccepted)
		c.admin("dlq.discard", "m1").is(answerRefused)
		c.lookup("m1").is(answerForgotten, because(causeDiscarded), text(tagMessage, t.id("m1")))
		p.publish("d", "m1", t.business("m1")).is(answerAccepted, again)
		c.unsubscribe("d", modeLeast).is(answerAccepted)
		c.admin("dlq.redrive", "m2").is(answerAccepted) // no one listens, but it is kept
		c.quiet()
		c.lookup("m2").is(answerStored)
		c.subscribe("d", modeLeast, 4).is(answerAccepted)
		c.gets("d", "m2")
		c.ack("m2")
		c.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 3, "delivered": 5, "settled": 2, "deadLettered": 3}, "d")
	}},
	{talks, "lookups", "Of several messages with one business ID the one that says most answers.", func(t *talk) {
		t.level("k")
		p, c := t.enter("p"), t.enter("c")
		b := t.business("b")
		t.wait(settling)
		look := func() reply { return p.lookup("b", ttl(settling/4)) }
		look().is(answerNotSeen)
		p.lookup("b").is(answerForgotten)
		c.subscribe("k", modeLeast, 8).is(answerAccepted)
		for _, m := range numbered(6) {
			p.publish("k", m, b).is(answerAccepted)
		}
		p.publish("k", "m1", t.business("other")).is(answerDeclined, because(causeInvalid))
		c.gets("k", numbered(6)...)
		look().is(answerStored, text(tagMessage, t.id("m1")))
		c.nacks("m1", dead, text(tagReason, "x")).is(answerAccepted)
		look().is(answerStored, text(tagMessage, t.id("m2")))
		c.ack("m4", "m2")
		look().is(answerStored, text(tagMessage, t.id("m3")))
		c.nacks("m5", dead).is(answerAccepted)
		c.ack("m3")
		look().is(answerStored, text(tagMessage, t.id("m6")))
		c.nacks("m6", dead).is(answerAccepted)
		look().is(answerSettled, text(tagMessage, t.id("m3")))
		p.publish("k", "n1", t.business("c")).is(answerAccepted)
		p.publish("k", "n2", t.business("c")).is(answerAccepted)
		c.gets("k", "n1", "n2")
		c.nacks("n2", dead).is(answerAccepted)
		c.nacks("n1", dead).is(answerAccepted)
		p.lookup("c").is(answerDead, text(tagMessage, t.id("n1")))
		p.admin("dlq.discard", "n1").is(answerAccepted)
		p.lookup("c").is(answerDead, text(tagMessage, t.id("n2")))
		p.admin("dlq.discard", "n2").is(answerAccepted)
		p.lookup("c").is(answerForgotten, because(causeDiscarded))
		for _, m := range []string{"m6", "m1", "m5"} {
			p.admin("dlq.discard", m).is(answerAccepted)
			look().is(answerSettled, text(tagMessage, t.id("m3")))
		}
		c.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 8, "delivered": 8, "settled": 3, "deadLettered": 5}, "k")
	}},
	{talks, "remembered", "As many IDs of finished messages are kept as the limit says, the oldest are forgotten first, and then absence is not proven.", func(t *talk) {
		remembering(t, 1, 1)
	}},
	{periods, "remembered-long", "So it is however many come, and of whatever length their IDs are.", func(t *talk) {
		remembering(t, 30, 90)
		t.wait(tight.memory + 2*tight.expiry) // all are forgotten
		remembering(t, 30, 90)
	}},
	{talks, "limits-of-sessions", "Sessions, subscriptions, and subscriptions to one filter are limited; what has ended makes room.", func(t *talk) {
		l := tight.limits
		a, b, c, d := t.enter("a"), t.enter("b"), t.enter("c"), t.enter("d")
		t.level("s/0")
		for i := range l.Subscriptions {
			a.subscribe(fmt.Sprintf("s/%d", i), modeLeast, 1).is(answerAccepted)
		}
		a.subscribe("s/more", modeLeast, 1).is(answerDeclined)
		a.unsubscribe("s/1", modeLeast).is(answerAccepted)
		a.subscribe("s/more", modeLeast, 1).is(answerAccepted)
		a.subscribe("s/1", modeLeast, 1).is(answerDeclined)
		b.subscribe("s/0", modeLeast, 1).is(answerAccepted)
		b.answer(b.say(kindSubscribe, "", text(tagTopic, "s/0"), number(tagMode, modeLeast)), "the same").is(answerDeclined)
		b.sayAs(b.subs["s/0"], kindSubscribe, "", text(tagTopic, "s/other"), number(tagMode, modeLeast))
		b.answer(b.subs["s/0"], "the same request").is(answerDeclined)
		b.subscribe("s/0", modeLeast, 1, text(tagGroup, "g")).is(answerAccepted)
		c.subscribe("s/0", modeLeast, 1).is(answerDeclined)
		c.subscribe("s/0", modeMost, 1).is(answerAccepted)
		c.subscribe("s/0", modeMost, 1, text(tagGroup, "g")).is(answerAccepted)
		d.subscribe("s/0", modeMost, 1, text(tagGroup, "g")).is(answerAccepted)
		d.subscribe("s/0", modeMost, 1).is(answerDeclined)
		d.subscribe("s/0/x", modeMost, 1).is(answerAccepted)
		c.unsubscribe("s/0", modeMost, text(tagGroup, "g")).is(answerAccepted)
		d.subscribe("s/0", modeMost, 1).is(answerAccepted)
		b.leave()
		d.subscribe("s/0", modeLeast, 1).is(answerAccepted)
		t.counts(map[string]int{"sessions": -1, "subscriptions": 9, "heldBytes": t.counters()["heldBytes"] - t.before["heldBytes"]})
		a.leave()
		c.leave()
		d.leave()
		t.leveled(map[string]int{"sessions": -4}, "s/0")
		var all []*party
		for range l.Sessions - t.counters()["sessions"] {
			all = append(all, t.enter("one of many"))
		}
		over := t.knock("one too many")
		over.next().as(kindError)
		over.end()
		if len(all) == 0 {
			t.deviates("there is no place for anybody")
			return
		}
		all[0].leave()
		all[0] = t.enter("the next")
		for _, p := range all {
			p.leave()
		}
	}},
	{talks, "limit-of-messages", "As many unsettled messages as the limit says are accepted; one that is settled makes room.", func(t *talk) {
		t.level("m")
		k, p := t.keep("m"), t.enter("p")
		n := tight.limits.Messages
		for _, m := range numbered(n) {
			p.publish("m", m).is(answerAccepted)
		}
		p.publish("m", "over").is(answerDeclined, because(causeLimit))
		t.counts(map[string]int{"accepted": n, "declined": 1, "unsettled": n, "sessions": 2, "subscriptions": 1, "heldBytes": t.counters()["heldBytes"] - t.before["heldBytes"]})
		k.grant("m", 1)
		k.gets("m", "m1")
		p.publish("m", "over").is(answerDeclined, because(causeLimit))
		k.ack("m1")
		k.gets("m", "m2")
		p.publish("m", "last").is(answerAccepted)
		for _, m := range numbered(n)[2:] {
			k.ack(t.here(k))
			k.gets("m", m)
		}
		k.ack(numbered(n)[n-1])
		k.gets("m", "last")
		k.ack("last")
		k.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": n + 1, "declined": 2, "delivered": n + 1, "settled": n + 1}, "m")
	}},
	{talks, "limit-of-topics", "As many topics as the limit says may hold messages, and those to whose very name somebody subscribes; others make room when they are empty.", func(t *talk) {
		k, p := t.keep("x/#"), t.enter("p")
		e := t.enter("e")
		n := tight.limits.Topics
		for i, m := range numbered(n) {
			p.publish(fmt.Sprintf("x/%d/y", i), m).is(answerAccepted)
		}
		p.publish("x/more/y", "over").is(answerDeclined, because(causeLimit))
		p.publishOnce("x/more/y", "once").is(answerDeclined, because(causeLimit))
		e.subscribe("x/more", modeLeast, 0).is(answerAccepted)
		e.subscribe("x/more/y/z", modeLeast, 0).is(answerAccepted)
		p.publish("x/more/y", "over").is(answerDeclined, because(causeLimit)) // its neighbour's name does not reserve it a place
		e.subscribe("x/more/y", modeLeast, 0).is(answerAccepted)
		p.publish("x/more/y", "named").is(answerAccepted)
		e.subscribe("x/again", modeMost, 1).is(answerAccepted)
		p.publishOnce("x/again", "copy").is(answerAccepted)
		e.gets("x/again", "copy")
		e.unsubscribe("x/more", modeLeast).is(answerAccepted)
		e.unsubscribe("x/more/y/z", modeLeast).is(answerAccepted)
		p.publish("x/filler", "filler").is(answerAccepted) // takes the place of an empty topic
		p.publish("x/more/y/z", "over").is(answerDeclined, because(causeLimit))
		k.grant("x/#", 8)
		k.gets("x/#", numbered(n)...)
		k.ack("m1", "m2")
		k.gets("x/#", "named", "filler")
		k.ack("named", "filler")
		p.publish("x/1/y", "n1").is(answerAccepted)
		p.publish("x/other", "n2").is(answerAccepted)
		k.gets("x/#", "n1", "n2")
		k.ack("n1", "n2")
		k.ack(numbered(n)[2:]...)
		k.leave()
		e.leave()
		// The used topic stays, and the least recently used goes.
		for i := range n + 2 {
			p.publish("x/used", "nothing").is(answerDeclined, because(causeNobody))
			p.publish(fmt.Sprintf("x/idle/%d", i), "nothing").is(answerDeclined, because(causeNobody))
		}
		t.before = t.counters()
		p.publish("x/used", "nothing").is(answerDeclined, because(causeNobody))
		p.publish(fmt.Sprintf("x/idle/%d", n), "nothing").is(answerDeclined, because(causeNobody))
		t.counts(map[string]int{"declined": 2})
	}},
	{talks, "memory", "Content is left to the store when memory is short, and comes back whole; what does not fit is declined.", func(t *talk) {
		t.level("v")
		k, p := t.keep("v"), t.enter("p")
		limit := int(tight.limits.Memory)
		p.sized("v", "over", limit).is(answerDeclined, because(causeLimit))
		t.level() // forgets idle topics to make room
		n := tight.limits.Messages
		for i, m := range numbered(n) {
			held := t.counters()["heldBytes"]
			p.sized("v", m, 2000+i, text(tagKey, m), headers("h", m)).is(answerAccepted)
			if got, want := t.counters()["heldBytes"]-held, messageShare+len(t.id(m))+2000+i+len(m)+len("h"+m); i == 0 && got != want {
				t.deviates("%d bytes are held of a message, and must be %d", got, want)
			}
			if held := t.counters()["heldBytes"]; held > limit {
				t.deviates("%d bytes are held, and may be %d", held, limit)
			}
		}
		k.grant("v", 8)
		for i, m := range numbered(n) {
			k.gets("v", m)
			if i%2 == 0 {
				k.quiet()
			}
			k.ack(m)
		}
		for i := range 4 { // topics without messages are forgotten to make room
			p.publish(fmt.Sprintf("v/%d/%s", i, long(200)), "nothing").is(answerDeclined, because(causeNobody))
		}
		room := limit - t.counters()["heldBytes"]
		p.sized("v", "full", room-messageShare+1500).is(answerAccepted)
		k.gets("v", "full")
		k.ack("full")
		some := []string{"s1", "s2", "s3", "s4", "s5", "s6"}
		base := t.counters()["heldBytes"]
		for _, m := range some {
			p.sized("v", m, 1000).is(answerAccepted)
		}
		for range 8 {
			k.grant("v", 1)
		}
		k.gets("v", "s1", "s2", "s3")
		k.nacks("s2", delay(time.Millisecond)).is(answerAccepted)
		k.gets("v", "s4")
		k.quiet()
		k.ack("s1")
		k.getsAttempt("v", "s2", 2)
		p.sized("v", "big", limit-base-7*(messageShare+20)).is(answerAccepted) // the content of all others is dropped
		k.ack("s3", "s4")
		k.gets("v", "s5", "s6")
		k.nacks("s2", delay(time.Millisecond)).is(answerAccepted)
		k.getsAttempt("v", "s2", 3)
		k.ack("s5", "s6", "s2")
		k.gets("v", "big")
		k.ack("big")
		k.leave()
		p.leave()
		t.clerk.publish("v", "nothing").is(answerDeclined, because(causeNobody))
		t.leveled(map[string]int{"accepted": n + 8, "declined": 5, "delivered": n + 10, "redelivered": 2, "settled": n + 8, "sessions": -2, "subscriptions": -1, "heldBytes": t.counters()["heldBytes"] - t.before["heldBytes"]}, "v")
		// Subscriptions use memory too.
		var all []*party
		declined := false
		for s := 0; s < 8 && !declined && !t.over(); s++ {
			q := t.enter("q")
			all = append(all, q)
			for i := 0; i < tight.limits.Subscriptions && !declined; i++ {
				filter := fmt.Sprintf("v/%d/%0100d", s, i)
				r := q.subscribe(filter, modeLeast, 0)
				if declined = r.number(tagAnswer) == answerDeclined; declined {
					q.unsubscribe(filter, modeLeast).is(answerRefused)
				}
			}
		}
		if !declined {
			t.deviates("subscriptions take no memory")
		}
		if held := t.counters()["heldBytes"]; held > limit || held < limit-subscribed(long(103), "")-matched {
			t.deviates("%d bytes are held when there is no room for a subscription, and may be %d", held, limit)
		}
		for _, q := range all {
			q.leave()
		}
	}},
	{talks, "copies", "At most once each subscription gets a copy, and each group one, in turn; without credit nobody does.", func(t *talk) {
		t.level("o", "o/p")
		p, a, b, c := t.enter("p"), t.enter("a"), t.enter("b"), t.enter("c")
		p.publishOnce("o", "m0").is(answerDeclined, because(causeNobody))
		a.subscribe("o", modeMost, 1).is(answerAccepted)
		p.publish("o", "m0").is(answerDeclined, because(causeMode))
		p.publishOnce("o", "m1", t.business("x"), text(tagKey, "k"), headers("h", "v")).is(answerAccepted, text(tagMessage, t.id("m1")))
		a.gets("o", "m1")
		p.publishOnce("o", "m2").is(answerDeclined, because(causeNobody))
		a.quiet()
		g := text(tagGroup, "g")
		b.subscribe("o", modeMost, 8, g).is(answerAccepted)
		c.subscribe("o", modeMost, 2, g).is(answerAccepted)
		for _, m := range []string{"n1", "n2", "n3", "n4", "n5"} {
			p.publishOnce("o", m).is(answerAccepted)
		}
		b.quietly(3)
		c.quietly(2)
		a.quiet()
		a.grant("o", 8)
		p.publishOnce("o", "m3").is(answerAccepted)
		a.gets("o", "m3")
		b.gets("o", "m3")
		c.quiet()
		c.grant("o", 2)
		p.publishOnce("o", "m4").is(answerAccepted)
		c.gets("o", "m4")
		b.quiet()
		a.gets("o", "m4")
		b.leave()
		p.publishOnce("o", "m5").is(answerAccepted)
		a.gets("o", "m5")
		c.gets("o", "m5")
		c.unsubscribe("o", modeMost, g).is(answerAccepted)
		p.publishOnce("o", "m6").is(answerAccepted)
		a.gets("o", "m6")
		c.quiet()
		a.unsubscribe("o", modeMost).is(answerAccepted)
		p.publishOnce("o", "m7").is(answerDeclined, because(causeNobody))
		// One group under two filters gets one copy; two groups get one each.
		a.subscribe("o/#", modeMost, 8, g).is(answerAccepted)
		c.subscribe("o/p", modeMost, 8, g).is(answerAccepted)
		c.subscribe("o/+", modeMost, 8, text(tagGroup, "h")).is(answerAccepted)
		for _, m := range []string{"q1", "q2", "q3", "q4"} {
			p.publishOnce("o/p", m).is(answerAccepted)
		}
		if one, other := a.quietly(-1), c.quietly(-1); one+other != 8 || one == 0 || other <= 4 {
			t.deviates("a group under two filters, and another, got %d and %d copies of 4 messages: each is due one of each", one, other)
		}
		a.leave()
		c.leave()
		// A subscription without credit does not keep a copy from others.
		a, c = t.enter("a"), t.enter("c")
		a.subscribe("o/#", modeMost, 0).is(answerAccepted)
		c.subscribe("o/p", modeMost, 3).is(answerAccepted)
		for _, m := range []string{"s1", "s2", "s3"} {
			p.publishOnce("o/p", m).is(answerAccepted)
			c.gets("o/p", m)
		}
		a.leave()
		c.leave()
		// More copies than a message may have.
		a, b, c = t.enter("a"), t.enter("b"), t.enter("c")
		for _, q := range []*party{a, b, c} {
			q.subscribe("o/p", modeMost, 1).is(answerAccepted)
		}
		a.subscribe("o/+", modeMost, 1).is(answerAccepted)
		b.subscribe("o/+", modeMost, 1).is(answerAccepted)
		p.publishOnce("o/p", "r1").is(answerAccepted)
		a.quietly(2)
		b.quietly(2)
		c.quietly(1)
		c.subscribe("o/+", modeMost, 1).is(answerAccepted)
		p.publishOnce("o/p", "r2").is(answerDeclined, because(causeLimit))
		p.publish("o/p", "r3").is(answerDeclined, because(causeMode))
		b.unsubscribe("o/p", modeMost).is(answerAccepted)
		b.subscribe("o/p", modeLeast, 1).is(answerAccepted)
		p.publish("o/p", "r4").is(answerAccepted)
		b.gets("o/p", "r4")
		b.ack("r4")
		a.leave()
		c.leave()
		b.unsubscribe("o/+", modeMost).is(answerAccepted)
		p.publishOnce("o/p", "r5").is(answerDeclined, because(causeMode))
		b.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 19, "declined": 7, "delivered": 30, "settled": 1}, "o", "o/p")
	}},
	{talks, "filters", "Filters match as in MQTT, for what is published and for what is stored already.", func(t *talk) {
		for i, c := range []struct {
			filter, topic string
			match         bool
		}{
			{"a", "a", true}, {"a", "b", false}, {"a", "a/b", false}, {"a/b", "a", false}, {"a/b", "a/b", true},
			{"a/#", "a", true}, {"a/#", "a/b", true}, {"a/#", "a/b/c", true}, {"a/#", "b", false}, {"a/#", "ab", false}, {"a/b/#", "a", false}, {"a/b/#", "a/b", true},
			{"a/+", "a/b", true}, {"a/+", "a/", true}, {"a/+", "a", false}, {"a/+", "a/b/c", false}, {"a/+/c", "a/b/c", true}, {"a/+/c", "a/b/d", false},
			{"+", "a", true}, {"+", "a/b", false}, {"+/b", "a/b", true}, {"+/+", "/b", true}, {"+/#", "a", true}, {"+/+/#", "a", false}, {"#", "a/b", true},
			{"#", "$a/b", false}, {"+/b", "$a/b", false}, {"$a/+", "$a/b", true}, {"$a/#", "$a/b", true}, {"$a/b", "$a/b", true}, {"a/+/#", "a", false}, {"a/+/#", "a/b", true},
		} {
			m, n := fmt.Sprintf("m%d", i), fmt.Sprintf("n%d", i)
			listener, k := t.enter(c.filter), t.keep(c.topic)
			c1 := listener
			c1.subscribe(c.filter, modeMost, 2).is(answerAccepted)
			if r := k.publishOnce(c.topic, m); c.match {
				r.is(answerAccepted)
				c1.gets(c.filter, m)
			} else {
				r.is(answerDeclined, because(causeMode))
			}
			k.publish(c.topic, n).is(answerAccepted)
			c1.unsubscribe(c.filter, modeMost).is(answerAccepted)
			c1.subscribe(c.filter, modeLeast, 1).is(answerAccepted)
			if c.match {
				c1.gets(c.filter, n)
			} else {
				c1.quiet()
				k.grant(c.topic, 1)
				k.gets(c.topic, n)
				c1 = k
			}
			c1.ack(n)
			listener.leave()
			k.leave()
			if t.over() {
				t.mention(fmt.Sprintf("filter %q, topic %q: ", c.filter, c.topic))
				return
			}
		}
		c := t.enter("c")
		for _, filter := range []string{"a/#/b", "#/a", "a+", "a/+b", "a/b#", "#a", "a/b+/c"} {
			c.subscribe(filter, modeLeast, 1).is(answerDeclined)
			c.subscribe(filter, modeMost, 1).is(answerDeclined)
		}
	}},
	{talks, "late", "Who comes late gets what is stored, of all topics that it matches, in the order in which it was stored.", func(t *talk) {
		k, p := t.keep("n/#"), t.enter("p")
		names := numbered(18)
		of := func(i int) string { return fmt.Sprintf("n/%d", i*i%5) }
		for i, m := range names {
			p.publish(of(i), m).is(answerAccepted)
		}
		one := t.enter("one")
		one.subscribe("n/4", modeLeast, 2).is(answerAccepted)
		one.gets("n/4", "m3", "m4") // the first two of that topic
		one.quiet()
		c := t.enter("c")
		c.subscribe("n/+", modeLeast, 1).is(answerAccepted)
		for _, m := range []string{"m1", "m2", "m5"} {
			c.gets("n/+", m)
			c.ack(m)
		}
		c.gets("n/+", "m6")
		one.leave() // the messages returned are older than those waiting
		k.quiet()
		c.ack("m6")
		c.getsAttempt("n/+", "m3", 2)
		c.ack("m3")
		c.getsAttempt("n/+", "m4", 2)
		c.ack("m4")
		for _, m := range names[6:] {
			c.gets("n/+", m)
			c.ack(m)
		}
		c.quiet()
		k.quiet()
	}},
	{talks, "repeats", "A publish under a known message ID is answered with its first result, whoever listens, and makes no second message.", func(t *talk) {
		t.level("e")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("e", modeLeast, 8).is(answerAccepted)
		b := t.business("b")
		p.publish("e", "m1", b).is(answerAccepted)
		c.gets("e", "m1")
		p.publish("e", "m1", b).is(answerAccepted, again)
		p.publish("e", "m1").is(answerDeclined, because(causeInvalid))
		c.ack("m1")
		p.publish("e", "m1", b).is(answerAccepted, again)
		p.publish("e", "m1").is(answerDeclined, because(causeInvalid))
		c.quiet()
		c.leave()
		p.publish("e", "m1", b).is(answerAccepted, again)
		p.publish("e", "m2", b).is(answerDeclined, because(causeNobody))
		p.leave()
		t.leveled(map[string]int{"accepted": 1, "declined": 1, "delivered": 1, "settled": 1}, "e")
	}},
	{talks, "nonsense", "What is not for the broker is answered with an Error, and after too much of it the session is closed; what it held goes to others.", func(t *talk) {
		t.level("j")
		a, b := t.enter("a"), t.enter("b")
		a.subscribe("j", modeLeast, 1).is(answerAccepted)
		b.publish("j", "m1").is(answerAccepted)
		a.gets("j", "m1")
		b.subscribe("j", modeLeast, 1).is(answerAccepted)
		for i := range tight.limits.Errors {
			a.quiet()
			a.answer(a.say(kindWelcome, "", text(tagClient, "a")), "Welcome").as(kindError)
			if i+1 < tight.limits.Errors {
				a.quiet()
			}
		}
		a.end()
		b.getsAttempt("j", "m1", 2)
		b.ack("m1")
		b.leave()
		t.leveled(map[string]int{"accepted": 1, "delivered": 2, "redelivered": 1, "settled": 1}, "j")
	}},
	{before, "kept", "Of each fate a message is left behind.", func(t *talk) {
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("h/#", modeLeast, 4).is(answerAccepted)
		for i, m := range numbered(4) {
			p.publish(fmt.Sprintf("h/%d", i), m, t.business(m)).is(answerAccepted)
		}
		c.gets("h/#", numbered(4)...)
		for i, m := range numbered(8)[4:] {
			p.sized(fmt.Sprintf("h/%d", i%2), m, 500+i, t.business(m), text(tagKey, m), headers("h", m)).is(answerAccepted)
		}
		c.ack("m2")
		c.gets("h/#", "m5")
		c.nacks("m3", dead, text(tagReason, "no")).is(answerAccepted)
		c.gets("h/#", "m6")
		c.nacks("m4", dead).is(answerAccepted)
		c.gets("h/#", "m7")
		c.admin("dlq.discard", "m4").is(answerAccepted)
		p.answer(p.say(kindPublish, "x", text(tagTopic, "h/none"), number(tagMode, modeLeast)), "Publish").is(answerAccepted)
	}},
	{after, "redriven-before-again", "That it was delivered since it was redriven is known after the restart.", func(t *talk) {
		t.remember("rb", "m1", len("payload of m1"), t.business("m1"), text(tagKey, "k"))
		c := t.enter("c")
		c.subscribe("rb", modeLeast, 1).is(answerAccepted)
		c.getsAttempt("rb", "m1", 2)
		c.ack("m1")
	}},
	{before, "waiting", "Of what is published at once, as much is handed out as there is credit of those who are there.", func(t *talk) {
		p, c, gone := t.enter("p"), t.enter("c"), t.enter("gone")
		c.subscribe("j", modeLeast, 1).is(answerAccepted)
		gone.subscribe("j", modeLeast, 4).is(answerAccepted)
		gone.leave()
		var asked []uint64
		for _, m := range numbered(4) {
			asked = append(asked, p.say(kindPublish, "payload of "+m, text(tagTopic, "j"), number(tagMode, modeLeast), text(tagMessage, t.id(m))))
		}
		for _, request := range asked {
			p.answer(request, "Publish").is(answerAccepted)
		}
		c.gets("j", "m1")
		c.quiet()
	}},
	{after, "waiting-again", "What only waited before the restart has used no attempt.", func(t *talk) {
		for _, m := range numbered(4) {
			t.remember("j", m, len("payload of ")+len(m))
		}
		c := t.enter("c")
		c.subscribe("j", modeLeast, 8).is(answerAccepted)
		c.getsAttempt("j", "m1", 2)
		c.gets("j", numbered(4)[1:]...)
		c.ack(numbered(4)...)
		c.leave()
	}},
	{after, "kept-again", "What was left behind before the restart is there: with its content, its place in the order, its attempts and its IDs.", func(t *talk) {
		for i, m := range numbered(4) {
			t.remember(fmt.Sprintf("h/%d", i), m, len("payload of ")+len(m), t.business(m))
		}
		for i, m := range numbered(8)[4:] {
			t.remember(fmt.Sprintf("h/%d", i%2), m, 500+i, t.business(m), text(tagKey, m), headers("h", m))
		}
		p, c := t.enter("p"), t.enter("c")
		p.lookup("m1").is(answerStored, text(tagMessage, t.id("m1")))
		p.lookup("m2").is(answerSettled, text(tagMessage, t.id("m2")))
		p.lookup("m3").is(answerDead, text(tagMessage, t.id("m3")), text(tagReason, "rejected by the consumer: no"))
		if r := p.lookup("m4"); r.number(tagAnswer) != answerSettled {
			r.is(answerForgotten, because(causeDiscarded))
		}
		p.lookup("nothing", ttl(time.Minute)).is(answerForgotten)
		for _, m := range numbered(8) {
			p.publish("h/0", m, t.business(m)).is(answerAccepted, again)
			p.publish("h/0", m, t.business("other")).is(answerDeclined, because(causeInvalid))
		}
		c.subscribe("h/1", modeLeast, 8).is(answerAccepted)
		c.getsAttempt("h/1", "m6", 2)
		c.gets("h/1", "m8")
		c.quiet()
		c.ack("m8", "m6")
		c.subscribe("h/#", modeLeast, 3).is(answerAccepted)
		c.getsAttempt("h/#", "m1", 2)
		c.getsAttempt("h/#", "m5", 2)
		c.getsAttempt("h/#", "m7", 2)
		c.quiet()
		c.ack("m1")
		given := c.next()
		given.as(kindDeliver, text(tagTopic, "h/none"))
		c.answer(c.say(kindAck, "", text(tagMessage, given.text(tagMessage))), "Ack").is(answerAccepted)
		p.answer(p.say(kindPublish, "x", text(tagTopic, "h/none"), number(tagMode, modeLeast)), "Publish").is(answerAccepted)
		next := c.next()
		if next.as(kindDeliver, text(tagTopic, "h/none")); next.text(tagMessage) == given.text(tagMessage) {
			t.deviates("the message ID %q is given twice", next.text(tagMessage))
		}
		c.answer(c.say(kindAck, "", text(tagMessage, next.text(tagMessage))), "Ack").is(answerAccepted)
		p.admin("dlq.redrive", "m3").is(answerAccepted)
		c.gets("h/#", "m3")
		c.ack("m5", "m7", "m3")
		c.quiet()
		for _, m := range []string{"m1", "m3", "m8"} {
			p.lookup(m).is(answerSettled)
		}
		c.leave()
		p.leave()
		if n := t.counters()["unsettled"]; n != 0 {
			t.deviates("%d messages are unsettled, and none is left", n)
		}
	}},
	{before, "redriven-before", "A dead letter is redriven, and delivered.", func(t *talk) {
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("rb", modeLeast, 1).is(answerAccepted)
		p.publish("rb", "m1", t.business("m1"), text(tagKey, "k")).is(answerAccepted)
		c.gets("rb", "m1")
		for attempt := range uint64(2) {
			c.nacks("m1", delay(time.Millisecond)).is(answerAccepted)
			c.getsAttempt("rb", "m1", attempt+2)
		}
		c.nacks("m1", dead).is(answerAccepted)
		p.admin("dlq.redrive", "m1").is(answerAccepted)
		c.gets("rb", "m1")
	}},
	{periods, "lives-not-longer", "A message that is given back lives no longer for it.", func(t *talk) {
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("fl", modeLeast, 4).is(answerAccepted)
		for i, m := range numbered(4) {
			p.publish("fl", m, t.business(m), ttl(2*time.Second+time.Duration(i)*250*time.Millisecond)).is(answerAccepted)
		}
		c.gets("fl", numbered(4)...)
		t.wait(time.Second)
		for i, m := range numbered(4) { // it is due just after its end, before or after a purge
			c.nacks(m, delay(1050*time.Millisecond+time.Duration(i)*250*time.Millisecond)).is(answerAccepted)
		}
		t.wait(3 * time.Second)
		c.quiet()
		for _, m := range numbered(4) {
			p.lookup(m).is(answerForgotten, because(causeExpired))
		}
	}},
	{periods, "unanswered", "A delivery without an answer ends when its time is up, and the message is redelivered until its attempts are used.", func(t *talk) {
		t.level("u")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("u", modeLeast, 1).is(answerAccepted)
		p.publish("u", "m1", t.business("m1")).is(answerAccepted)
		p.publish("u", "m2", t.business("m2"), ttl(time.Minute)).is(answerAccepted)
		c.gets("u", "m1")
		t.wait(tight.visibility - 100*time.Millisecond)
		c.quiet()
		t.wait(100 * time.Millisecond)
		c.getsAttempt("u", "m1", 2)
		c.acks("m1", number(tagAttempt, 1)).is(answerRefused)
		c.ack("m1")
		c.gets("u", "m2")
		for attempt := range uint64(tight.attempts) - 1 {
			t.wait(tight.visibility - 100*time.Millisecond)
			c.quiet()
			t.wait(100 * time.Millisecond)
			c.getsAttempt("u", "m2", attempt+2)
			p.publish("u", fmt.Sprint("n", attempt), ttl(time.Minute)).is(answerAccepted)
		}
		p.lookup("m2").is(answerStored)
		t.wait(tight.visibility)
		p.lookup("m2").is(answerDead, text(tagMessage, t.id("m2")))
		c.acks("m2").is(answerRefused)
		c.gets("u", "n0")
		c.ack("n0")
		c.gets("u", "n1")
		c.ack("n1")
		c.gets("u", "n2")
		c.ack("n2")
		c.quiet()
		p.admin("dlq.discard", "m2").is(answerAccepted)
		c.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 5, "delivered": 9, "redelivered": 4, "settled": 4, "deadLettered": 1}, "u")
	}},
	{periods, "delays", "A Nack is followed by a redelivery after its delay, or after a backoff that doubles up to its bound.", func(t *talk) {
		t.level("q")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("q", modeLeast, 1).is(answerAccepted)
		p.publish("q", "m1", t.business("m1")).is(answerAccepted)
		c.gets("q", "m1")
		c.nacks("m1", delay(time.Second)).is(answerAccepted)
		c.acks("m1").is(answerRefused)
		t.wait(900 * time.Millisecond)
		c.quiet()
		p.lookup("m1").is(answerStored)
		p.publish("q", "m2").is(answerAccepted) // the place is free again
		c.gets("q", "m2")
		c.ack("m2")
		t.wait(100 * time.Millisecond)
		c.getsAttempt("q", "m1", 2)
		for attempt, after := range []time.Duration{2 * tight.backoff, tight.slowest} {
			c.nacks("m1").is(answerAccepted)
			t.wait(after - 50*time.Millisecond)
			c.quiet()
			t.wait(50 * time.Millisecond)
			c.getsAttempt("q", "m1", uint64(attempt)+3)
		}
		c.nacks("m1", delay(time.Second), text(tagReason, "at last")).is(answerAccepted)
		p.lookup("m1").is(answerDead, text(tagReason, "4 attempts without an acknowledgement: at last"))
		p.publish("q", "m3").is(answerAccepted)
		c.gets("q", "m3")
		c.nacks("m3").is(answerAccepted)
		t.wait(tight.backoff - 50*time.Millisecond)
		c.quiet()
		t.wait(50 * time.Millisecond)
		c.getsAttempt("q", "m3", 2)
		c.ack("m3")
		p.admin("dlq.discard", "m1").is(answerAccepted)
		c.grant("q", 4)
		delays := map[string]time.Duration{"t1": 3000, "t2": 1000, "t3": 2000, "t4": 1500, "t5": 2500}
		for _, m := range []string{"t1", "t2", "t3", "t4", "t5"} {
			p.publish("q", m, ttl(time.Minute)).is(answerAccepted)
			c.gets("q", m)
			c.nacks(m, delay(delays[m]*time.Millisecond)).is(answerAccepted)
		}
		t.wait(900 * time.Millisecond)
		for _, m := range []string{"t2", "t4", "t3", "t5", "t1"} {
			c.quiet()
			t.wait(100 * time.Millisecond)
			c.getsAttempt("q", m, 2)
			c.ack(m)
			t.wait(365 * time.Millisecond)
		}
		t.wait(2 * tight.visibility)
		c.quiet()
		c.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 8, "delivered": 17, "redelivered": 9, "settled": 7, "deadLettered": 1}, "q")
	}},
	{periods, "lifetimes", "A message that has expired is delivered no more, whatever state it was in; a delivery that is open may still be answered.", func(t *talk) {
		const short = 2 * time.Second
		t.level("f")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("f", modeLeast, 0).is(answerAccepted)
		for _, m := range []string{"held", "waits", "given back", "delayed"} {
			p.publish("f", m, t.business(m), ttl(short)).is(answerAccepted)
		}
		p.publish("f", "long", t.business("long")).is(answerAccepted)
		p.publish("f", "longer", t.business("longer"), ttl(2*tight.ttl)).is(answerAccepted)
		c.grant("f", 1)
		c.gets("f", "held")
		t.wait(short - 200*time.Millisecond)
		p.lookup("waits").is(answerStored)
		c.grant("f", 1)
		c.gets("f", "waits")
		c.nacks("waits", delay(time.Minute)).is(answerAccepted)
		c.gets("f", "given back")
		t.wait(short) // and a purge
		p.lookup("held").is(answerStored)
		p.lookup("waits").is(answerForgotten, because(causeExpired), text(tagMessage, t.id("waits")))
		p.lookup("delayed").is(answerForgotten, because(causeExpired))
		p.publish("f", "waits", t.business("waits")).is(answerAccepted, again)
		c.quiet()
		c.nacks("given back", delay(time.Millisecond)).is(answerAccepted)
		c.gets("f", "long")
		c.ack("held")
		p.lookup("held").is(answerSettled)
		t.wait(tight.expiry)
		p.lookup("given back").is(answerForgotten, because(causeExpired))
		c.gets("f", "longer")
		c.nacks("long", delay(time.Minute)).is(answerAccepted)
		c.nacks("longer", delay(time.Minute)).is(answerAccepted)
		t.wait(tight.ttl - 5500*time.Millisecond)
		p.lookup("long").is(answerStored)
		t.wait(2 * tight.expiry)
		p.lookup("long").is(answerForgotten, because(causeExpired))
		p.lookup("longer").is(answerStored)
		t.wait(tight.ttl)
		p.lookup("longer").is(answerForgotten, because(causeExpired))
		// All at once.
		c.unsubscribe("f", modeLeast).is(answerAccepted)
		c.subscribe("f", modeLeast, 0).is(answerAccepted)
		n := tight.limits.Messages
		for _, m := range numbered(n) {
			p.publish("f", m, ttl(time.Second)).is(answerAccepted)
		}
		t.wait(time.Second)
		c.grant("f", 1) // before any purge
		c.quiet()
		t.wait(2 * tight.expiry)
		c.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 6 + n, "delivered": 5, "settled": 1, "expired": 5 + n}, "f")
	}},
	{periods, "memory-of-ids", "The ID of a finished message is known for its time and no longer; a dead letter's for as long as it is there.", func(t *talk) {
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("g", modeLeast, 8).is(answerAccepted)
		t.level()
		for _, m := range numbered(4) {
			p.publish("g", m, t.business(m), ttl(2*time.Second)).is(answerAccepted)
		}
		c.gets("g", numbered(4)...)
		c.ack("m1")
		c.nacks("m2", dead).is(answerAccepted)
		c.nacks("m3", dead).is(answerAccepted)
		c.nacks("m4", dead).is(answerAccepted)
		p.admin("dlq.discard", "m4").is(answerAccepted)
		t.wait(tight.memory - time.Second)
		p.lookup("m1").is(answerSettled)
		p.lookup("m4").is(answerForgotten, because(causeDiscarded))
		p.publish("g", "m1", t.business("m1")).is(answerAccepted, again)
		t.wait(4 * time.Second)
		p.lookup("m1", ttl(time.Minute)).is(answerForgotten)
		p.lookup("m4", ttl(time.Minute)).is(answerForgotten)
		p.lookup("nothing", ttl(10*time.Second)).is(answerNotSeen)
		p.lookup("m2").is(answerDead)
		c.quiet()
		p.publish("g", "m1", t.business("m1")).is(answerAccepted) // by now this is a different message
		c.gets("g", "m1")
		c.ack("m1")
		p.admin("dlq.redrive", "m2").is(answerAccepted) // its time to live is over, so it gets a new one
		c.gets("g", "m2")
		t.wait(tight.visibility)
		c.getsAttempt("g", "m2", 2)
		c.nacks("m2", delay(time.Minute)).is(answerAccepted)
		p.lookup("m2").is(answerStored)
		t.wait(tight.ttl)
		p.lookup("m2").is(answerForgotten, because(causeExpired))
		p.admin("dlq.redrive", "m3").is(answerAccepted)
		c.gets("g", "m3")
		c.ack("m3")
		c.quiet()
		t.counts(map[string]int{"accepted": 5, "delivered": 8, "redelivered": 1, "settled": 3, "deadLettered": 3, "expired": 1, "heldBytes": t.counters()["heldBytes"] - t.before["heldBytes"]})
	}},
	{refusedRows, "refused-rows", "A row of another protocol version, one that is damaged and one whose content is are known by name, hold their message IDs, and are no proof that others were never stored.", func(t *talk) {
		p := t.enter("p")
		for _, planted := range []struct{ what, businessID, listed string }{
			{"old", "order-7", "refused-version"}, {"damaged", "order-8", "damaged"}, {"damaged-content", "order-9", "pending"},
		} {
			id, businessID := text(tagMessage, plantedID(planted.what, planted.businessID)), text(tagBusiness, planted.businessID)
			p.answer(p.say(kindLookup, "", businessID), "Lookup of "+planted.businessID).is(answerStored, id)
			again := p.say(kindPublish, "x", text(tagTopic, "orders"), number(tagMode, modeLeast), id, businessID)
			p.answer(again, "Publish of "+planted.businessID).is(answerDeclined, because(causeInvalid))
			if !slices.ContainsFunc(t.page("rows", "").Rows, func(r broker.RowView) bool {
				return r.MessageID == id.value() && r.State == planted.listed
			}) {
				t.deviates("the row of %s is not listed as %s", planted.businessID, planted.listed)
			}
		}
		p.lookup("nothing", ttl(time.Minute)).is(answerForgotten)
		if now := t.counters(); now["refusedRows"] != 1 || now["damagedRows"] != 2 || now["unsettled"] != 0 {
			t.deviates("%d rows are counted as refused, %d as damaged and %d as unsettled, of 1, 2 and 0", now["refusedRows"], now["damagedRows"], now["unsettled"])
		}
	}},
	{deadLettersFail, "undead", "A dead letter that could not be stored as one yet is one, and is neither redriven nor discarded.", func(t *talk) {
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("b/1", modeLeast, 1).is(answerAccepted)
		p.publish("b/1", "m1", t.business("m1"), text(tagKey, "k")).is(answerAccepted)
		c.gets("b/1", "m1")
		c.nacks("m1", dead, text(tagReason, "no")).is(answerAccepted)
		t.wait(settling)
		for range 2 {
			p.lookup("m1").is(answerDead, text(tagMessage, t.id("m1")))
			p.admin("dlq.redrive", "m1").is(answerRefused)
			p.admin("dlq.discard", "m1").is(answerRefused)
			t.wait(retried)
		}
		p.publish("b/1", "m1", t.business("m1")).is(answerAccepted, again)
		c.quiet()
	}},
	{deadLettersMended, "undead-again", "It is stored as one when the store works, and may be redriven.", func(t *talk) {
		t.remember("b/1", "m1", len("payload of m1"), t.business("m1"), text(tagKey, "k"))
		t.wait(retried)
		p, c := t.enter("p"), t.enter("c")
		p.lookup("m1").is(answerDead, text(tagMessage, t.id("m1")))
		p.admin("dlq.redrive", "m1").is(answerAccepted)
		c.subscribe("b/1", modeLeast, 1).is(answerAccepted)
		c.gets("b/1", "m1")
		c.ack("m1")
		p.lookup("m1").is(answerSettled)
	}},
	{redrivesFail, "redriven", "A dead letter stays one when the store does not redrive or discard it.", func(t *talk) {
		t.level("b/2")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("b/2", modeLeast, 1).is(answerAccepted)
		for _, m := range numbered(2) {
			p.publish("b/2", m, t.business(m)).is(answerAccepted)
			c.gets("b/2", m)
			c.nacks(m, dead).is(answerAccepted)
		}
		t.wait(settling)
		for range 2 {
			p.admin("dlq.redrive", "m1").is(answerRejected)
			p.admin("dlq.discard", "m2").is(answerRejected)
			for _, m := range numbered(2) {
				p.lookup(m).is(answerDead, text(tagMessage, t.id(m)))
			}
		}
		c.quiet()
		c.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 2, "delivered": 2, "deadLettered": 2, "storeFailures": 4, "heldBytes": 2 * (messageShare + 2*len(t.id("m1")))}, "b/2")
	}},
	{redrivesMended, "redriven-again", "It is redriven when the store works.", func(t *talk) {
		t.remember("b/2", "m1", len("payload of m1"), t.business("m1"))
		t.remember("b/2", "m2", len("payload of m2"), t.business("m2"))
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("b/2", modeLeast, 1).is(answerAccepted)
		p.admin("dlq.redrive", "m1").is(answerAccepted)
		c.gets("b/2", "m1")
		c.ack("m1")
		p.admin("dlq.discard", "m2").is(answerAccepted)
		p.lookup("m2").is(answerForgotten, because(causeDiscarded))
		p.lookup("m1").is(answerSettled)
	}},
	{attemptsFail, "uncounted", "Without the store an attempt cannot be counted, and is not made.", func(t *talk) {
		k, p := t.keep("b/3"), t.enter("p")
		for _, m := range numbered(3) {
			p.publish("b/3", m, t.business(m)).is(answerAccepted)
		}
		k.grant("b/3", 2)
		for range 3 {
			k.quiet()
			p.lookup("m1").is(answerStored)
			t.wait(retried)
		}
		k.acks("m1").is(answerRefused)
		t.counts(map[string]int{"accepted": 3, "unsettled": 3, "sessions": 2, "subscriptions": 1,
			"heldBytes": t.counters()["heldBytes"] - t.before["heldBytes"]})
	}},
	{attemptsMended, "uncounted-again", "It is made when the store works, as the first.", func(t *talk) {
		for _, m := range numbered(3) {
			t.remember("b/3", m, len("payload of m1"), t.business(m))
		}
		t.wait(retried)
		c := t.enter("c")
		c.subscribe("b/3", modeLeast, 2).is(answerAccepted)
		c.gets("b/3", "m1", "m2")
		c.quiet()
		c.ack("m1")
		c.gets("b/3", "m3")
		c.ack("m3", "m2")
		if n := t.counters()["unsettled"]; n != 0 {
			t.deviates("%d messages are unsettled, and none is left", n)
		}
	}},
	{deletesFail, "undeleted", "A message that is acknowledged is settled, whether or not its row could be deleted.", func(t *talk) {
		t.level("b/4")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("b/4", modeLeast, 1).is(answerAccepted)
		p.publish("b/4", "m1", t.business("m1")).is(answerAccepted)
		c.gets("b/4", "m1")
		c.ack("m1")
		for range 2 {
			c.quiet()
			p.lookup("m1").is(answerSettled, text(tagMessage, t.id("m1")))
			p.publish("b/4", "m1", t.business("m1")).is(answerAccepted, again)
			c.acks("m1").is(answerRefused)
			t.wait(retried)
		}
		c.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 1, "delivered": 1, "settled": 1}, "b/4")
		if t.counters()["storeFailures"]-t.before["storeFailures"] < 2 {
			t.deviates("the delete was not tried again")
		}
	}},
	{confirmsFail, "unconfirmed", "An Ack that is confirmed after the delete is in doubt while the delete fails; the message is delivered no more.", func(t *talk) {
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("b/11", modeLeast, 1).is(answerAccepted)
		p.publish("b/11", "m1", t.business("m1")).is(answerAccepted)
		c.gets("b/11", "m1")
		c.acks("m1").is(answerUnknown, text(tagMessage, t.id("m1")))
		p.lookup("m1").is(answerSettled)
		c.acks("m1").is(answerRefused)
		c.quiet()
	}},
	{deletesMended, "undeleted-again", "Its row is deleted when the store works.", func(t *talk) {
		t.wait(retried)
		before := t.counters()["storeFailures"]
		t.wait(retried)
		if now := t.counters()["storeFailures"]; now != before {
			t.deviates("the store has failed %d times, and no fault is at work", now-before)
		}
		t.clerk.lookup("m1").is(answerSettled)
	}},
	{insertsFail, "unstored", "What the store did not take is rejected, and nothing is left of it.", func(t *talk) {
		t.level("b/5")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("b/5", modeLeast, 1).is(answerAccepted)
		t.wait(settling)
		n := tight.limits.PublishWindow + 1
		for range n {
			p.publish("b/5", "m1", t.business("m1"), ttl(time.Second)).is(answerRejected)
			p.lookup("m1", ttl(settling/4)).is(answerNotSeen)
		}
		c.quiet()
		c.leave()
		p.leave()
		t.leveled(map[string]int{"rejected": n, "storeFailures": n}, "b/5")
	}},
	{insertsInDoubt, "doubted", "What the store may have taken is in doubt until it has been deleted.", func(t *talk) {
		t.level("b/6")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("b/6", modeLeast, 1).is(answerAccepted)
		p.publish("b/6", "m1", t.business("m1")).is(answerUnknown)
		for range 2 {
			p.lookup("m1", ttl(settling/4)).is(answerUnknown, text(tagMessage, t.id("m1")))
			p.publish("b/6", "m1", t.business("m1")).is(answerUnknown, again)
			p.publish("b/6", "m1", t.business("m2")).is(answerDeclined, because(causeInvalid))
			c.quiet()
			t.wait(retried)
		}
		doubts := tight.limits.PublishWindow + 1
		for i := range doubts { // none of them keeps its place in the window
			p.publish("b/6", fmt.Sprintf("n%d", i+1), t.business(fmt.Sprintf("n%d", i+1))).is(answerUnknown)
		}
		t.counts(map[string]int{"unknown": 1 + doubts, "sessions": 2, "subscriptions": 1, "heldBytes": t.counters()["heldBytes"] - t.before["heldBytes"]})
	}},
	{insertsResolved, "doubted-again", "Afterwards it was never stored, and its ID is free.", func(t *talk) {
		t.remember("b/6", "m1", len("payload of m1"), t.business("m1"))
		t.wait(retried)
		p, c := t.enter("p"), t.enter("c")
		for _, m := range []string{"m1", "n1", "n5"} {
			p.lookup(m, ttl(settling/4)).is(answerNotSeen)
		}
		t.bare()
		c.subscribe("b/6", modeLeast, 1).is(answerAccepted)
		c.quiet()
		p.publish("b/6", "m1", t.business("m1")).is(answerAccepted)
		c.gets("b/6", "m1")
		c.ack("m1")
	}},
	{contentsFail, "unread", "Content that the store does not give back is waited for.", func(t *talk) {
		k, p := t.keep("b/7"), t.enter("p")
		for _, m := range inStore {
			p.sized("b/7", m.name, m.size, t.business(m.name)).is(answerAccepted)
		}
		k.grant("b/7", 1)
		k.gets("b/7", "m4") // the others cannot be read, but this one is in memory
		k.ack("m4")
		for range 2 {
			k.quiet()
			p.lookup("m1").is(answerStored)
			t.wait(retried)
		}
	}},
	{contentsMended, "unread-again", "It is delivered whole when the store works.", func(t *talk) {
		t.wait(retried)
		c := t.enter("c")
		c.subscribe("b/7", modeLeast, 8).is(answerAccepted)
		for _, m := range inStore[:3] {
			t.remember("b/7", m.name, m.size, t.business(m.name))
			c.gets("b/7", m.name)
			c.ack(m.name)
		}
		c.quiet()
	}},
	{insertsSlow, "on-the-way", "A publish on its way to the store takes a place of the window, is in doubt for a lookup, and answers with its repeats when it is stored.", func(t *talk) {
		t.level("b/8")
		p, c := t.enter("p"), t.enter("c")
		c.subscribe("b/8", modeLeast, 8).is(answerAccepted)
		begin := func(q *party, name string) uint64 {
			return q.say(kindPublish, string(payloadOf(name, 20)), text(tagTopic, "b/8"), number(tagMode, modeLeast), text(tagMessage, t.id(name)), t.business(name))
		}
		first := begin(p, "m1")
		p.lookup("m1").is(answerUnknown, text(tagMessage, t.id("m1")))
		again1 := begin(p, "m1")
		q := t.enter("q")
		again2 := begin(q, "m1")
		p.publish("b/8", "m1", t.business("m2")).is(answerDeclined, because(causeInvalid))
		two, three := begin(p, "m2"), begin(p, "m3")
		p.publish("b/8", "m4").is(answerDeclined, because(causeLimit))
		p.publish("b/8", "m1", t.business("m1")).is(answerUnknown)
		q.subscribe("b/8", modeMost, 1).is(answerAccepted)
		p.publishOnce("b/8", "copy").is(answerAccepted) // at most once does not need the store
		q.gets("b/8", "copy")
		gone := t.enter("gone")
		begin(gone, "m5")
		gone.quiet()
		gone.leave()
		p.answer(first, "Publish of m1").is(answerAccepted, text(tagMessage, t.id("m1")))
		p.answer(again1, "Publish of m1").is(answerAccepted, again)
		q.answer(again2, "Publish of m1").is(answerAccepted, again)
		p.answer(two, "Publish of m2").is(answerAccepted)
		p.answer(three, "Publish of m3").is(answerAccepted)
		c.gets("b/8", "m1", "m2", "m3", "m5")
		four := begin(p, "n1")
		p.quiet()
		c.unsubscribe("b/8", modeLeast).is(answerAccepted) // the presumed consumer has left
		p.answer(four, "Publish of n1").is(answerAccepted)
		c.subscribe("b/8", modeLeast, 8).is(answerAccepted)
		for _, m := range []string{"m1", "m2", "m3", "m5"} {
			c.getsAttempt("b/8", m, 2)
		}
		c.next() // n1: its first attempt or, because attempts are counted before they are made, its second
		c.ack("m1", "m2", "m3", "m5", "n1")
		c.quiet()
		c.leave()
		p.leave()
		q.leave()
		t.leveled(map[string]int{"accepted": 6, "declined": 1, "delivered": 10, "redelivered": 4, "settled": 5}, "b/8")
	}},
	{insertsSlow, "many-on-the-way", "What is on its way to the store counts for the limit of messages; a repeat gives its place in the window back.", func(t *talk) {
		c := t.enter("c")
		c.subscribe("b/12", modeLeast, 8).is(answerAccepted)
		begin := func(q *party, name string) uint64 {
			return q.say(kindPublish, string(payloadOf(name, 20)), text(tagTopic, "b/12"), number(tagMode, modeLeast), text(tagMessage, t.id(name)))
		}
		p := t.enter("p")
		of := begin(p, "m0")
		p.quiet() // it is on its way
		t.stores("m0")
		p.answer(of, "Publish of m0").is(answerAccepted)
		c.gets("b/12", "m0")
		c.ack("m0")
		one, again1, again2 := begin(p, "m1"), begin(p, "m1"), begin(p, "m1")
		p.answer(one, "Publish of m1").is(answerAccepted)
		p.answer(again1, "Publish of m1").is(answerAccepted, again)
		p.answer(again2, "Publish of m1").is(answerAccepted, again)
		c.gets("b/12", "m1")
		c.ack("m1")
		all := []*party{p}
		for len(all)*tight.limits.PublishWindow < tight.limits.Messages {
			all = append(all, t.enter("q"))
		}
		requests := map[*party][]uint64{}
		for i, q := range all {
			for j := range tight.limits.PublishWindow {
				requests[q] = append(requests[q], begin(q, fmt.Sprintf("n%d-%d", i, j)))
			}
			q.quiet()
		}
		last := t.enter("last")
		last.publish("b/12", "over").is(answerDeclined, because(causeLimit))
		for _, q := range all {
			for _, request := range requests[q] {
				q.answer(request, "Publish of one of many").is(answerAccepted)
			}
		}
		c.serves(tight.limits.Messages)
		c.quiet()
	}},
	{attemptsSlow, "on-hold", "A message whose attempt is on its way to the store is given back when its subscription ends, and is not delivered when it has expired.", func(t *talk) {
		t.level("b/9")
		k, p := t.keep("b/9"), t.enter("p")
		for _, m := range numbered(3) {
			p.sized("b/9", m, 1000, t.business(m)).is(answerAccepted)
		}
		k.grant("b/9", 2)
		k.acks("m1").is(answerRefused)
		p.lookup("m1").is(answerStored)
		k.unsubscribe("b/9", modeLeast).is(answerAccepted)
		k.subscribe("b/9", modeLeast, 3).is(answerAccepted)
		k.gets("b/9", "m1", "m2", "m3")
		k.ack("m1", "m2", "m3")
		k.unsubscribe("b/9", modeLeast).is(answerAccepted)
		k.subscribe("b/9", modeLeast, 0).is(answerAccepted)
		p.publish("b/9", "short", t.business("short"), ttl(500*time.Millisecond)).is(answerAccepted)
		p.publish("b/9", "long", t.business("long")).is(answerAccepted)
		k.grant("b/9", 1)
		t.wait(tight.expiry)
		k.gets("b/9", "long")
		k.ack("long")
		k.quiet()
		p.lookup("short").is(answerForgotten, because(causeExpired))
		// The content of messages about to be delivered stays in memory.
		k.unsubscribe("b/9", modeLeast).is(answerAccepted)
		k.subscribe("b/9", modeLeast, 0).is(answerAccepted)
		p.sized("b/9", "big1", 2500).is(answerAccepted)
		k.grant("b/9", 1)
		p.sized("b/9", "big2", 9000).is(answerAccepted)
		p.sized("b/9", "big3", 9000).is(answerAccepted)
		for _, m := range []string{"big1", "big2", "big3"} {
			k.gets("b/9", m)
			k.ack(m)
		}
		k.leave()
		p.leave()
		t.leveled(map[string]int{"accepted": 8, "delivered": 7, "settled": 7, "expired": 1}, "b/9")
	}},
	{contentsSlow, "head-expires", "Who waits behind a message whose content is being read when it expires is served at once.", func(t *talk) {
		k, p := t.keep("b/13"), t.enter("p")
		p.sized("b/13", "short", 12000, t.business("short"), ttl(2*time.Second)).is(answerAccepted)
		p.sized("b/13", "here", 12000, t.business("here"), ttl(time.Minute)).is(answerAccepted) // the content of the other is left to the store
		t.wait(time.Second)
		k.grant("b/13", 2)
		t.wait(time.Second + tight.expiry + 100*time.Millisecond)
		k.answer(k.say(kindPing, ""), "Ping").as(kindPong)
		if len(k.here) != 1 {
			t.deviates("%d deliveries have come, and one is due: of what stood behind the message that has expired", len(k.here))
		}
		k.gets("b/13", "here")
		k.ack("here")
		k.quiet()
	}},
	{contentsSlow, "no-room-to-read", "Content for which there is no room is not read before another has been delivered; a message that waits for it goes to another when its subscription ends.", func(t *talk) {
		k, p, w := t.keep("b/14"), t.enter("p"), t.keep("b/15")
		p.sized("b/14", "first", 12000, ttl(time.Minute)).is(answerAccepted)
		p.sized("b/15", "second", 12000, ttl(time.Minute)).is(answerAccepted)
		p.sized("b/14", "third", 12000, ttl(time.Minute)).is(answerAccepted) // the content of the others is left to the store
		k.grant("b/14", 1)
		w.grant("b/15", 1)
		w.unsubscribe("b/15", modeLeast).is(answerAccepted)
		w.subscribe("b/15", modeLeast, 0).is(answerAccepted)
		t.wait(3*time.Second + retried)
		if held := t.counters()["heldBytes"]; held > int(tight.limits.Memory) {
			t.deviates("%d bytes are held, and may be %d", held, tight.limits.Memory)
		}
		k.gets("b/14", "first")
		k.ack("first")
		w.grant("b/15", 1)
		w.gets("b/15", "second")
		w.ack("second")
		k.gets("b/14", "third")
		k.ack("third")
		k.quiet()
		w.quiet()
	}},
	{contentsSlow, "being-read", "A message whose content is being read expires too, or goes to another when its subscription ends; who waits behind it is served.", func(t *talk) {
		k, p := t.keep("b/10"), t.enter("p")
		for i, m := range inStore {
			life := time.Minute
			if i < 2 {
				life = 2 * time.Second
			}
			p.sized("b/10", m.name, m.size, t.business(m.name), ttl(life)).is(answerAccepted)
		}
		t.wait(time.Second)
		k.grant("b/10", 2) // m1 is read; there is no room for m2
		t.wait(2*time.Second + tight.expiry)
		p.lookup("m1").is(answerForgotten, because(causeExpired))
		p.lookup("m2").is(answerForgotten, because(causeExpired))
		k.unsubscribe("b/10", modeLeast).is(answerAccepted) // m3 is being read
		c := t.enter("c")
		c.subscribe("b/10", modeLeast, 8).is(answerAccepted)
		for _, m := range inStore[2:] {
			c.gets("b/10", m.name)
			c.ack(m.name)
		}
		k.quiet()
		c.quiet()
	}},
}

// here returns the message that a party received last.
func (t *talk) here(p *party) string { return p.latest }

// mention prefixes a deviation with where it was seen.
func (t *talk) mention(where string) {
	if t.off != nil {
		t.off.Reason = where + t.off.Reason
	}
}

// quietly counts the deliveries that have arrived once no more do, and requires
// this number; -1 accepts any.
func (p *party) quietly(want int) (n int) {
	p.answer(p.say(kindPing, ""), "Ping").as(kindPong)
	_ = p.world.Rest(p.ctx, settling)
	p.answer(p.say(kindPing, ""), "Ping").as(kindPong)
	n, p.here = len(p.here), nil
	if want >= 0 && n != want {
		p.deviates("%s: %d deliveries came, and %d are due", p.name, n, want)
	}
	return n
}

// Approximate costs in the memory budget. PROTOCOL.md promises only that memory
// is bounded; these constants serve to check that nothing is counted twice or
// never released.
const (
	messageShare = 400
	topicShare   = 320
	matched      = 64
)

func subscribed(filter, group string) int { return 512 + 2*len(filter) + len(group) }
