package zeromq

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

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
		defer func() { _ = called(a.ctx, conn.Close)() }()
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
	unread("request-padded", "A request with an empty byte within, and another after it.", message([]byte{mark, version, kindPing, 0x87, 0x00, 0x01}, nil)),
	unread("request-too-long", "A request of eleven bytes.", message(append(append([]byte{mark, version, kindPing}, bytes.Repeat([]byte{0xff}, 10)...), 1), nil)),
	unread("request-too-large", "A request beyond 64 bits.", message(append(append([]byte{mark, version, kindPing}, bytes.Repeat([]byte{0xff}, 9)...), 2), nil)),
	within(strangers, "request-largest", "The largest request that there is.", evidence.ProbeAnswered, expected{kind: kindPong, request: math.MaxUint64}, message(head(kindPing, math.MaxUint64), nil)),
	unread("one-part", "A message of one part.", frame(false, head(kindPing, asked))),
	unread("three-parts", "A message of three parts.", append(append(frame(true, head(kindPing, asked)), frame(true, nil)...), frame(false, nil)...)),
	refused(strangers, "field-unknown", "A field that does not exist.", publishes(once(raw(beyondAllTag, nil))...)),
	refused(strangers, "field-payload", "A head that ends with the tag of the payload.", publishes(once(field{tagPayload})...)),
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

// longest is the greatest number of milliseconds that fits 64 bits of nanoseconds.
const longest = math.MaxInt64 / int64(time.Millisecond)

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
	refused(limits, "ttl-over", "A time to live beyond what nanoseconds hold.", publishes(once(milliseconds(tagTTL, longest+1))...)),
	refused(limits, "ttl-under", "A time to live as far below zero.", publishes(once(milliseconds(tagTTL, -longest-1))...)),
	delivered("ttl", "A time to live of ten years.", once(milliseconds(tagTTL, tenYears))...),
}
