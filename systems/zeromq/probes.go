package zeromq

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
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
	return list
}

// Probe runs one probe on connections of its own, bypassing all links.
func (in *instance) Probe(ctx context.Context, name string) (systems.Probed, error) {
	for _, p := range probes() {
		if p.Name == name {
			return (&attempt{ctx: ctx, in: in, probe: p}).make()
		}
	}
	return systems.Probed{}, fmt.Errorf("zeromq: no probe %q", name)
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
	for _, table := range [][]probe{handshakes, malformed, lengths, impossible, bounds, keepings, alterations, flips, twins} {
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
	return a.probe.try(a)
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
	if err := a.greet(); err != nil {
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
		if err := a.greet(); err != nil {
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

func long(n int) string { return strings.Repeat("x", n) }

// place is the topic used by probes only.
const place = "$probe"

// once are the fields of a valid at-most-once publish.
func once(more ...field) []field {
	return append([]field{text(tagTopic, place), number(tagMode, modeMost)}, more...)
}

// publishes is a publish with one oversized or invalid field.
func publishes(fields ...field) []byte { return head(kindPublish, asked, fields...) }

var handshakes = []probe{
	outside("not-zmtp", "A client of another protocol connects.", func() []byte {
		return []byte("GET / HTTP/1.1\r\nHost: broker\r\nUser-Agent: a-stranger/1.0 (which has lost its way)\r\n\r\n")
	}),
	outside("old-zmtp", "A client of ZMTP 2 connects.", func() []byte {
		b := greeting()
		b[10] = 1
		return append(b, ready("DEALER")...)
	}),
	outside("other-socket", "A socket connects that is no DEALER.", func() []byte { return append(greeting(), ready("SUB")...) }),
	outside("endless-handshake", "A handshake announces 2^62 bytes.", func() []byte { return append(greeting(), announced(6, 1<<62)...) }),
	first(strangers, "no-token", "A client gives no token.", evidence.ProbeEnded, func(string) []byte {
		return message(head(kindHello, askedHello, text(tagClient, "stranger")), nil)
	}),
	first(strangers, "wrong-token", "A client gives a token of the right length that is wrong.", evidence.ProbeEnded, func(token string) []byte {
		return helloWith(swapped(token))
	}),
	first(strangers, "short-token", "A client gives a token that lacks its last character.", evidence.ProbeEnded, func(token string) []byte {
		return helloWith(token[:len(token)-1])
	}),
	first(strangers, "longer-token", "A client gives a token with one character more.", evidence.ProbeEnded, func(token string) []byte {
		return helloWith(token + "A")
	}),
	first(strangers, "no-hello", "The first message is a Ping.", evidence.ProbeEnded, func(string) []byte { return message(head(kindPing, askedPing), nil) }),
	first(strangers, "publish-before-hello", "The first message is a Publish.", evidence.ProbeEnded, func(string) []byte {
		return message(publishes(once()...), nil)
	}),
	first(strangers, "nameless", "A Hello without the client's name.", evidence.ProbeEnded, func(token string) []byte {
		return message(head(kindHello, askedHello, text(tagToken, token)), nil)
	}),
	first(strangers, "hello-of-the-future", "A Hello of the next version of the protocol.", evidence.ProbeEnded, func(token string) []byte {
		h := head(kindHello, askedHello, text(tagClient, "stranger"), text(tagToken, token))
		h[1] = version + 1
		return message(h, nil)
	}),
	first(limits, "client-name", "The client's name has 128 bytes.", evidence.ProbeAccepted, func(token string) []byte {
		return message(head(kindHello, askedHello, text(tagClient, long(128)), text(tagToken, token)), nil)
	}),
	first(limits, "client-name-over", "The client's name has 129 bytes.", evidence.ProbeEnded, func(token string) []byte {
		return message(head(kindHello, askedHello, text(tagClient, long(129)), text(tagToken, token)), nil)
	}),
	first(limits, "token-over", "The token has 1025 bytes.", evidence.ProbeEnded, func(string) []byte { return helloWith(long(1025)) }),
	listed(strangers, "library-wrong-token", "The client library connects with a wrong token, and says that it was refused.", evidence.ProbeEnded, func(a *attempt) (systems.Probed, error) {
		conn, err := client.Dial(a.ctx, a.in.address, client.Options{Name: "stranger", Token: swapped(a.in.token)})
		switch {
		case err == nil:
			return came(evidence.ProbeAccepted, "the library has a session"), conn.Close()
		case errors.Is(err, client.ErrRefused):
			return came(evidence.ProbeEnded, "%v", err), nil
		}
		return came(evidence.ProbeMisanswered, "the library does not say that it was refused: %v", err), nil
	}),
	listed(strangers, "library-error-of-nothing", "The client library hears that something it said was not understood, and not what: it ends its session, for it cannot tell which call has failed.", evidence.ProbeEnded,
		librarySays(message([]byte("hello"), nil))),
	listed(strangers, "library-error-of-another", "The client library hears an Error of a request that it never made: its session goes on.", evidence.ProbeIgnored,
		librarySays(message(head(kindPing, 1<<40, text(tagTopic, place)), nil))),
	listed(limits, "library", "The client library connects, subscribes, grants a place, publishes, gives an answer that is here also to who waits no longer, receives, acknowledges and unsubscribes.",
		evidence.ProbeAccepted, libraryWorks),
	listed(strangers, "library-is-refused", "The client library hears an Error of a request under way: that call is refused, and no other.", evidence.ProbeRefused, relayed(libraryIsRefused)),
	listed(limits, "library-topic-over", "The client library is given a topic of 256 bytes: it refuses that call, and its session goes on.", evidence.ProbeRefused, func(a *attempt) (systems.Probed, error) {
		conn, err := client.Dial(a.ctx, a.in.address, client.Options{Name: "stranger", Token: a.in.token})
		if err != nil {
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		}
		defer conn.Close()
		_, err = conn.Publish(a.ctx, wire.Message{Topic: long(256), Mode: wire.AtMostOnce})
		_, after := conn.Lookup(a.ctx, "probe-of-nothing", time.Second)
		switch {
		case err == nil:
			return came(evidence.ProbeAccepted, "the library sent it"), nil
		case errors.Is(err, client.ErrDisconnected) || after != nil:
			return came(evidence.ProbeEnded, "%v; afterwards: %v", err, after), nil
		}
		return came(evidence.ProbeRefused, "%v", err), nil
	}),
}

// librarySays writes to the client library's connection what the library never
// sends, followed by a request: the answer to the former reaches the library
// first.
func librarySays(say []byte) func(*attempt) (systems.Probed, error) {
	return relayed(func(a *attempt, conn *client.Conn, _ *interjection) (systems.Probed, error) {
		a.write(say)
		_, err := conn.Lookup(a.ctx, nowhere, time.Second)
		switch {
		case err == nil:
			return came(evidence.ProbeIgnored, "the session goes on"), nil
		case errors.Is(err, client.ErrRefused):
			return came(evidence.ProbeEnded, "%v", err), nil
		}
		return came(evidence.ProbeMisanswered, "%v", err), nil
	})
}

// libraryIsRefused has a question of the client library refused: something that
// is not understood carries the question's number, and goes before it. Where a
// heartbeat of the library's own came in between, the next question is tried.
func libraryIsRefused(a *attempt, conn *client.Conn, next *interjection) (systems.Probed, error) {
	for request := uint64(askedHello + 1); request < askedHello+6; request++ {
		say := message(head(kindPing, request, text(tagTopic, place)), nil)
		next.say.Store(&say)
		_, err := conn.Lookup(a.ctx, nowhere, time.Second)
		switch {
		case err == nil:
			continue
		case errors.Is(err, client.ErrRefused):
			return came(evidence.ProbeRefused, "%v", err), nil
		case a.ctx.Err() != nil:
			return came(evidence.ProbeUnanswered, "the library never says so: %v", err), nil
		}
		return came(evidence.ProbeMisanswered, "%v", err), nil
	}
	return came(evidence.ProbeIgnored, "every question had an answer"), nil
}

// libraryWorks has the client library do what a client does. That the broker
// serves is shown first, by a session without the library.
func libraryWorks(a *attempt) (systems.Probed, error) {
	if err := a.enter(); err != nil {
		return systems.Probed{}, err
	}
	doing := "connect"
	err := func() error {
		conn, err := client.Dial(a.ctx, a.in.address, client.Options{Name: "stranger", Token: a.in.token})
		if err != nil {
			return err
		}
		defer conn.Close()
		const topic = place + "/library"
		doing = "subscribe"
		sub, err := conn.Subscribe(a.ctx, client.Filter{Topic: topic, Mode: wire.AtLeastOnce})
		if err != nil {
			return err
		}
		doing = "grant"
		if err := sub.Grant(1); err != nil {
			return err
		}
		doing = "publish"
		call, err := conn.Publish(a.ctx, wire.Message{Topic: topic, Mode: wire.AtLeastOnce, Payload: []byte("hello")})
		if err != nil {
			return err
		}
		if _, err := call.Wait(a.ctx); err != nil {
			return err
		}
		doing = "give an answer that is here to who waits no longer"
		ended, cancel := context.WithCancel(a.ctx)
		cancel()
		for range 32 {
			if _, err := call.Wait(ended); err != nil {
				return err
			}
		}
		for accepted := false; !accepted; { // on a slow machine it is redelivered first
			doing = "receive"
			d, err := sub.Receive(a.ctx)
			if err != nil {
				return err
			}
			doing = "acknowledge"
			m, err := d.Ack(a.ctx)
			if err != nil {
				return err
			}
			accepted = m.Answer == wire.Accepted
		}
		doing = "unsubscribe"
		return sub.Unsubscribe(a.ctx)
	}()
	switch {
	case err == nil:
		return came(evidence.ProbeAccepted, "it does"), nil
	case a.ctx.Err() != nil:
		return came(evidence.ProbeUnanswered, "it did not %s: %v", doing, err), nil
	}
	return came(evidence.ProbeMisanswered, "it did not %s: %v", doing, err), nil
}

// interjection is said to the broker ahead of what the client library says next.
type interjection struct {
	io.Writer
	say atomic.Pointer[[]byte]
}

func (i *interjection) Write(b []byte) (int, error) {
	if say := i.say.Swap(nil); say != nil {
		if _, err := i.Writer.Write(*say); err != nil {
			return 0, err
		}
	}
	return i.Writer.Write(b)
}

// relayed lets the client library connect through the probe's own connection.
func relayed(try func(*attempt, *client.Conn, *interjection) (systems.Probed, error)) func(*attempt) (systems.Probed, error) {
	return func(a *attempt) (systems.Probed, error) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		}
		next := &interjection{Writer: a.nc}
		var relay tasks.Group
		defer relay.Wait()
		defer ln.Close()
		relay.Go(func() {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			// When one direction ends, so does the other.
			relay.Go(func() { _, _ = io.Copy(next, nc); a.nc.Close() })
			_, _ = io.Copy(nc, a.nc)
			nc.Close()
		})
		conn, err := client.Dial(a.ctx, ln.Addr().String(), client.Options{Name: "stranger", Token: a.in.token})
		if err != nil {
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		}
		defer conn.Close()
		return try(a, conn, next)
	}
}

func helloWith(token string) []byte {
	return message(head(kindHello, askedHello, text(tagClient, "stranger"), text(tagToken, token)), nil)
}

// swapped changes a token's last character.
func swapped(token string) string {
	last := "A"
	if strings.HasSuffix(token, last) {
		last = "B"
	}
	return token[:len(token)-1] + last
}

func withVersion(v byte) []byte {
	h := head(kindPing, asked)
	h[1] = v
	return h
}

var malformed = []probe{
	within(strangers, "ping", "A Ping is answered with its request.", evidence.ProbeAnswered, expected{kind: kindPong, request: asked}, message(head(kindPing, asked), nil)),
	within(strangers, "pong", "A Pong that nobody asked for.", evidence.ProbeIgnored, expected{}, message(head(kindPong, asked), nil)),
	unread("not-marked", "A head that does not begin with the protocol's mark.", message([]byte("hello"), nil)),
	unread("two-bytes", "A head of two bytes.", message([]byte{mark, version}, nil)),
	unread("empty-head", "A head of no bytes.", message(nil, nil)),
	unread("older", "A message of an older version.", message(withVersion(version-1), nil)),
	unread("newer", "A message of a newer version.", message(withVersion(version+1), nil)),
	unread("kind-zero", "A message of kind 0.", message(head(0, asked), nil)),
	unread("kind-unknown", "A message of a kind that does not exist.", message(head(99, asked), nil)),
	unread("kind-next", "A message of the kind after the last one.", message(head(kindError+1, asked), nil)),
	unread("request-missing", "A head that ends before its request.", message([]byte{mark, version, kindPing}, nil)),
	unread("request-cut", "A head that ends within its request.", message([]byte{mark, version, kindPing, 0x80}, nil)),
	unread("request-not-shortest", "A request in more bytes than it needs.", message([]byte{mark, version, kindPing, 0x87, 0x00}, nil)),
	unread("request-too-long", "A request of eleven bytes.", message(append(append([]byte{mark, version, kindPing}, bytes.Repeat([]byte{0xff}, 10)...), 1), nil)),
	unread("request-too-large", "A request beyond 64 bits.", message(append(append([]byte{mark, version, kindPing}, bytes.Repeat([]byte{0xff}, 9)...), 2), nil)),
	within(strangers, "request-largest", "The largest request that there is.", evidence.ProbeAnswered, expected{kind: kindPong, request: math.MaxUint64}, message(head(kindPing, math.MaxUint64), nil)),
	unread("one-part", "A message of one part.", frame(false, head(kindPing, asked))),
	unread("three-parts", "A message of three parts.", append(append(frame(true, head(kindPing, asked)), frame(true, nil)...), frame(false, nil)...)),
	refused(strangers, "field-unknown", "A field that does not exist.", publishes(once(raw(beyondAllTag, nil))...)),
	refused(strangers, "field-not-of-kind", "A field that this kind does not have.", head(kindPing, asked, text(tagTopic, place))),
	refused(strangers, "field-zero", "A field with tag 0.", head(kindPing, asked, raw(0, nil))),
	refused(strangers, "payload-not-of-kind", "A topic in a Lookup.", head(kindLookup, asked, text(tagTopic, place))),
	refused(strangers, "field-twice", "A field that comes twice.", publishes(text(tagTopic, place), text(tagTopic, place), number(tagMode, modeMost))),
	refused(strangers, "fields-out-of-order", "Fields that are not in order.", publishes(number(tagMode, modeMost), text(tagTopic, place))),
	refused(strangers, "field-empty", "A field that is empty, and not left out.", publishes(once(text(tagKey, ""))...)),
	refused(strangers, "field-cut", "A field that announces more than there is.", append(publishes(once()...), tagKey, 9, 'x')),
	refused(strangers, "field-size-cut", "A head that ends within the size of a field.", append(publishes(once()...), tagKey, 0x80)),
	refused(strangers, "field-size-missing", "A head that ends after a tag.", append(publishes(once()...), tagKey)),
	refused(strangers, "not-utf8", "A text that is not UTF-8.", publishes(once(text(tagKey, "\xff\xfe"))...)),
	refused(strangers, "number-zero", "A number that is zero, and not left out.", publishes(text(tagTopic, place), number(tagMode, 0))),
	refused(strangers, "number-empty", "A number of no bytes.", publishes(text(tagTopic, place), raw(tagMode, nil))),
	refused(strangers, "number-cut", "A number that ends before its last byte.", publishes(text(tagTopic, place), raw(tagMode, []byte{0x81}))),
	refused(strangers, "number-not-shortest", "A number in more bytes than it needs.", publishes(text(tagTopic, place), raw(tagMode, []byte{0x81, 0}))),
	refused(strangers, "number-with-a-tail", "A number with a byte after it.", publishes(text(tagTopic, place), raw(tagMode, []byte{1, 1}))),
	refused(strangers, "number-of-eleven", "A number of eleven bytes.", publishes(text(tagTopic, place), raw(tagMode, append(bytes.Repeat([]byte{0x81}, 10), 1)))),
	refused(strangers, "mode-unknown", "A mode that does not exist.", publishes(text(tagTopic, place), number(tagMode, 3))),
	refused(strangers, "headers-out-of-order", "Headers that are not in order.", publishes(once(headers("b", "1", "a", "2"))...)),
	refused(strangers, "header-twice", "A header that comes twice.", publishes(once(headers("a", "1", "a", "2"))...)),
	refused(strangers, "header-nameless", "A header without a name.", publishes(once(headers("", "1"))...)),
	refused(strangers, "headers-empty", "Headers that are none, and not left out.", publishes(once(headers())...)),
	refused(strangers, "headers-odd", "A header without its value.", publishes(once(headers("a", "1", "b"))...)),
	refused(strangers, "headers-not-utf8", "A header that is not UTF-8.", publishes(once(headers("a", "\xff"))...)),
	refused(strangers, "not-for-the-broker-welcome", "A Welcome, which only a broker says.", head(kindWelcome, asked, text(tagClient, "stranger"))),
	refused(strangers, "not-for-the-broker-reply", "A PublishReply, which only a broker says.", head(kindPublishReply, asked, number(tagAnswer, answerAccepted))),
	refused(strangers, "not-for-the-broker-deliver", "A Deliver, which only a broker says.", head(kindDeliver, asked, text(tagTopic, place))),
	refused(strangers, "not-for-the-broker-error", "An Error, which only a broker says.", head(kindError, asked, text(tagReason, "no"))),
	refused(strangers, "hello-again", "A second Hello in one session.", head(kindHello, asked, text(tagClient, "stranger"))),
	within(strangers, "payload-in-a-ping", "A Ping with a payload.", evidence.ProbeRefused, expected{kind: kindError, request: asked}, message(head(kindPing, asked), []byte("x"))),
	listed(strangers, "fifteen-malformed", "Fifteen malformed messages: each is answered, and the session goes on.", evidence.ProbeRefused, manyMalformed(15)),
	listed(strangers, "sixteen-malformed", "Sixteen malformed messages: the session is closed.", evidence.ProbeEnded, manyMalformed(16)),
	fatal(strangers, "endless-head", "A head that announces 2^62 bytes.", announced(3, 1<<62)),
	fatal(strangers, "endless-payload", "A payload that announces 2^62 bytes.", append(frame(true, head(kindPing, asked)), announced(2, 1<<62)...)),
	fatal(strangers, "endless-command", "A ZMTP command that announces 2^62 bytes.", announced(6, 1<<62)),
	fatal(strangers, "endless-parts", "A message of a hundred parts.", bytes.Repeat(frame(true, []byte("x")), 100)),
	listed(strangers, "zmtp-ping", "A ZMTP PING is answered with a PONG and its context.", evidence.ProbeAnswered, zmtpPing),
}

// manyMalformed sends n malformed messages, then a Ping.
func manyMalformed(n int) func(*attempt) (systems.Probed, error) {
	return func(a *attempt) (systems.Probed, error) {
		if err := a.enter(); err != nil {
			return systems.Probed{}, err
		}
		for range n {
			a.write(message([]byte("hello"), nil))
		}
		a.write(message(head(kindPing, askedPing), nil))
		for errors := 0; ; {
			h, err := a.hear()
			switch {
			case err != nil && errors == n:
				return broken(err), nil
			case err != nil:
				got := broken(err)
				return came(evidence.ProbeMisanswered, "%d of %d were answered before: %s", errors, n, got.Reason), nil
			case h.kind == kindError && h.request == 0:
				errors++
			case h.kind == kindPong && errors == n:
				return came(evidence.ProbeRefused, "each was answered, and the session goes on"), nil
			case h.kind != kindPing:
				return came(evidence.ProbeMisanswered, "%s, after %d errors of %d", h, errors, n), nil
			}
		}
	}
}

func zmtpPing(a *attempt) (systems.Probed, error) {
	if err := a.enter(); err != nil {
		return systems.Probed{}, err
	}
	body := "\x04PING\x00\x64context"
	a.write(append([]byte{4, byte(len(body))}, body...))
	for {
		flags, b, err := a.frame()
		switch {
		case err != nil:
			return broken(err), nil
		case flags&4 == 0: // a message frame: the broker's Ping
		case string(b) == "\x04PONGcontext":
			return came(evidence.ProbeAnswered, "%q", b), nil
		default:
			return came(evidence.ProbeMisanswered, "%q", b), nil
		}
	}
}

// many encodes n headers of one byte each.
func many(n int) field {
	var pairs []string
	for i := range n {
		pairs = append(pairs, fmt.Sprintf("%03d", i), "v")
	}
	return headers(pairs...)
}

// large encodes 64 headers of 1024 bytes each: with all other fields at their
// limits, the largest valid head.
func large() field {
	var pairs []string
	for i := range 64 {
		pairs = append(pairs, fmt.Sprintf("%03d", i), long(1021))
	}
	return headers(pairs...)
}

// headOf is a head of exactly size bytes whose last field is unknown.
func headOf(size int) []byte {
	b := append(publishes(once(large())...), beyondAllTag)
	return append(b, make([]byte, size-len(b))...)
}

var tenYears = (10 * 365 * 24 * time.Hour).Milliseconds()

var lengths = []probe{
	delivered("topic", "A topic of 255 bytes.", text(tagTopic, long(255)), number(tagMode, modeMost)),
	refused(limits, "topic-over", "A topic of 256 bytes.", publishes(text(tagTopic, long(256)), number(tagMode, modeMost))),
	delivered("business-id", "A business ID of 128 bytes.", once(text(tagBusiness, long(128)))...),
	refused(limits, "business-id-over", "A business ID of 129 bytes.", publishes(once(text(tagBusiness, long(129)))...)),
	delivered("message-id", "A message ID of 128 bytes.", once(text(tagMessage, long(128)))...),
	refused(limits, "message-id-over", "A message ID of 129 bytes.", publishes(once(text(tagMessage, long(129)))...)),
	delivered("key", "A key of 128 bytes.", once(text(tagKey, long(128)))...),
	refused(limits, "key-over", "A key of 129 bytes.", publishes(once(text(tagKey, long(129)))...)),
	delivered("header", "A header of 1024 bytes, name and value together.", once(headers("name", long(1020)))...),
	refused(limits, "header-over", "A header of 1025 bytes.", publishes(once(headers("name", long(1021)))...)),
	delivered("header-name", "A header whose name has 1024 bytes.", once(headers(long(1024), ""))...),
	delivered("headers", "64 headers.", once(many(64))...),
	delivered("header-lengths", "Headers of 127, 128 and 129 bytes: a length takes a second byte in between.", once(headers("a", long(127), "b", long(128), "c", long(129)))...),
	refused(limits, "headers-over", "65 headers.", publishes(once(many(65))...)),
	delivered("everything", "Every field of a publish at its limit.", text(tagTopic, long(255)), number(tagMode, modeMost),
		text(tagBusiness, long(128)), text(tagMessage, "m"+long(127)), text(tagKey, long(128)), large(), milliseconds(tagTTL, tenYears)),
	delivered("nothing", "A publish with nothing but topic and mode.", once()...),
	deliveredWith("payload", "A payload of 4 MiB.", bytes.Repeat([]byte("payload."), maxPayload/8), once()...),
	fatal(limits, "payload-over", "A payload that announces 4 MiB and one byte.", append(frame(true, publishes(once()...)), announced(2, maxPayload+1)...)),
	refused(limits, "head", "A head of 80 KiB whose last field does not exist.", headOf(maxHead)),
	fatal(limits, "head-over", "A head that announces 80 KiB and one byte.", announced(3, maxHead+1)),
	within(limits, "group", "A group of 128 bytes.", evidence.ProbeAccepted, expected{kind: kindSubscribe + 1, request: asked},
		message(head(kindSubscribe, asked, text(tagTopic, place), text(tagGroup, long(128)), number(tagMode, modeMost)), nil)),
	refused(limits, "group-over", "A group of 129 bytes.", head(kindSubscribe, asked, text(tagTopic, place), text(tagGroup, long(129)), number(tagMode, modeMost))),
	within(limits, "credit", "Credit of 2^20 for no subscription.", evidence.ProbeIgnored, expected{}, message(head(kindCredit, asked, number(tagCredit, 1<<20)), nil)),
	refused(limits, "credit-over", "Credit of 2^20 and one.", head(kindCredit, asked, number(tagCredit, 1<<20+1))),
	within(limits, "attempt", "An Ack of attempt 2^31 - 1.", evidence.ProbeRefused, expected{kind: kindAck + 1, request: asked},
		message(head(kindAck, asked, text(tagMessage, nowhere), number(tagAttempt, math.MaxInt32)), nil)),
	refused(limits, "attempt-over", "An Ack of attempt 2^31.", head(kindAck, asked, text(tagMessage, nowhere), number(tagAttempt, math.MaxInt32+1))),
	within(limits, "reason", "A Nack with a reason of 1024 bytes.", evidence.ProbeRefused, expected{kind: kindNack + 1, request: asked},
		message(head(kindNack, asked, text(tagMessage, nowhere), text(tagReason, long(1024))), nil)),
	refused(limits, "reason-over", "A Nack with a reason of 1025 bytes.", head(kindNack, asked, text(tagMessage, nowhere), text(tagReason, long(1025)))),
	delivered("ttl", "A time to live of ten years.", once(milliseconds(tagTTL, tenYears))...),
}

// nowhere is a message ID that does not exist.
const nowhere = "probe-of-nothing"

// least are the fields of a valid at-least-once publish. Its business ID makes
// a row that it leaves visible.
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
			case h.kind != kindPing:
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

// handed publishes to the probe's own subscription and returns the ID of the
// delivery.
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

// stats reads the broker's counters.
func (a *attempt) stats(request uint64) (counters map[string]int, err error) {
	a.write(message(head(kindAdmin, request, text(tagTopic, "stats")), nil))
	h, err := a.until(kindAdmin + 1)
	if err == nil {
		err = json.Unmarshal(h.payload, &counters)
	}
	if err != nil {
		return nil, fmt.Errorf("zeromq: probe: stats: %w", err)
	}
	return counters, nil
}

// The profile's own bounds, low enough to reach.
const (
	publishWindow = 1024
	maxTopics     = 256
)

// First request numbers of a series of publishes and of its Acks.
const (
	series = 1 << 16
	acks   = 1 << 20
)

var bounds = []probe{
	listed(window, "publish-window", "As many unanswered publishes as the window has places: all are accepted.", evidence.ProbeAccepted, stalled(publishWindow, nil)),
	listed(window, "publish-window-over", "One unanswered publish more than the window has places: it is declined.", evidence.ProbeRefused,
		stalled(publishWindow+1, func(i int, h heard) *systems.Probed {
			if i != publishWindow {
				return nil
			}
			got := judgedBy(h, expected{kind: kindPublishReply, request: series + publishWindow, answer: answerDeclined})
			return &got
		})).because(evidence.CauseLimit),
	listed(window, "repeat-in-flight", "A publish is repeated under its message ID while its first try is on its way to the store: both are accepted, and it is one message.", evidence.ProbeAccepted, repeated(2)),
	listed(window, "repeat-beyond-the-window", "A publish is repeated under its message ID while the window is full: its answer is in doubt.", evidence.ProbeInDoubt, repeated(publishWindow+1)),
	listed(window, "topics-over", "One topic more than the broker remembers, each with a message that waits: it is declined.", evidence.ProbeRefused, manyTopics).because(evidence.CauseLimit),
	listed(limits, "idle-topics", "Twice as many topics as the broker remembers, none with a message that waits: there is room for each.", evidence.ProbeRefused, idleTopics).because(evidence.CauseNoConsumer),
}

var errTooQuick = errors.New("the store answered before everything was sent: it must be slow for this probe")

// stalled sends n at-least-once publishes and a Ping. A Pong ahead of the first
// store answer proves that all n were unanswered at once. special judges
// answers other than Accepted; nil allows none.
func stalled(n int, special func(i int, h heard) *systems.Probed) func(*attempt) (systems.Probed, error) {
	return func(a *attempt) (systems.Probed, error) {
		if err := a.subscribed(modeLeast, uint64(n)); err != nil {
			return systems.Probed{}, err
		}
		var say []byte
		for i := range n {
			say = append(say, message(head(kindPublish, series+uint64(i), text(tagTopic, place), number(tagMode, modeLeast)), nil)...)
		}
		a.write(append(say, message(head(kindPing, askedPing), nil)...))
		var got *systems.Probed
		heardPong := false
		return a.serve(n, func(h heard) (*systems.Probed, error) {
			i := int(h.request) - series
			switch {
			case h.kind == kindPong:
				heardPong = true
			case h.kind == kindDeliver:
			case h.kind != kindPublishReply || i < 0 || i >= n:
				return nil, fmt.Errorf("%w: %s", errNotOurs, h)
			case h.number(tagAnswer) == answerAccepted && !heardPong:
				return nil, errTooQuick
			case special != nil && special(i, h) != nil:
				got = special(i, h)
			case h.number(tagAnswer) != answerAccepted:
				end := came(evidence.ProbeMisanswered, "publish %d of %d: %s", i+1, n, h)
				got = &end
			}
			return got, nil
		})
	}
}

// repeated sends n-1 publishes, then the first of them again.
func repeated(n int) func(*attempt) (systems.Probed, error) {
	return func(a *attempt) (systems.Probed, error) {
		if err := a.subscribed(modeLeast, uint64(n)); err != nil {
			return systems.Probed{}, err
		}
		id := text(tagMessage, "probe-"+a.nc.LocalAddr().String())
		one := []field{text(tagTopic, place), number(tagMode, modeLeast)}
		say := message(head(kindPublish, series, append(one, id)...), nil)
		for i := 1; i < n-1; i++ {
			say = append(say, message(head(kindPublish, series+uint64(i), one...), nil)...)
		}
		again := series + uint64(n-1)
		say = append(say, message(head(kindPublish, again, append(one, id)...), nil)...)
		a.write(append(say, message(head(kindPing, askedPing), nil)...))
		heardPong, deliveries := false, 0
		var got *systems.Probed
		result, err := a.serve(n, func(h heard) (*systems.Probed, error) {
			switch {
			case h.kind == kindPong:
				heardPong = true
			case h.kind == kindDeliver:
				if h.number(tagAgain) != 1 { // a slow machine has it come again
					deliveries++
				}
			case h.number(tagAnswer) == answerAccepted && !heardPong:
				return nil, errTooQuick
			case h.request == again:
				p := judgedBy(h, expected{kind: kindPublishReply, request: again})
				if p.Outcome == evidence.ProbeAccepted && h.number(tagAgain) != 1 {
					p = came(evidence.ProbeMisanswered, "the second is not marked: %s", h)
				}
				got = &p
			case h.number(tagAnswer) != answerAccepted:
				p := came(evidence.ProbeMisanswered, "%s", h)
				got = &p
			}
			return got, nil
		})
		if err == nil && deliveries > n-1 {
			result = came(evidence.ProbeMisanswered, "%d messages were published, and %d came", n-1, deliveries)
		}
		return result, err
	}
}

// serve reads n publish answers and the Pong, acknowledges deliveries until
// every accepted message is settled, and returns judge's last result, or
// accepted if there is none.
func (a *attempt) serve(n int, judge func(heard) (*systems.Probed, error)) (systems.Probed, error) {
	got := came(evidence.ProbeAccepted, "%d answers", n)
	answers, acked, settled, pong := 0, 0, 0, false
	accepted := map[string]bool{} // by message ID: duplicates count once
	for answers < n || settled < len(accepted) || !pong {
		h, err := a.hear()
		if err != nil {
			end := broken(err)
			end.Reason += fmt.Sprintf(": %d of %d publishes answered, %d of %d settled", answers, n, settled, len(accepted))
			return end, nil
		}
		switch h.kind {
		case kindPing:
			continue
		case kindAck + 1:
			settled++
			continue
		case kindDeliver:
			acked++
			a.write(message(head(kindAck, acks+uint64(acked), text(tagMessage, h.text(tagMessage))), nil))
		case kindPong:
			pong = true
		case kindPublishReply:
			answers++
			if h.number(tagAnswer) == answerAccepted {
				accepted[h.text(tagMessage)] = true
			}
		}
		said, err := judge(h)
		switch {
		case errors.Is(err, errNotOurs):
			return came(evidence.ProbeMisanswered, "%v", err), nil
		case err != nil:
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		case said != nil:
			got = *said
		}
	}
	return got, nil
}

// manyTopics publishes to one topic more than the broker remembers. Others may
// hold topics too, so only the last is sure to be declined.
func manyTopics(a *attempt) (systems.Probed, error) {
	if err := a.listens(place+"/#", modeLeast, maxTopics+1); err != nil {
		return systems.Probed{}, err
	}
	var say []byte
	for i := range maxTopics + 1 {
		say = append(say, message(head(kindPublish, series+uint64(i), text(tagTopic, fmt.Sprintf("%s/%d", place, i)), number(tagMode, modeLeast)), nil)...)
	}
	a.write(append(say, message(head(kindPing, askedPing), nil)...))
	heardPong := false
	var got *systems.Probed
	return a.serve(maxTopics+1, func(h heard) (*systems.Probed, error) {
		switch {
		case h.kind == kindPong:
			heardPong = true
		case h.kind != kindPublishReply:
		case h.number(tagAnswer) == answerAccepted && !heardPong:
			return nil, errTooQuick
		case h.request == series+maxTopics:
			p := judgedBy(h, expected{kind: kindPublishReply, request: h.request})
			got = &p
		case h.number(tagAnswer) != answerAccepted && h.request < series+maxTopics/2:
			p := came(evidence.ProbeMisanswered, "topic %d of %d: %s", h.request-series, maxTopics, h)
			got = &p
		}
		return got, nil
	})
}

// idleTopics publishes to twice as many topics as are remembered. Each is
// declined only because nobody subscribes.
func idleTopics(a *attempt) (systems.Probed, error) {
	if err := a.enter(); err != nil {
		return systems.Probed{}, err
	}
	var say []byte
	for i := range 2 * maxTopics {
		say = append(say, message(head(kindPublish, series+uint64(i), text(tagTopic, fmt.Sprintf("%s/idle/%d", place, i)), number(tagMode, modeMost)), nil)...)
	}
	a.write(say)
	var got systems.Probed
	for i := range 2 * maxTopics {
		request := series + uint64(i)
		var h heard
		for h.kind != kindPublishReply {
			var err error
			if h, err = a.hear(); err != nil {
				return broken(err), nil
			}
		}
		got = judgedBy(h, expected{kind: kindPublishReply, request: request, answer: answerDeclined})
		if got.Outcome != evidence.ProbeRefused || got.Cause != evidence.CauseNoConsumer {
			return got, nil
		}
	}
	return got, nil
}
