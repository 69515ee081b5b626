package zeromq

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net"
	"os"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// posed is a session of the client library in which the probe poses as the
// broker: it compares what the library sends byte by byte, and sends what no
// broker would.
type posed struct {
	*peer
	ctx     context.Context
	conn    *client.Conn
	sub     *client.Subscription
	stream  uint64 // request number of sub
	request uint64 // number of the library's last request
	held    *client.Delivery
}

// posing connects the client library to the probe, which answers its Hello with
// opening.
func posing(name, what string, o client.Options, opening []byte, try func(*posed) error) probe {
	return listed(limits, name, what, evidence.ProbeAccepted, func(a *attempt) (systems.Probed, error) {
		p, err := pose(a.ctx, o, opening)
		if err == nil {
			err = errors.Join(try(p), p.end())
		}
		return verdict(a.ctx, err), nil
	})
}

// verdict judges a client library; err says what it did wrong.
func verdict(ctx context.Context, err error) systems.Probed {
	switch {
	case err == nil:
		return came(evidence.ProbeAccepted, "it does")
	case ctx.Err() != nil:
		return came(evidence.ProbeUnanswered, "%v", err)
	}
	return came(evidence.ProbeMisanswered, "%v", err)
}

func pose(ctx context.Context, o client.Options, opening []byte) (*posed, error) {
	return poseOver(ctx, o, opening, func(nc net.Conn) net.Conn { return nc })
}

func poseOver(ctx context.Context, o client.Options, opening []byte, over func(net.Conn) net.Conn) (*posed, error) {
	if o.Heartbeat == 0 {
		o.Heartbeat = time.Minute // long, so that anything not flushed is noticed missing
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("zeromq: probe: %w", err)
	}
	p := &posed{ctx: ctx, request: askedHello}
	dialled := called(ctx, func() (err error) {
		dialling, cancel := context.WithCancel(ctx) // ends once the session has begun
		defer cancel()
		p.conn, err = client.Dial(dialling, ln.Addr().String(), o)
		return err
	})
	// ctx's deadline ends the wait for a library that does not connect.
	stop := context.AfterFunc(ctx, tasks.Guarded(func() { ln.Close() }))
	defer stop()
	defer ln.Close()
	nc, err := ln.Accept()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the library does not connect: %w", err), dialled())
	}
	p.peer = newPeer(ctx, over(nc))
	if err := p.greet("ROUTER"); err != nil {
		nc.Close()
		return nil, errors.Join(err, dialled())
	}
	hello := []field{text(tagClient, cmp.Or(o.Name, "client"))}
	if o.Token != "" {
		hello = append(hello, text(tagToken, o.Token))
	}
	err = p.says(head(kindHello, askedHello, hello...), nil)
	if err == nil {
		p.write(opening)
	} else {
		nc.Close()
	}
	if err = errors.Join(err, dialled()); err != nil {
		nc.Close()
	}
	return p, err
}

// welcome returns a Welcome with a publish window of that many places.
func welcome(places uint64, more ...field) []byte {
	fields := append([]field{text(tagClient, "custody")}, more...)
	return message(head(kindWelcome, askedHello, append(fields, number(tagCredit, places))...), nil)
}

// end closes the library's session first, and then the probe's side.
func (p *posed) end() error {
	defer p.nc.Close()
	return called(p.ctx, p.conn.Close)()
}

// patience is how long a call may take to return after its context has ended.
const patience = time.Second

var errStuck = errors.New("it does not return")

// begun runs call concurrently. A call that ignores its context is abandoned.
func begun(ctx context.Context, call func() error) (wait func() error) {
	done := make(chan error, 1)
	tasks.Go(func() { done <- call() })
	return func() error {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
		}
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errStuck
		}
	}
}

// called runs a call of the client library concurrently. A panic is the library's
// fault, not the harness's.
func called(ctx context.Context, call func() error) (wait func() error) {
	return begun(ctx, func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("the library panicked: %v", p)
			}
		}()
		return call()
	})
}

// says reads the library's next message, skipping Pings, and requires it to be
// this one.
func (p *posed) says(head, payload []byte) error {
	for {
		h, body, err := p.parts()
		switch {
		case err != nil:
			return fmt.Errorf("the library does not say % .40x: %w", head, err)
		case len(h) > 2 && h[2] == kindPing:
		case !bytes.Equal(h, head):
			return fmt.Errorf("the library says % .60x, where % .60x is due", h, head)
		case !bytes.Equal(body, payload):
			return fmt.Errorf("the library says %d bytes of payload, where %d are due, or other ones", len(body), len(payload))
		default:
			return nil
		}
	}
}

// exchange is a call of the library and the broker's part in it.
type exchange struct {
	what    string
	ask     func(*posed) (wire.Message, error)
	kind    byte
	fields  []field // that the library must send
	payload []byte
	answer  []field // fields of a reply of the next kind
	with    []byte
	hears   *wire.Message // what the caller must get, apart from version, kind and request
	refused bool          // the call must fail with ErrRefused
}

func (p *posed) exchange(e exchange) error {
	p.request++
	var got wire.Message
	wait := called(p.ctx, func() (err error) {
		got, err = e.ask(p)
		return err
	})
	if err := p.says(head(e.kind, p.request, e.fields...), e.payload); err != nil {
		p.nc.Close() // ends the call
		return fmt.Errorf("%s: %w", e.what, errors.Join(err, wait()))
	}
	p.write(message(head(e.kind+1, p.request, e.answer...), e.with))
	if err := wait(); err != nil || e.refused {
		if errors.Is(err, client.ErrRefused) && e.refused {
			return nil
		}
		return fmt.Errorf("%s: %w", e.what, unsaid(err))
	}
	if e.hears == nil {
		return nil
	}
	want := *e.hears
	want.Version, want.Kind, want.Request = version, wire.Kind(e.kind+1), p.request
	return same(e.what, got, want)
}

func unsaid(err error) error {
	if err == nil {
		return errors.New("nothing")
	}
	return err
}

func same(what string, got, want wire.Message) error {
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("%s: the library hears %.300s, where %.300s was said", what, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
	}
	return nil
}

func (p *posed) exchanges(list ...exchange) error {
	for _, e := range list {
		if err := p.exchange(e); err != nil {
			return err
		}
	}
	return nil
}

// Calls of the library.

func publishing(m wire.Message) func(*posed) (wire.Message, error) {
	return func(p *posed) (wire.Message, error) {
		call, err := p.conn.Publish(p.ctx, m)
		if err != nil {
			return wire.Message{}, err
		}
		return call.Wait(p.ctx)
	}
}

func looking(id string, age time.Duration) func(*posed) (wire.Message, error) {
	return func(p *posed) (wire.Message, error) { return p.conn.Lookup(p.ctx, id, age) }
}

func commanding(command, id string) func(*posed) (wire.Message, error) {
	return func(p *posed) (wire.Message, error) { return p.conn.Admin(p.ctx, command, id) }
}

func subscribing(f client.Filter) func(*posed) (wire.Message, error) {
	return func(p *posed) (none wire.Message, err error) {
		p.stream = p.request
		p.sub, err = p.conn.Subscribe(p.ctx, f)
		return none, err
	}
}

func unsubscribing(p *posed) (none wire.Message, err error) {
	return none, p.sub.Unsubscribe(p.ctx)
}

func acknowledging(p *posed) (wire.Message, error) { return p.held.Ack(p.ctx) }

func rejecting(r client.Rejection) func(*posed) (wire.Message, error) {
	return func(p *posed) (wire.Message, error) { return p.held.Nack(p.ctx, r) }
}

// alive checks that the session still works.
var alive = exchange{what: "a question", ask: looking(nowhere, 0), kind: kindLookup, fields: []field{text(tagBusiness, nowhere)},
	answer: []field{number(tagAnswer, answerNotSeen)}, hears: &wire.Message{Answer: wire.NotSeen}}

// listening subscribes the library with this window.
func listening(window int, mode wire.Mode) exchange {
	fields := []field{text(tagTopic, place), number(tagMode, uint64(mode))}
	if window > 0 {
		fields = append(fields, number(tagCredit, uint64(window)))
	}
	return exchange{what: "a Subscribe", ask: subscribing(client.Filter{Topic: place, Mode: mode, Window: window}), kind: kindSubscribe, fields: fields,
		answer: []field{number(tagAnswer, answerAccepted)}}
}

// receive delivers a message to the subscription and checks that it arrives
// unchanged.
func (p *posed) receive(want wire.Message, fields ...field) error {
	p.write(message(head(kindDeliver, p.stream, fields...), want.Payload))
	if err := called(p.ctx, func() (err error) {
		p.held, err = p.sub.Receive(p.ctx)
		return err
	})(); err != nil {
		return fmt.Errorf("a delivery: %w", err)
	}
	want.Version, want.Kind, want.Request = version, wire.Deliver, p.stream
	return same("a delivery", p.held.Message, want)
}

// credits requires the library to grant n credits.
func (p *posed) credits(n uint64) error {
	return p.says(head(kindCredit, p.stream, number(tagCredit, n)), nil)
}

func largest() map[string]string {
	h := map[string]string{}
	for i := range 64 {
		h[fmt.Sprintf("%03d", i)] = long(1021)
	}
	return h
}

const never = 64 * time.Millisecond // 128 after zigzag encoding: the smallest that takes two bytes

var whole = bytes.Repeat([]byte("payload."), maxPayload/8)

// Every call of the library, with every field at its limit.
var sayings = []exchange{
	{what: "a Publish of every field at its limit", kind: kindPublish, payload: []byte("hello"),
		ask: publishing(wire.Message{Topic: long(255), Mode: wire.AtLeastOnce, BusinessID: long(128), MessageID: long(128), Key: long(128), Headers: largest(),
			TTL: 24 * time.Hour, Payload: []byte("hello")}),
		fields: []field{text(tagTopic, long(255)), number(tagMode, modeLeast), text(tagBusiness, long(128)), text(tagMessage, long(128)), text(tagKey, long(128)), large(), milliseconds(tagTTL, 24*3600*1000)},
		answer: []field{text(tagMessage, long(128)), number(tagAgain, 1), number(tagAnswer, answerAccepted), text(tagReason, long(1024)), number(tagCause, 7)},
		hears:  &wire.Message{MessageID: long(128), Again: true, Answer: wire.Accepted, Reason: long(1024), Cause: wire.Forbidden}},
	{what: "a Publish of nothing", ask: publishing(wire.Message{Topic: place, Mode: wire.AtMostOnce}), kind: kindPublish, fields: once(milliseconds(tagTTL, 2345)),
		answer: []field{number(tagAnswer, answerDeclined), text(tagReason, "nobody"), number(tagCause, 1)},
		hears:  &wire.Message{Answer: wire.Declined, Reason: "nobody", Cause: wire.NoConsumer}},
	{what: "a Publish of 4 MiB", ask: publishing(wire.Message{Topic: place, Mode: wire.AtMostOnce, TTL: -never, Payload: whole}), kind: kindPublish,
		fields: once(milliseconds(tagTTL, -never.Milliseconds())), payload: whole,
		answer: []field{number(tagAnswer, answerUnknown)}, hears: &wire.Message{Answer: wire.Unknown}},
	{what: "a Publish with headers", kind: kindPublish,
		ask:    publishing(wire.Message{Topic: place, Mode: wire.AtMostOnce, TTL: never, Headers: map[string]string{"c": "", "b": long(128), "a": long(127), long(1024): ""}}),
		fields: once(headers(long(1024), "", "a", long(127), "b", long(128), "c", ""), milliseconds(tagTTL, never.Milliseconds())),
		answer: []field{number(tagAnswer, 3)}, hears: &wire.Message{Answer: wire.Rejected}},
	{what: "a Lookup", ask: looking(place, 1500*time.Millisecond), kind: kindLookup, fields: []field{text(tagBusiness, place), milliseconds(tagTTL, 1500)},
		answer: []field{text(tagBusiness, long(128)), text(tagMessage, "m-1"), number(tagAnswer, answerForgotten), text(tagReason, "late"), number(tagCause, 5)},
		hears:  &wire.Message{BusinessID: long(128), MessageID: "m-1", Answer: wire.Forgotten, Reason: "late", Cause: wire.Expired}},
	{what: "a Lookup of the least age", ask: looking(place, time.Nanosecond), kind: kindLookup, fields: []field{text(tagBusiness, place), milliseconds(tagTTL, 1)},
		answer: []field{number(tagAnswer, answerStored)}, hears: &wire.Message{Answer: wire.Stored}},
	alive,
	{what: "an Admin", ask: commanding("stats", ""), kind: kindAdmin, fields: []field{text(tagTopic, "stats")},
		answer: []field{number(tagAnswer, answerAccepted)}, with: []byte(`{"settled":1}`), hears: &wire.Message{Answer: wire.Accepted, Payload: []byte(`{"settled":1}`)}},
	{what: "an Admin of a message", ask: commanding("dlq.show", "m-1"), kind: kindAdmin, fields: []field{text(tagTopic, "dlq.show"), text(tagMessage, "m-1")},
		answer: []field{text(tagMessage, "m-1"), number(tagAnswer, answerRefused)}, hears: &wire.Message{MessageID: "m-1", Answer: wire.Refused}},
	{what: "a Subscribe that is declined", ask: subscribing(client.Filter{Topic: place, Mode: wire.AtMostOnce}), kind: kindSubscribe,
		fields: once(), answer: []field{number(tagAnswer, answerDeclined)}, refused: true},
	{what: "a Subscribe of every field at its limit", kind: kindSubscribe,
		ask:    subscribing(client.Filter{Topic: long(255), Group: long(128), Mode: wire.AtLeastOnce, Window: 1 << 20}),
		fields: []field{text(tagTopic, long(255)), text(tagGroup, long(128)), number(tagMode, modeLeast), number(tagCredit, 1<<20)},
		answer: []field{number(tagAnswer, answerAccepted)}},
}

// settlements are the ways to settle delivery m-1, attempt 2.
var settlements = []exchange{
	{what: "a Nack that is refused", ask: rejecting(client.Rejection{Reason: long(1024), Delay: never, DeadLetter: true}), kind: kindNack,
		fields: []field{text(tagMessage, "m-1"), number(tagAttempt, 2), milliseconds(tagDelay, never.Milliseconds()), number(tagDead, 1), text(tagReason, long(1024))},
		answer: []field{text(tagMessage, "m-1"), number(tagAnswer, answerRefused), text(tagReason, "not yours")},
		hears:  &wire.Message{MessageID: "m-1", Answer: wire.Refused, Reason: "not yours"}},
	{what: "a Nack with a negative delay", ask: rejecting(client.Rejection{Delay: -1500 * time.Millisecond}), kind: kindNack,
		fields: []field{text(tagMessage, "m-1"), number(tagAttempt, 2), milliseconds(tagDelay, -1500)},
		answer: []field{number(tagAnswer, answerRefused)}, hears: &wire.Message{Answer: wire.Refused}},
	{what: "an Ack", ask: acknowledging, kind: kindAck, fields: []field{text(tagMessage, "m-1"), number(tagAttempt, 2)},
		answer: []field{text(tagMessage, "m-1"), number(tagAnswer, answerAccepted)}, hears: &wire.Message{MessageID: "m-1", Answer: wire.Accepted}},
}

func libraryCalls(p *posed) error {
	if err := p.exchanges(sayings...); err != nil {
		return err
	}
	for _, n := range []int{1 << 20, 1} {
		if err := p.sub.Grant(n); err != nil {
			return err
		}
		if err := p.credits(uint64(n)); err != nil {
			return err
		}
	}
	// A delivery to an unknown subscription is ignored.
	p.write(message(head(kindDeliver, p.stream-1, text(tagMessage, "m-0")), nil))
	p.write(message(head(kindPong, 0), nil))
	p.write(message(head(kindPing, p.request), nil))
	if err := p.receive(wire.Message{Topic: long(255), BusinessID: long(128), MessageID: long(128), Key: long(128), Headers: largest(), Attempt: math.MaxInt32, Again: true, Payload: whole},
		text(tagTopic, long(255)), text(tagBusiness, long(128)), text(tagMessage, long(128)), text(tagKey, long(128)), large(), number(tagAttempt, math.MaxInt32), number(tagAgain, 1)); err != nil {
		return err
	}
	if err := p.receive(wire.Message{MessageID: "m-1", Attempt: 2}, text(tagMessage, "m-1"), number(tagAttempt, 2)); err != nil {
		return err
	}
	if err := p.exchanges(settlements...); err != nil {
		return err
	}
	// A repeated answer is ignored.
	p.write(message(head(kindAck+1, p.request, number(tagAnswer, answerAccepted)), nil))
	leave := exchange{what: "an Unsubscribe", ask: unsubscribing, kind: kindUnsubscribe, fields: []field{text(tagTopic, long(255)), text(tagGroup, long(128)), number(tagMode, modeLeast)},
		answer: []field{number(tagAnswer, answerAccepted)}}
	if err := p.exchange(leave); err != nil {
		return err
	}
	p.write(message(head(kindDeliver, p.stream, text(tagMessage, "m-2")), nil))
	leave.answer, leave.refused = []field{number(tagAnswer, answerRefused)}, true
	if err := p.exchanges(leave, alive); err != nil {
		return err
	}
	if d, err := p.sub.Receive(p.ctx); !errors.Is(err, client.ErrUnsubscribed) {
		return fmt.Errorf("after an Unsubscribe the library receives %v, %v", d, err)
	}
	// At most once, receiving uses up the credit.
	if err := p.exchange(listening(2, wire.AtMostOnce)); err != nil {
		return err
	}
	for range 2 {
		if err := errors.Join(p.receive(wire.Message{Topic: place}, text(tagTopic, place)), p.credits(1)); err != nil {
			return err
		}
	}
	// Also where several have come at once.
	one := message(head(kindDeliver, p.stream, text(tagTopic, place)), nil)
	p.write(append(one, one...))
	if err := p.exchange(alive); err != nil {
		return err
	}
	for range 2 {
		_, err := p.sub.Receive(p.ctx)
		if err := errors.Join(err, p.credits(1)); err != nil {
			return err
		}
	}
	return p.exchange(alive)
}

// beyond lists calls that the library must refuse without sending anything.
var beyond = []struct {
	what string
	ask  func(*posed) (wire.Message, error)
}{
	{"a topic of 256 bytes", publishing(wire.Message{Topic: long(256)})},
	{"a topic that is not UTF-8", publishing(wire.Message{Topic: "\xff"})},
	{"a business ID of 129 bytes", publishing(wire.Message{BusinessID: long(129)})},
	{"a message ID of 129 bytes", publishing(wire.Message{MessageID: long(129)})},
	{"a key of 129 bytes", publishing(wire.Message{Key: long(129)})},
	{"a mode that does not exist", publishing(wire.Message{Mode: 3})},
	{"a time to live below a millisecond", publishing(wire.Message{TTL: time.Microsecond})},
	{"65 headers", publishing(wire.Message{Headers: func() map[string]string { h := largest(); h["64"] = ""; return h }()})},
	{"a header of 1025 bytes", publishing(wire.Message{Headers: map[string]string{"name": long(1021)}})},
	{"a header name of 1025 bytes", publishing(wire.Message{Headers: map[string]string{long(1025): ""}})},
	{"a header without a name", publishing(wire.Message{Headers: map[string]string{"": "1"}})},
	{"a header name that is not UTF-8", publishing(wire.Message{Headers: map[string]string{"\xff": "1"}})},
	{"a header that is not UTF-8", publishing(wire.Message{Headers: map[string]string{"a": "\xff"}})},
	{"a payload of 4 MiB and one byte", publishing(wire.Message{Payload: append(whole[:maxPayload:maxPayload], 0)})},
	{"a field that a Publish does not have", publishing(wire.Message{Client: "me"})},
	{"a mark that a Publish does not have", publishing(wire.Message{Again: true})},
	{"headers where there is neither topic nor business ID", looking(long(129), 0)},
	{"a command of 256 bytes", commanding(long(256), "")},
	{"a group of 129 bytes", subscribing(client.Filter{Topic: place, Group: long(129), Mode: wire.AtMostOnce})},
	{"a window of 2^20 and one", subscribing(client.Filter{Topic: place, Mode: wire.AtMostOnce, Window: 1<<20 + 1})},
	{"a negative window", subscribing(client.Filter{Topic: place, Mode: wire.AtMostOnce, Window: -1})},
	{"a delay below a millisecond", rejecting(client.Rejection{Delay: -time.Microsecond})},
	{"a reason of 1025 bytes", rejecting(client.Rejection{Reason: long(1025)})},
	{"a grant of 2^20 and one", func(p *posed) (none wire.Message, err error) { return none, p.sub.Grant(1<<20 + 1) }},
	{"a grant of less than nothing", func(p *posed) (none wire.Message, err error) { return none, p.sub.Grant(-1) }},
	{"an Ack of a message ID of 129 bytes", func(p *posed) (wire.Message, error) {
		d := *p.held
		d.MessageID = long(129)
		return d.Ack(p.ctx)
	}},
}

// libraryRefuses uses a window of one, which a refused call must not take up.
func libraryRefuses(p *posed) error {
	if err := p.exchange(listening(0, wire.AtLeastOnce)); err != nil {
		return err
	}
	if err := p.receive(wire.Message{MessageID: "m-1"}, text(tagMessage, "m-1")); err != nil {
		return err
	}
	sub, stream := p.sub, p.stream
	for _, b := range beyond {
		p.sub, p.stream = sub, stream
		err := called(p.ctx, func() error { _, err := b.ask(p); return err })()
		if !errors.Is(err, wire.ErrField) || errors.Is(err, client.ErrDisconnected) {
			return fmt.Errorf("%s: %w", b.what, unsaid(err))
		}
	}
	return p.exchanges(exchange{what: "a Publish", ask: publishing(wire.Message{Topic: place, Mode: wire.AtMostOnce}), kind: kindPublish, fields: once(),
		answer: []field{number(tagAnswer, answerAccepted)}, hears: &wire.Message{Answer: wire.Accepted}}, alive)
}

// unheard lists messages from a broker that end the library's session.
var unheard = []struct {
	what string
	say  []byte
	as   error
}{
	{"an answer that does not exist", head(kindPublishReply, asked, number(tagAnswer, 11)), wire.ErrField},
	{"a cause that does not exist", head(kindPublishReply, asked, number(tagAnswer, 1), number(tagCause, 8)), wire.ErrField},
	{"a mark of two", head(kindDeliver, asked, number(tagAgain, 2)), wire.ErrField},
	{"an attempt of 2^31", head(kindDeliver, asked, number(tagAttempt, math.MaxInt32+1)), wire.ErrField},
	{"a reason of 1025 bytes", head(kindError, asked, text(tagReason, long(1025))), wire.ErrField},
	{"a field of another kind", head(kindPong, asked, number(tagAnswer, 1)), wire.ErrField},
	{"a newer version", withVersion(version + 1), wire.ErrVersion},
	{"an older version", withVersion(version - 1), wire.ErrVersion},
	{"no mark of the protocol", []byte("hello"), wire.ErrMalformed},
	{"an Error of nothing", head(kindError, 0, text(tagReason, "no")), client.ErrRefused},
}

// libraryEnds ends sessions in every way that the broker's side can. Pending
// calls and later ones must report why.
func libraryEnds(p *posed) error {
	for _, u := range unheard {
		next, err := pose(p.ctx, client.Options{Name: "stranger"}, welcome(1))
		if err != nil {
			return err
		}
		err = next.ends(func() { next.write(message(u.say, nil)) }, u.as)
		if err = errors.Join(err, next.end()); err != nil {
			return fmt.Errorf("%s: %w", u.what, err)
		}
	}
	return p.ends(func() { p.nc.Close() }, client.ErrDisconnected)
}

// ends ends a session while a publish, a second one waiting for the window, and
// receivers are pending. All of them, and every later call, must report it.
func (p *posed) ends(end func(), as error) error {
	if err := p.exchange(listening(1, wire.AtLeastOnce)); err != nil {
		return err
	}
	if err := p.conn.Err(); err != nil {
		return fmt.Errorf("before its end the session says %w", err)
	}
	receive := func() error { _, err := p.sub.Receive(p.ctx); return err }
	publish := func() error { _, err := publishing(wire.Message{Topic: place, Mode: wire.AtMostOnce})(p); return err }
	waits := []func() error{called(p.ctx, publish), called(p.ctx, publish), called(p.ctx, receive), called(p.ctx, receive)}
	p.request++
	if err := p.says(head(kindPublish, p.request, once()...), nil); err != nil {
		return err
	}
	end()
	for i, wait := range append(waits, publish, receive, func() error { return p.sub.Grant(1) }, func() error { <-p.conn.Done(); return p.conn.Err() }) {
		err := wait()
		if !errors.Is(err, client.ErrDisconnected) || !errors.Is(err, as) && i != len(waits)+2 { // a Credit has no answer
			return fmt.Errorf("who waits for the end, or comes after it (%d), hears: %w", i+1, unsaid(err))
		}
	}
	return nil
}

// libraryCloses closes the session from the library's side, which the broker's
// side must see.
func libraryCloses(p *posed) error {
	if err := p.ends(func() { _ = called(p.ctx, p.conn.Close)() }, client.ErrDisconnected); err != nil {
		return err
	}
	if _, _, err := p.parts(); err == nil || p.ctx.Err() != nil {
		return fmt.Errorf("the library's session goes on after its end: %w", unsaid(err))
	}
	return nil
}

// libraryWindow checks the publish window: that many publishes are sent, and the
// next waits for an answer.
func libraryWindow(places int) func(*posed) error {
	return func(p *posed) error {
		send := func(ctx context.Context) error {
			_, err := p.conn.Publish(ctx, wire.Message{Topic: place, Mode: wire.AtMostOnce})
			return err
		}
		for range places {
			if err := send(p.ctx); err != nil {
				return err
			}
			p.request++
			if err := p.says(head(kindPublish, p.request, once()...), nil); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(p.ctx, 20*time.Millisecond)
		defer cancel()
		if err := send(ctx); !errors.Is(err, context.DeadlineExceeded) || p.ctx.Err() != nil {
			return fmt.Errorf("a publish beyond %d: %w", places, unsaid(err))
		}
		for _, answer := range [][]byte{ // either gives a place back
			head(kindError, p.request, text(tagReason, "no")), head(kindPublishReply, p.request+1, number(tagAnswer, answerAccepted)),
		} {
			next := called(p.ctx, func() error { return send(p.ctx) })
			p.write(message(answer, nil))
			p.request++
			if err := errors.Join(p.says(head(kindPublish, p.request, once()...), nil), next()); err != nil {
				return err
			}
		}
		return p.exchange(alive)
	}
}

// libraryBacklog delivers as much as the library buffers for an application that
// does not receive, and then one more.
func libraryBacklog(p *posed) error {
	if err := p.exchange(listening(1, wire.AtLeastOnce)); err != nil {
		return err
	}
	if err := errors.Join(p.sub.Grant(2), p.credits(2)); err != nil {
		return err
	}
	one := message(head(kindDeliver, p.stream, text(tagMessage, "m-1")), nil)
	p.write(bytes.Repeat(one, 3+1024))
	if err := p.exchange(alive); err != nil {
		return fmt.Errorf("with all that it keeps: %w", err)
	}
	p.write(one)
	if err := p.exchange(alive); !errors.Is(err, client.ErrDisconnected) || p.ctx.Err() != nil {
		return fmt.Errorf("with one more: %w", unsaid(err))
	}
	return nil
}

// libraryWaiters has many calls wait for a delivery; each must get one.
func libraryWaiters(p *posed) error {
	const n = 64
	if err := p.exchange(listening(n, wire.AtLeastOnce)); err != nil {
		return err
	}
	waits := make([]func() error, n)
	for i := range waits {
		waits[i] = called(p.ctx, func() error { _, err := p.sub.Receive(p.ctx); return err })
	}
	p.write(bytes.Repeat(message(head(kindDeliver, p.stream, text(tagMessage, "m-1")), nil), n))
	for _, wait := range waits {
		if err := wait(); err != nil {
			return err
		}
	}
	ended, cancel := context.WithCancel(p.ctx)
	cancel()
	if _, err := p.sub.Receive(ended); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a Receive that is given up: %w", unsaid(err))
	}
	return p.exchange(alive)
}

// libraryFull does not read until the library's buffer is full: a publish then
// blocks, and a request fails. Once the broker reads again, everything arrives.
func libraryFull(p *posed) error {
	publish := func(ctx context.Context) error {
		_, err := p.conn.Publish(ctx, wire.Message{Topic: place, Mode: wire.AtMostOnce, Payload: whole[:1<<20]})
		return err
	}
	ended, cancel := context.WithCancel(p.ctx)
	cancel()
	sent := 0
	for full := false; !full; {
		short, cancel := context.WithTimeout(p.ctx, 20*time.Millisecond)
		err := publish(short)
		cancel()
		switch {
		case err == nil:
			sent++
			continue
		case !errors.Is(err, context.DeadlineExceeded) || p.ctx.Err() != nil:
			return fmt.Errorf("a publish while the broker does not read: %w", err)
		}
		_, err = p.conn.Lookup(ended, nowhere, 0)
		full = errors.Is(err, transport.ErrFull) && !errors.Is(err, client.ErrDisconnected)
		if !full && !errors.Is(err, context.Canceled) { // on a slow machine the buffer is not full yet
			return fmt.Errorf("a question while the broker does not read: %w", unsaid(err))
		}
	}
	last := called(p.ctx, func() error { return publish(p.ctx) })
	for came := 0; came <= sent; {
		h, err := p.hear()
		if err != nil {
			return fmt.Errorf("after %d of %d publishes: %w", came, sent+1, err)
		}
		p.request = max(p.request, h.request)
		if h.kind == kindPublish {
			came++
		}
	}
	return errors.Join(last(), p.exchange(alive))
}

// libraryStalled never reads: the library must give up, and report which
// publishes were never sent.
func libraryStalled(p *posed) error {
	var calls []*client.Call
	for range 16 {
		call, err := p.conn.Publish(p.ctx, wire.Message{Topic: place, Mode: wire.AtMostOnce, Payload: whole})
		if errors.Is(err, client.ErrDisconnected) {
			break // the machine is slow
		}
		if err != nil {
			return err
		}
		calls = append(calls, call)
	}
	if len(calls) < 8 { // the kernel's buffers may hold fewer
		return nil
	}
	for _, i := range []int{0, len(calls) - 1} {
		_, err := calls[i].Wait(p.ctx)
		if !errors.Is(err, client.ErrDisconnected) {
			return fmt.Errorf("a publish to a broker that does not read: %w", unsaid(err))
		}
		if written := calls[i].Written(); written != (i == 0) {
			return fmt.Errorf("of publish %d of %d the library says that it was written: %v", i+1, len(calls), written)
		}
	}
	return nil
}

// beating checks an idle session of the library: it sends heartbeats as long as
// the broker does, and ends the session when the broker is silent. If the machine
// stalled meanwhile, it tries again.
func beating(name, what string, o client.Options, opening []byte) probe {
	return listed(limits, name, what, evidence.ProbeAccepted, func(a *attempt) (systems.Probed, error) {
		for {
			p, err := pose(a.ctx, o, opening)
			if err == nil {
				err = p.beats()
				err = errors.Join(err, p.end())
			}
			if !errors.Is(err, errStoodStill) || a.ctx.Err() != nil { // a library that always ends too early is unanswered in the end
				return verdict(a.ctx, err), nil
			}
		}
	})
}

var errStoodStill = errors.New("the machine stood still")

func (p *posed) beats() error {
	var said atomic.Int64 // time of the last heartbeat, Unix nanoseconds
	say := func() {
		said.Store(time.Now().UnixNano())
		p.write(message(head(kindPing, 0), nil))
	}
	silence := func() time.Duration { return time.Since(time.Unix(0, said.Load())) }
	heard, stop := context.WithCancel(p.ctx)
	var saying tasks.Group
	defer saying.Wait()
	defer stop()
	say()
	saying.Go(func() {
		for heard.Err() == nil {
			select {
			case <-time.After(interval / 10):
				say()
			case <-heard.Done():
			}
		}
	})
	for {
		h, err := p.hear()
		switch {
		case p.ctx.Err() != nil && heard.Err() == nil:
			return errors.New("the library sends no heartbeat")
		case p.ctx.Err() != nil:
			return errors.New("the library does not end its session with a silent broker")
		case err != nil && (heard.Err() == nil || silence() < 2*interval): // the deadline in force may be older by a quarter of the interval
			return errStoodStill
		case err != nil:
			return nil
		case h.kind == kindPing:
			stop()
		}
	}
}

// entered checks how the library reacts to a broker's first message.
func entered(name, what string, opening []byte, as error) probe {
	return listed(limits, name, what, evidence.ProbeAccepted, func(a *attempt) (systems.Probed, error) {
		p, err := pose(a.ctx, client.Options{Name: "stranger"}, opening)
		switch {
		case as == nil && err == nil:
			err = errors.Join(p.exchange(alive), p.end())
		case as == nil:
		case errors.Is(err, as) && a.ctx.Err() == nil:
			err = nil
		default:
			err = fmt.Errorf("to a broker that does not let it in the library says: %w", unsaid(err))
		}
		return verdict(a.ctx, err), nil
	})
}

// libraryOverTLS connects the library to a broker whose certificate is for this
// name or address, with server as the name to verify.
func libraryOverTLS(certified x509.Certificate, server string) func(*attempt) (systems.Probed, error) {
	return func(a *attempt) (systems.Probed, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		}
		certified.SerialNumber, certified.NotAfter, certified.IsCA, certified.BasicConstraintsValid = big.NewInt(1), time.Now().Add(time.Hour), true, true
		der, err := x509.CreateCertificate(rand.Reader, &certified, &certified, &key.PublicKey, key)
		if err != nil {
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		}
		authority, err := x509.ParseCertificate(der)
		if err != nil {
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		}
		config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool(), ServerName: server}
		config.RootCAs.AddCert(authority)
		p, err := poseOver(a.ctx, client.Options{TLS: config}, welcome(1), func(nc net.Conn) net.Conn {
			return tls.Server(nc, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
		})
		if err == nil {
			err = errors.Join(p.exchange(alive), p.end())
		}
		if config.ServerName != server {
			err = errors.Join(err, fmt.Errorf("the library changes the application's configuration: its server name is %q", config.ServerName))
		}
		return verdict(a.ctx, err), nil
	}
}

// libraryDials connects the library to peers that are not brokers.
func libraryDials(a *attempt) (systems.Probed, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
	}
	defer ln.Close()
	dial := func(ctx context.Context) error {
		conn, err := client.Dial(ctx, ln.Addr().String(), client.Options{})
		if err == nil {
			conn.Close()
		}
		return err
	}
	short, cancel := context.WithTimeout(a.ctx, 20*time.Millisecond)
	defer cancel()
	// The deadline for connecting is os.ErrDeadlineExceeded, the one for the
	// handshake is ctx's.
	if err := called(a.ctx, func() error { return dial(short) })(); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) || a.ctx.Err() != nil {
		return verdict(a.ctx, fmt.Errorf("to a peer that is silent the library says: %w", unsaid(err))), nil
	}
	ln.Close()
	var refused net.Error
	if err := called(a.ctx, func() error { return dial(a.ctx) })(); !errors.As(err, &refused) || a.ctx.Err() != nil {
		return verdict(a.ctx, fmt.Errorf("where nobody listens the library says: %w", unsaid(err))), nil
	}
	return verdict(a.ctx, nil), nil
}

const interval = 100 * time.Millisecond

var posings = []probe{
	posing("library-says", "Every call of the client library, with every field at its limit: it says what the protocol has, and hears what was said.",
		client.Options{Name: long(128), Token: long(1024), DefaultTTL: 2345 * time.Millisecond}, welcome(1024), libraryCalls),
	posing("library-refuses", "The client library is given what the protocol does not have: it refuses the call, says nothing, and its session goes on.",
		client.Options{Name: "stranger", Window: 1}, welcome(1024), libraryRefuses),
	posing("library-ends", "A broker breaks off, or says what the protocol does not have: the client library ends its session, and tells everybody.",
		client.Options{Name: "stranger"}, welcome(1), libraryEnds),
	posing("library-closes", "The client library's session is closed while calls are under way.", client.Options{Name: "stranger"}, welcome(1), libraryCloses),
	posing("library-window", "The client library keeps the window of the broker.", client.Options{Window: 3}, welcome(2), libraryWindow(2)),
	posing("library-window-its-own", "The client library keeps a smaller window of its own.", client.Options{Name: "stranger", Window: 1}, welcome(2), libraryWindow(1)),
	posing("library-backlog", "A broker delivers more than was granted: the client library keeps 1024 more, and not one beyond.", client.Options{Name: "stranger"}, welcome(1), libraryBacklog),
	posing("library-waiters", "Many wait for a delivery in the client library: each gets one.", client.Options{Name: "stranger"}, welcome(1), libraryWaiters),
	posing("library-full", "A broker does not read for a while: publishes wait, and nothing is lost.", client.Options{Name: "stranger", Outgoing: 64 << 10}, welcome(1024), libraryFull),
	posing("library-stalled", "A broker never reads: the client library gives up, and tells what has never left.", client.Options{Name: "stranger", WriteTimeout: 300 * time.Millisecond}, welcome(1024), libraryStalled),
	beating("library-beats", "A broker is silent: the client library sends heartbeats at its own interval, and ends its session.", client.Options{Heartbeat: interval}, welcome(1)),
	beating("library-beats-as-told", "A broker is silent: the client library sends heartbeats at the interval that the broker has named, and ends its session.",
		client.Options{}, welcome(1, milliseconds(tagTTL, interval.Milliseconds()))),
	listed(limits, "library-dials", "The client library connects to what is silent, and where nobody listens: it says so, in time.", evidence.ProbeAccepted, libraryDials),
	listed(limits, "library-tls", "The client library connects over TLS, and names the address that it was given.", evidence.ProbeAccepted,
		libraryOverTLS(x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, "")),
	listed(limits, "library-tls-named", "The client library connects over TLS to a broker that has another name than its address.", evidence.ProbeAccepted,
		libraryOverTLS(x509.Certificate{DNSNames: []string{"broker.test"}}, "broker.test")),
	entered("library-busy", "A broker is busy, and says so before it lets the client library in.", append(message(head(kindPing, 0), nil), welcome(1)...), nil),
	entered("library-not-welcome", "A broker answers the client library's Hello with what is no Welcome.", message(head(kindPong, askedHello), nil), wire.ErrMalformed),
	entered("library-not-let-in", "A broker refuses the client library's Hello.", message(head(kindError, askedHello, text(tagReason, "no")), nil), client.ErrRefused),
	entered("library-not-understood", "A broker answers the client library's Hello in another version.", message(withVersion(version+1), nil), wire.ErrVersion),
	listed(limits, "library-name-over", "The client library is given a name of 129 bytes: it does not connect.", evidence.ProbeAccepted, libraryMisnamed(client.Options{Name: long(129)})),
	listed(limits, "library-token-over", "The client library is given a token of 1025 bytes: it does not connect.", evidence.ProbeAccepted, libraryMisnamed(client.Options{Token: long(1025)})),
}

func libraryMisnamed(o client.Options) func(*attempt) (systems.Probed, error) {
	return func(a *attempt) (systems.Probed, error) {
		err := called(a.ctx, func() error {
			conn, err := client.Dial(a.ctx, a.in.address, o)
			if err == nil {
				conn.Close()
			}
			return err
		})()
		if !errors.Is(err, wire.ErrField) {
			return verdict(a.ctx, fmt.Errorf("the library says: %w", unsaid(err))), nil
		}
		return verdict(a.ctx, nil), nil
	}
}
