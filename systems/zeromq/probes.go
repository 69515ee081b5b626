package zeromq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

var _ systems.Prober = (*instance)(nil)

// probe is one entry of the tables below.
type probe struct {
	systems.Probe
	try func(*attempt) (systems.Probed, error)
}

// Probes of the broker. Those of kind "window" assume slow inserts: see
// stalled.
func (in *instance) Probes() []systems.Probe {
	all := probes()
	list := make([]systems.Probe, len(all))
	for i := range all {
		list[i] = all[i].Probe
	}
	if in.path() == "" { // they are about files
		list = slices.DeleteFunc(list, func(p systems.Probe) bool { return p.Kind == storage })
	}
	if in.profile.history || in.profile.FlushPolicy() == store.FlushNever { // rows of probes are of no publish of the run, or end with the broker
		list = slices.DeleteFunc(list, func(p systems.Probe) bool { return p.Kind == stopping })
	}
	return append(list, slices.DeleteFunc(in.profile.Dialogues(), func(p systems.Probe) bool { return virtual[p.Kind] })...)
}

// Probe runs one probe on connections of its own, bypassing all links.
func (in *instance) Probe(ctx context.Context, name string) (systems.Probed, error) {
	for _, p := range probes() {
		if p.Name == name {
			return (&attempt{ctx: ctx, in: in, probe: p}).make()
		}
	}
	return in.converse(ctx, name)
}

// Kinds of probes.
const (
	strangers = "strangers" // authentication and malformed messages
	limits    = "limits"    // each limit exactly and exceeded by one
	requests  = "requests"  // well-formed but impossible requests
	window    = "window"    // bounds reached while the store is slow
	idle      = "idle"      // invariants once every message is settled
)

func probes() []probe {
	var all []probe
	for _, table := range [][]probe{handshakes, malformed, lengths, posings, impossible, bounds, flows, permitting, stops, keepings, alterations, flips, twins} {
		all = append(all, table...)
	}
	return all
}

// attempt is one probe in progress.
type attempt struct {
	ctx   context.Context
	in    *instance
	probe probe
	*peer
}

func (a *attempt) make() (systems.Probed, error) {
	var err error
	if a.peer, err = connect(a.ctx, a.in.address); err != nil {
		return systems.Probed{}, err
	}
	defer a.nc.Close()
	if a.probe.Kind != limits && a.probe.Kind != strangers { // the others do without the client library
		return a.probe.try(a)
	}
	var got systems.Probed
	var failed error
	if stuck := begun(a.ctx, func() error { got, failed = a.probe.try(a); return nil })(); stuck != nil {
		return came(evidence.ProbeUnanswered, "%v", stuck), nil
	}
	return got, failed
}

// came is the outcome of a probe and what was received.
func came(o evidence.ProbeOutcome, format string, args ...any) systems.Probed {
	return systems.Probed{Outcome: o, Reason: fmt.Sprintf(format, args...)}
}

// broken is the outcome when the connection is lost.
func broken(err error) systems.Probed {
	var timeout net.Error
	switch {
	case errors.Is(err, errNotOurs):
		return came(evidence.ProbeMisanswered, "%v", err)
	case errors.Is(err, net.ErrClosed), errors.As(err, &timeout) && timeout.Timeout():
		return came(evidence.ProbeUnanswered, "no answer within the bound")
	}
	return came(evidence.ProbeEnded, "the broker ended the session")
}

// Request numbers used by probes.
const (
	askedHello     = 1
	askedSubscribe = 2
	asked          = 7
	askedPing      = 9
)

func (a *attempt) hello() []byte {
	return message(head(kindHello, askedHello, text(tagClient, "stranger"), text(tagToken, a.in.token)), nil)
}

// enter opens a session.
func (a *attempt) enter() error {
	if err := a.greet("DEALER"); err != nil {
		return err
	}
	a.write(a.hello())
	h, err := a.hear()
	if err == nil && h.kind != kindWelcome {
		err = fmt.Errorf("the broker answered a correct Hello with %s", h)
	}
	if err != nil {
		return fmt.Errorf("zeromq: probe: %w", err)
	}
	return nil
}

// untilEnd reads until the broker closes the connection; the last message is
// the reason.
func (a *attempt) untilEnd() systems.Probed {
	said := ""
	for {
		h, err := a.hear()
		if err != nil {
			got := broken(err)
			got.Reason += said
			return got
		}
		if h.kind != kindPing {
			said += "; it said " + h.String()
		}
		if h.kind == kindWelcome {
			return came(evidence.ProbeAccepted, "the broker let it in")
		}
	}
}

// expected is the only valid answer; kind 0 expects none.
type expected struct {
	kind    byte   // of the answer
	request uint64 // that the answer carries
	answer  uint64 // the only valid one; 0 is any
}

// asks sends one message in a session and checks that it gets exactly the
// expected answer and that the session stays open.
func (a *attempt) asks(say []byte, want expected) systems.Probed {
	a.write(say)
	var answer *heard
	got := systems.Probed{Outcome: evidence.ProbeIgnored}
	pinged := false
	ping := func() {
		if !pinged {
			pinged = true
			a.write(message(head(kindPing, askedPing), nil))
		}
	}
	if want.kind == 0 {
		ping()
	}
	for {
		h, err := a.hear()
		switch {
		case err != nil:
			end := broken(err)
			if answer != nil {
				end.Reason += "; it said " + answer.String()
			}
			return end
		case h.kind == kindPing:
		case h.kind == kindPong && h.request == askedPing:
			return got
		case answer != nil:
			return came(evidence.ProbeMisanswered, "a second answer: %s, after %s", h, *answer)
		default:
			answer = &h
			if got = judgedBy(h, want); got.Outcome == evidence.ProbeMisanswered {
				return got
			}
			ping() // shows that the session is open and nothing else was sent
		}
	}
}

var outcomes = map[uint64]evidence.ProbeOutcome{answerAccepted: evidence.ProbeAccepted, answerDeclined: evidence.ProbeRefused, answerUnknown: evidence.ProbeInDoubt, answerRefused: evidence.ProbeRefused}

// judgedBy classifies one answer.
func judgedBy(h heard, want expected) systems.Probed {
	said := h.number(tagAnswer)
	switch {
	case h.kind != want.kind, h.request != want.request, want.answer > 0 && said != want.answer:
		return came(evidence.ProbeMisanswered, "%s, where kind %d for request %d was due", h, want.kind, want.request)
	case h.kind == kindError:
		return came(evidence.ProbeRefused, "%s", h.text(tagReason))
	}
	o, ok := outcomes[said]
	if !ok {
		o = evidence.ProbeAnswered
	}
	got := came(o, "%s", h)
	got.Cause = causes[wire.Cause(h.number(tagCause))]
	return got
}

// Constructors of probes.

func listed(kind, name, text string, wants evidence.ProbeOutcome, try func(*attempt) (systems.Probed, error)) probe {
	return probe{Probe: systems.Probe{Kind: kind, Name: name, Text: text, Wants: wants}, try: try}
}

// outside sends before any handshake.
func outside(name, text string, say func() []byte) probe {
	return listed(strangers, name, text, evidence.ProbeEnded, func(a *attempt) (systems.Probed, error) {
		a.write(say())
		_, err := io.Copy(io.Discard, a.br)
		if err == nil {
			err = io.EOF
		}
		return broken(err), nil
	})
}

// first sends in place of the Hello.
func first(kind, name, text string, wants evidence.ProbeOutcome, say func(token string) []byte) probe {
	return listed(kind, name, text, wants, func(a *attempt) (systems.Probed, error) {
		if err := a.greet("DEALER"); err != nil {
			return systems.Probed{}, err
		}
		a.write(say(a.in.token))
		return a.untilEnd(), nil
	})
}

// fatal sends in a session what must end it.
func fatal(kind, name, text string, say []byte) probe {
	return listed(kind, name, text, evidence.ProbeEnded, func(a *attempt) (systems.Probed, error) {
		if err := a.enter(); err != nil {
			return systems.Probed{}, err
		}
		return a.asks(say, expected{kind: kindError}), nil
	})
}

// within sends in a session that must stay open.
func within(kind, name, text string, wants evidence.ProbeOutcome, want expected, say []byte) probe {
	return listed(kind, name, text, wants, func(a *attempt) (systems.Probed, error) {
		if err := a.enter(); err != nil {
			return systems.Probed{}, err
		}
		return a.asks(say, want), nil
	})
}

// refused is a request that must be answered with an Error of the same number.
func refused(kind, name, text string, fields []byte) probe {
	return within(kind, name, text, evidence.ProbeRefused, expected{kind: kindError, request: asked}, message(fields, nil))
}

// unread is a request whose number cannot be decoded: the Error is of request
// 0.
func unread(name, text string, say []byte) probe {
	return within(strangers, name, text, evidence.ProbeRefused, expected{kind: kindError}, say)
}

// delivered publishes at most once to its own subscription and is accepted only
// if the message arrives unaltered.
func delivered(name, what string, fields ...field) probe {
	return deliveredWith(name, what, nil, fields...)
}

func deliveredWith(name, what string, payload []byte, fields ...field) probe {
	return listed(limits, name, what, evidence.ProbeAccepted, func(a *attempt) (systems.Probed, error) {
		if err := a.enter(); err != nil {
			return systems.Probed{}, err
		}
		h := head(kindPublish, asked, fields...)
		sent, err := parse(h, payload)
		if err != nil {
			return systems.Probed{}, err
		}
		a.write(message(head(kindSubscribe, askedSubscribe, text(tagTopic, sent.text(tagTopic)), number(tagMode, modeMost), number(tagCredit, 1)), nil))
		if s, err := a.hear(); err != nil || s.number(tagAnswer) != answerAccepted {
			return came(evidence.ProbeMisanswered, "the subscription to its topic: %s, %v", s, err), nil
		}
		a.write(message(h, payload))
		var d heard
		for d.kind != kindDeliver {
			if d, err = a.hear(); err != nil {
				return broken(err), nil
			}
			if d.kind == kindPublishReply || d.kind == kindError {
				return judgedBy(d, expected{kind: kindPublishReply, request: asked, answer: answerDeclined}), nil
			}
		}
		for _, tag := range []byte{tagTopic, tagBusiness, tagMessage, tagKey, tagHeaders} {
			if want, got := sent.text(tag), d.text(tag); got != want && (tag != tagMessage || want != "") {
				return came(evidence.ProbeMisanswered, "field %d has %d bytes and came back with %d, or altered", tag, len(want), len(got)), nil
			}
		}
		if !bytes.Equal(d.payload, payload) {
			return came(evidence.ProbeMisanswered, "a payload of %d bytes came back with %d, or altered", len(payload), len(d.payload)), nil
		}
		return a.asks(nil, expected{kind: kindPublishReply, request: asked, answer: answerAccepted}), nil
	})
}

// long is a text of n bytes that nobody may trim, fold or cut within a character.
func long(n int) string {
	if n < 5 {
		return strings.Repeat("x", n)
	}
	return (" É" + strings.Repeat("aB cD~", n/6+1))[:n-1] + " "
}

// place is the topic used by probes only.
const place = "$probe"

// once are the fields of a valid at-most-once publish.
func once(more ...field) []field {
	return append([]field{text(tagTopic, place), number(tagMode, modeMost)}, more...)
}

// publishes is a publish with one oversized or invalid field.
func publishes(fields ...field) []byte { return head(kindPublish, asked, fields...) }
