package zeromq

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// nowhere is a message ID that does not exist.
const nowhere = "probe-of-nothing"

// least returns the fields of a valid at-least-once publish. With a business ID,
// a row that it leaves behind can be noticed.
func least(topic string, more ...field) []field {
	var f []field
	if topic != "" {
		f = append(f, text(tagTopic, topic))
	}
	return append(append(f, number(tagMode, modeLeast), text(tagBusiness, "probe-refused")), more...)
}

// declined is a publish that a healthy broker declines for this cause.
func declined(name, what string, cause evidence.Cause, fields ...field) probe {
	p := within(requests, name, what, evidence.ProbeRefused, expected{kind: kindPublishReply, request: asked, answer: answerDeclined}, message(publishes(fields...), nil))
	p.Cause = cause
	return p
}

// answered is a request with one reply of its own kind.
func answered(name, what string, wants evidence.ProbeOutcome, kind byte, answer uint64, fields ...field) probe {
	return within(requests, name, what, wants, expected{kind: kind + 1, request: asked, answer: answer}, message(head(kind, asked, fields...), nil))
}

var impossible = []probe{
	declined("publish-no-topic", "A publish without a topic.", evidence.CauseInvalid, least("")...),
	declined("publish-plus", "A publish to a topic with +.", evidence.CauseInvalid, least("a/+")...),
	declined("publish-hash", "A publish to a topic with #.", evidence.CauseInvalid, least("#")...),
	declined("publish-no-mode", "A publish without a mode.", evidence.CauseInvalid, text(tagTopic, place), text(tagBusiness, "probe-refused")),
	declined("publish-ttl-negative", "A publish that has expired before it was made.", evidence.CauseInvalid, least(place, milliseconds(tagTTL, -1))...),
	declined("publish-ttl-over", "A publish with a time to live of more than ten years.", evidence.CauseInvalid, least(place, milliseconds(tagTTL, tenYears+1))...),
	declined("publish-ttl-longest", "A publish with the longest time to live that can be said.", evidence.CauseInvalid, least(place, milliseconds(tagTTL, longest))...),
	declined("publish-ttl-least", "A publish that has expired as long ago as can be said.", evidence.CauseInvalid, least(place, milliseconds(tagTTL, -longest))...),
	declined("publish-nobody", "A publish to a topic that nobody listens to.", evidence.CauseNoConsumer, least(place)...),
	declined("publish-nobody-at-most-once", "An at-most-once publish to a topic that nobody listens to.", evidence.CauseNoConsumer, once()...),
	within(requests, "publish-request-zero", "A publish without a request number.", evidence.ProbeRefused,
		expected{kind: kindPublishReply, answer: answerDeclined}, message(head(kindPublish, 0, least(place)...), nil)).because(evidence.CauseInvalid),
	listed(requests, "publish-other-mode", "An at-least-once publish where only an at-most-once subscription matches.", evidence.ProbeRefused, func(a *attempt) (systems.Probed, error) {
		if err := a.subscribed(modeMost, 1); err != nil {
			return systems.Probed{}, err
		}
		return a.asks(message(publishes(least(place)...), nil), expected{kind: kindPublishReply, request: asked, answer: answerDeclined}), nil
	}).because(evidence.CauseMode),
	listed(requests, "publish-out-of-credit", "An at-most-once publish where the only subscription has no credit left.", evidence.ProbeRefused, func(a *attempt) (systems.Probed, error) {
		if err := a.subscribed(modeMost, 1); err != nil {
			return systems.Probed{}, err
		}
		a.write(message(head(kindPublish, askedHello, once()...), nil)) // uses up the credit
		for range 2 {
			if h, err := a.hear(); err != nil || h.kind != kindDeliver && h.number(tagAnswer) != answerAccepted {
				return came(evidence.ProbeMisanswered, "the publish before it: %s, %v", h, err), nil
			}
		}
		return a.asks(message(publishes(once()...), nil), expected{kind: kindPublishReply, request: asked, answer: answerDeclined}), nil
	}).because(evidence.CauseNoConsumer),
	listed(requests, "group-shares", "An at-most-once publish where two subscriptions of one group match: one of them gets it.", evidence.ProbeAccepted, func(a *attempt) (systems.Probed, error) {
		if err := a.enter(); err != nil {
			return systems.Probed{}, err
		}
		for i, filter := range []string{place, place + "/#"} { // the second pattern matches both
			a.write(message(head(kindSubscribe, askedSubscribe+uint64(i), text(tagTopic, filter), text(tagGroup, "probes"), number(tagMode, modeMost), number(tagCredit, 9)), nil))
			if _, err := a.until(kindSubscribe + 1); err != nil {
				return systems.Probed{}, err
			}
		}
		say := message(publishes(once()...), nil)
		a.write(append(say, message(head(kindPing, askedPing), nil)...))
		copies := 0
		for {
			h, err := a.hear()
			switch {
			case err != nil:
				return broken(err), nil
			case h.kind == kindDeliver:
				copies++
			case h.kind == kindPublishReply && h.number(tagAnswer) != answerAccepted:
				return judgedBy(h, expected{kind: kindPublishReply, request: asked}), nil
			case h.kind == kindPong && copies != 1:
				return came(evidence.ProbeMisanswered, "%d copies came", copies), nil
			case h.kind == kindPong:
				return came(evidence.ProbeAccepted, "one copy came"), nil
			}
		}
	}),
	listed(requests, "filter-parent", "A publish to the topic below which a subscription takes all: it gets that too.", evidence.ProbeAccepted, func(a *attempt) (systems.Probed, error) {
		if err := a.listens(place+"/#", modeMost, 1); err != nil {
			return systems.Probed{}, err
		}
		a.write(message(publishes(once()...), nil))
		h, err := a.hear()
		if err != nil {
			return broken(err), nil
		}
		if h.kind != kindDeliver {
			return judgedBy(h, expected{kind: kindPublishReply, request: asked}), nil
		}
		return came(evidence.ProbeAccepted, "it came"), nil
	}),
	listed(requests, "id-of-another", "A publish under the message ID of another business ID.", evidence.ProbeRefused, func(a *attempt) (systems.Probed, error) {
		if err := a.subscribed(modeLeast, 1); err != nil {
			return systems.Probed{}, err
		}
		a.write(message(head(kindPublish, series, text(tagTopic, place), number(tagMode, modeLeast), text(tagMessage, "probe-id")), nil))
		if _, err := a.until(kindDeliver); err != nil {
			return systems.Probed{}, err
		}
		if err := a.acknowledged("probe-id"); err != nil {
			return systems.Probed{}, err
		}
		return a.asks(message(publishes(text(tagTopic, place), number(tagMode, modeLeast), text(tagBusiness, "probe-refused"), text(tagMessage, "probe-id")), nil), expected{kind: kindPublishReply, request: asked, answer: answerDeclined}), nil
	}).because(evidence.CauseInvalid),
	answered("ack-of-nothing", "An Ack of a message that does not exist.", evidence.ProbeRefused, kindAck, answerRefused, text(tagMessage, nowhere)),
	answered("nack-of-nothing", "A Nack of a message that does not exist.", evidence.ProbeRefused, kindNack, answerRefused, text(tagMessage, nowhere)),
	answered("ack-without-id", "An Ack without a message ID.", evidence.ProbeRefused, kindAck, answerRefused),
	listed(requests, "nack-delay", "A Nack with a delay: the message does not come back before.", evidence.ProbeAccepted, delayed),
	listed(requests, "nack-delay-negative", "A Nack with a negative delay: it is refused, and the message is still held.", evidence.ProbeRefused, func(a *attempt) (systems.Probed, error) {
		if err := a.subscribed(modeLeast, 1); err != nil {
			return systems.Probed{}, err
		}
		id, err := a.handed()
		if err != nil {
			return systems.Probed{}, err
		}
		got := a.asks(message(head(kindNack, asked, text(tagMessage, id), milliseconds(tagDelay, -1)), nil), expected{kind: kindNack + 1, request: asked, answer: answerRefused})
		return got, a.acknowledged(id)
	}),
	answered("unsubscribe-of-nothing", "An Unsubscribe of what is not subscribed.", evidence.ProbeRefused, kindUnsubscribe, answerRefused, text(tagTopic, place), number(tagMode, modeLeast)),
	answered("subscribe-no-topic", "A Subscribe without a topic filter.", evidence.ProbeRefused, kindSubscribe, answerDeclined, number(tagMode, modeMost)),
	answered("subscribe-no-mode", "A Subscribe without a mode.", evidence.ProbeRefused, kindSubscribe, answerDeclined, text(tagTopic, place)),
	answered("subscribe-bad-filter", "A Subscribe to a filter with # in the middle.", evidence.ProbeRefused, kindSubscribe, answerDeclined, text(tagTopic, "a/#/b"), number(tagMode, modeMost)),
	answered("subscribe-credit-over", "A Subscribe with more credit than the broker gives.", evidence.ProbeRefused, kindSubscribe, answerDeclined, text(tagTopic, place), number(tagMode, modeMost), number(tagCredit, 64<<10+1)),
	listed(requests, "subscribe-twice", "A Subscribe to what is subscribed.", evidence.ProbeRefused, func(a *attempt) (systems.Probed, error) {
		if err := a.subscribed(modeMost, 1); err != nil {
			return systems.Probed{}, err
		}
		return a.asks(message(head(kindSubscribe, asked, text(tagTopic, place), number(tagMode, modeMost)), nil), expected{kind: kindSubscribe + 1, request: asked, answer: answerDeclined}), nil
	}),
	answered("lookup-not-seen", "A Lookup, with its age, of a business ID that was never published.", evidence.ProbeAnswered, kindLookup, answerNotSeen, text(tagBusiness, nowhere), milliseconds(tagTTL, 1000)),
	answered("lookup-without-age", "A Lookup without its age: absence proves nothing.", evidence.ProbeAnswered, kindLookup, answerForgotten, text(tagBusiness, nowhere)),
	answered("lookup-too-old", "A Lookup of what is older than the broker remembers: absence proves nothing.", evidence.ProbeAnswered, kindLookup, answerForgotten, text(tagBusiness, nowhere), milliseconds(tagTTL, 7*24*3600*1000)),
	answered("lookup-without-id", "A Lookup without a business ID.", evidence.ProbeRefused, kindLookup, answerRefused),
	answered("redrive-of-nothing", "A redrive of a message that is no dead letter.", evidence.ProbeRefused, kindAdmin, answerRefused, text(tagTopic, "dlq.redrive"), text(tagMessage, nowhere)),
	answered("discard-of-nothing", "A discard of a message that is no dead letter.", evidence.ProbeRefused, kindAdmin, answerRefused, text(tagTopic, "dlq.discard"), text(tagMessage, nowhere)),
	answered("show-of-nothing", "A look at a message that is no dead letter.", evidence.ProbeRefused, kindAdmin, answerRefused, text(tagTopic, "dlq.show"), text(tagMessage, nowhere)),
	answered("redrive-without-id", "A redrive without a message ID.", evidence.ProbeRefused, kindAdmin, answerRefused, text(tagTopic, "dlq.redrive")),
	listed(requests, "redrive-twice", "A dead letter is redriven twice at once: it comes back, and the second is refused.", evidence.ProbeRefused, func(a *attempt) (systems.Probed, error) {
		id, err := a.buried()
		if err != nil {
			return systems.Probed{}, err
		}
		say := message(head(kindAdmin, asked, text(tagTopic, "dlq.redrive"), text(tagMessage, id)), nil)
		a.write(append(say, message(head(kindAdmin, asked+1, text(tagTopic, "dlq.redrive"), text(tagMessage, id)), nil)...))
		var answers []heard
		redelivered := false
		for len(answers) < 2 || !redelivered {
			h, err := a.hear()
			switch {
			case err != nil:
				return broken(err), nil
			case h.kind == kindDeliver:
				redelivered = true
			case h.kind == kindAdmin+1:
				answers = append(answers, h)
			case h.kind != kindPing && h.kind != kindPublishReply: // of the dead letter
				return came(evidence.ProbeMisanswered, "%s", h), nil
			}
		}
		if one, two := answers[0].number(tagAnswer), answers[1].number(tagAnswer); min(one, two) != answerAccepted || max(one, two) != answerRefused {
			return came(evidence.ProbeMisanswered, "%s; %s", answers[0], answers[1]), nil
		}
		return came(evidence.ProbeRefused, "%s; %s", answers[0], answers[1]), a.acknowledged(id)
	}),
	listed(requests, "stats-count", "The counters count a message that is accepted, delivered and settled.", evidence.ProbeAccepted, func(a *attempt) (systems.Probed, error) {
		if err := a.subscribed(modeLeast, 1); err != nil {
			return systems.Probed{}, err
		}
		before, err := a.stats(asked)
		if err != nil {
			return systems.Probed{}, err
		}
		id, err := a.handed()
		if err == nil {
			err = a.acknowledged(id)
		}
		if err != nil {
			return systems.Probed{}, err
		}
		after, err := a.stats(asked + 1)
		if err != nil {
			return systems.Probed{}, err
		}
		for _, counter := range []string{"accepted", "delivered", "settled"} {
			if after[counter] <= before[counter] {
				return came(evidence.ProbeMisanswered, "%s was %d, and is %d", counter, before[counter], after[counter]), nil
			}
		}
		return came(evidence.ProbeAccepted, "each is higher"), nil
	}),
	listed(idle, "nothing-unsettled", "When every message is settled, the counters say so.", evidence.ProbeAccepted, func(a *attempt) (systems.Probed, error) {
		if err := a.enter(); err != nil {
			return systems.Probed{}, err
		}
		counters, err := a.stats(asked)
		if err != nil {
			return systems.Probed{}, err
		}
		if n, ok := counters["unsettled"]; !ok || n != 0 {
			return came(evidence.ProbeMisanswered, "unsettled is %d", n), nil
		}
		return came(evidence.ProbeAccepted, "unsettled is 0"), nil
	}),
	answered("command-unknown", "A command that does not exist.", evidence.ProbeRefused, kindAdmin, answerRefused, text(tagTopic, "dlq.burn")),
	answered("stats", "The counters.", evidence.ProbeAccepted, kindAdmin, answerAccepted, text(tagTopic, "stats")),
}

// delayed rejects a message with a delay longer than the broker's own backoff.
func delayed(a *attempt) (systems.Probed, error) {
	if err := a.subscribed(modeLeast, 1); err != nil {
		return systems.Probed{}, err
	}
	id, err := a.handed()
	if err != nil {
		return systems.Probed{}, err
	}
	delay := a.in.profile.period(2 * backoffMax)
	began := time.Now()
	a.write(message(head(kindNack, asked, text(tagMessage, id), milliseconds(tagDelay, delay.Milliseconds())), nil))
	if h, err := a.until(kindNack + 1); err != nil || h.number(tagAnswer) != answerAccepted {
		return systems.Probed{}, fmt.Errorf("zeromq: probe: a Nack was answered with %s: %w", h, err)
	}
	if _, err := a.until(kindDeliver); err != nil {
		return broken(err), nil
	}
	if after := time.Since(began); after < delay-time.Millisecond {
		return came(evidence.ProbeMisanswered, "it came back after %v, not %v", after, delay), nil
	}
	return came(evidence.ProbeAccepted, "it came back after %v", delay), a.acknowledged(id)
}

func (p probe) because(c evidence.Cause) probe {
	p.Cause = c
	return p
}

// subscribed opens a session and subscribes to the probes' topic.
func (a *attempt) subscribed(mode, credit uint64) error {
	return a.listens(place, mode, credit)
}

func (a *attempt) listens(topic string, mode, credit uint64) error {
	if err := a.enter(); err != nil {
		return err
	}
	a.write(message(head(kindSubscribe, askedSubscribe, text(tagTopic, topic), number(tagMode, mode), number(tagCredit, credit)), nil))
	h, err := a.hear()
	if err == nil && h.number(tagAnswer) != answerAccepted {
		err = fmt.Errorf("the broker answered a subscription with %s", h)
	}
	if err != nil {
		return fmt.Errorf("zeromq: probe: %w", err)
	}
	return nil
}

// until reads up to the next message of this kind, skipping only Pings.
func (a *attempt) until(kind byte) (heard, error) {
	for {
		h, err := a.hear()
		if err != nil {
			return h, fmt.Errorf("zeromq: probe: waiting for kind %d: %w", kind, err)
		}
		if h.kind == kind {
			return h, nil
		}
	}
}

// handed publishes to the probe's own subscription and returns the delivery's
// message ID.
func (a *attempt) handed() (id string, err error) {
	a.write(message(head(kindPublish, series, text(tagTopic, place), number(tagMode, modeLeast)), nil))
	h, err := a.until(kindDeliver)
	return h.text(tagMessage), err
}

func (a *attempt) acknowledged(id string) error {
	a.write(message(head(kindAck, acks, text(tagMessage, id)), nil))
	h, err := a.until(kindAck + 1)
	if err == nil && h.number(tagAnswer) != answerAccepted {
		err = fmt.Errorf("zeromq: probe: an Ack was answered with %s", h)
	}
	return err
}

// buried publishes a message and makes it a dead letter.
func (a *attempt) buried() (id string, err error) {
	if err := a.subscribed(modeLeast, 1); err != nil {
		return "", err
	}
	if id, err = a.handed(); err != nil {
		return "", err
	}
	a.write(message(head(kindNack, acks-1, text(tagMessage, id), number(tagDead, 1), text(tagReason, "a probe")), nil))
	_, err = a.until(kindNack + 1)
	return id, err
}

func countersOf(payload []byte) (counters map[string]int, err error) {
	err = json.Unmarshal(payload, &counters)
	return counters, err
}

// stats reads the broker's counters.
func (a *attempt) stats(request uint64) (counters map[string]int, err error) {
	a.write(message(head(kindAdmin, request, text(tagTopic, "stats")), nil))
	h, err := a.until(kindAdmin + 1)
	if err == nil {
		counters, err = countersOf(h.payload)
	}
	if err != nil {
		return nil, fmt.Errorf("zeromq: probe: stats: %w", err)
	}
	return counters, nil
}
