package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"
	"unicode/utf8"
)

// Limits of the protocol, in bytes unless named otherwise. Both sides check them
// before allocating anything from a length that the peer announced.
const (
	MaxTopic      = 255
	MaxID         = 128 // client, group, business ID, message ID, key
	MaxToken      = 1024
	MaxReason     = 1024
	MaxHeaders    = 64
	MaxHeader     = 1024 // bytes of one header, name and value together
	MaxPayload    = 4 << 20
	MaxCredit     = 1 << 20
	MaxHead       = 80 << 10 // size of the head part; more than the sum of its fields
	maxDurationMS = math.MaxInt64 / int64(time.Millisecond)
)

// Errors of the codec. Each returned error wraps one of them and says what
// exactly is wrong.
var (
	// ErrVersion reports a protocol version that this package does not read.
	ErrVersion = errors.New("wire: protocol version not supported")
	// ErrMalformed reports bytes that are not a message of this protocol.
	ErrMalformed = errors.New("wire: malformed message")
	// ErrField reports a field that the kind does not have, that exceeds its
	// limit, or that is out of range.
	ErrField = errors.New("wire: invalid field")
)

const magic = 0xC5

// Tags of the head's fields, in the ascending order in which they are encoded. A
// tag is never reused.
const (
	tagClient = iota + 1
	tagToken
	tagTopic
	tagGroup
	tagMode
	tagBusinessID
	tagMessageID
	tagKey
	tagHeaders
	tagTTL
	tagAttempt
	tagAgain
	tagCredit
	tagDelay
	tagDeadLetter
	tagAnswer
	tagReason
	tagCause
	tagPayload // never in the head: it is the second part
)

type fieldSet uint32

func fields(tags ...int) (s fieldSet) {
	for _, t := range tags {
		s |= 1 << t
	}
	return s
}

func (s fieldSet) has(tag int) bool { return s&(1<<tag) != 0 }

// allowed says which fields each kind may carry; it mirrors the table in
// PROTOCOL.md.
var allowed = [...]fieldSet{
	Hello:            fields(tagClient, tagToken),
	Welcome:          fields(tagClient, tagCredit, tagTTL),
	Publish:          fields(tagTopic, tagMode, tagBusinessID, tagMessageID, tagKey, tagHeaders, tagTTL, tagPayload),
	PublishReply:     fields(tagMessageID, tagAgain, tagAnswer, tagReason, tagCause),
	Subscribe:        fields(tagTopic, tagGroup, tagMode, tagCredit),
	SubscribeReply:   fields(tagAnswer, tagReason, tagCause),
	Unsubscribe:      fields(tagTopic, tagGroup, tagMode),
	UnsubscribeReply: fields(tagAnswer, tagReason),
	Credit:           fields(tagCredit),
	Deliver:          fields(tagTopic, tagBusinessID, tagMessageID, tagKey, tagHeaders, tagAttempt, tagAgain, tagPayload),
	Ack:              fields(tagMessageID, tagAttempt),
	AckReply:         fields(tagMessageID, tagAnswer, tagReason),
	Nack:             fields(tagMessageID, tagAttempt, tagDelay, tagDeadLetter, tagReason),
	NackReply:        fields(tagMessageID, tagAnswer, tagReason),
	Lookup:           fields(tagBusinessID, tagTTL),
	LookupReply:      fields(tagBusinessID, tagMessageID, tagAnswer, tagReason, tagCause),
	Admin:            fields(tagTopic, tagMessageID),
	AdminReply:       fields(tagMessageID, tagAnswer, tagReason, tagCause, tagPayload),
	Ping:             0,
	Pong:             0,
	Error:            fields(tagReason),
}

func (k Kind) valid() bool { return k > Invalid && int(k) < len(allowed) }

// Encode appends the two parts of m, head and payload, to dst. The payload part
// aliases m.Payload. The head always carries Version; m.Version is ignored.
func Encode(dst [][]byte, m *Message) ([][]byte, error) {
	head, err := AppendHead(nil, m)
	if err != nil {
		return dst, err
	}
	return append(dst, head, m.Payload), nil
}

// AppendHead appends the head of m to dst, for callers that reuse buffers. On an
// error it returns dst unchanged.
func AppendHead(dst []byte, m *Message) ([]byte, error) {
	if !m.Kind.valid() {
		return dst, fmt.Errorf("%w: kind %d does not exist", ErrField, m.Kind)
	}
	e := encoder{buf: dst, may: allowed[m.Kind]}
	e.buf = append(e.buf, magic, Version, byte(m.Kind))
	e.buf = binary.AppendUvarint(e.buf, m.Request)
	e.text(tagClient, m.Client, MaxID)
	e.text(tagToken, m.Token, MaxToken)
	e.text(tagTopic, m.Topic, MaxTopic)
	e.text(tagGroup, m.Group, MaxID)
	e.number(tagMode, uint64(m.Mode), uint64(AtLeastOnce))
	e.text(tagBusinessID, m.BusinessID, MaxID)
	e.text(tagMessageID, m.MessageID, MaxID)
	e.text(tagKey, m.Key, MaxID)
	e.headers(m.Headers)
	e.duration(tagTTL, m.TTL)
	e.number(tagAttempt, uint64(m.Attempt), math.MaxInt32) // a negative value converts to one over any limit
	e.mark(tagAgain, m.Again)
	e.number(tagCredit, uint64(m.Credit), MaxCredit)
	e.duration(tagDelay, m.Delay)
	e.mark(tagDeadLetter, m.DeadLetter)
	e.number(tagAnswer, uint64(m.Answer), uint64(Forgotten))
	e.text(tagReason, m.Reason, MaxReason)
	e.number(tagCause, uint64(m.Cause), uint64(Forbidden))
	if len(m.Payload) > 0 && (!e.may.has(tagPayload) || len(m.Payload) > MaxPayload) {
		e.fail(tagPayload, "%d bytes (limit %d, and only in kinds that have one)", len(m.Payload), MaxPayload)
	}
	if e.err != nil {
		return dst, fmt.Errorf("encode kind %d: %w", m.Kind, e.err)
	}
	return e.buf, nil
}

type encoder struct {
	buf []byte
	may fieldSet
	err error
}

func (e *encoder) fail(tag int, format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf("%w: field %d: %s", ErrField, tag, fmt.Sprintf(format, args...))
	}
}

// The encoder keeps writing after an error; AppendHead discards the result.

func (e *encoder) begin(tag, size int) {
	if !e.may.has(tag) {
		e.fail(tag, "this kind does not have it")
	}
	e.buf = append(e.buf, byte(tag))
	e.buf = binary.AppendUvarint(e.buf, uint64(size))
}

func (e *encoder) text(tag int, s string, limit int) {
	switch {
	case s == "":
	case len(s) > limit:
		e.fail(tag, "%d bytes, limit %d", len(s), limit)
	case !utf8.ValidString(s):
		e.fail(tag, "not UTF-8")
	default:
		e.begin(tag, len(s))
		e.buf = append(e.buf, s...)
	}
}

func (e *encoder) number(tag int, v, limit uint64) {
	switch {
	case v == 0:
	case v > limit:
		e.fail(tag, "%d is over %d", v, limit)
	default:
		e.begin(tag, uvarintLen(v))
		e.buf = binary.AppendUvarint(e.buf, v)
	}
}

func (e *encoder) mark(tag int, v bool) {
	if v {
		e.number(tag, 1, 1)
	}
}

// duration preserves the sign: a negative time to live is for the broker to
// decline, not a framing error.
func (e *encoder) duration(tag int, d time.Duration) {
	ms := d.Milliseconds()
	if ms == 0 && d != 0 {
		e.fail(tag, "%v is shorter than the protocol's millisecond", d)
	}
	e.number(tag, zigzag(ms), math.MaxUint64)
}

func (e *encoder) headers(h map[string]string) {
	if len(h) == 0 {
		return
	}
	if len(h) > MaxHeaders {
		e.fail(tagHeaders, "%d headers, limit %d", len(h), MaxHeaders)
	}
	names := make([]string, 0, len(h))
	size := 0
	for name, value := range h {
		switch {
		case name == "":
			e.fail(tagHeaders, "a header without a name")
		case len(name)+len(value) > MaxHeader:
			e.fail(tagHeaders, "header %.32q has %d bytes, limit %d", name, len(name)+len(value), MaxHeader)
		case !utf8.ValidString(name) || !utf8.ValidString(value):
			e.fail(tagHeaders, "header %.32q is not UTF-8", name)
		}
		names = append(names, name)
		size += uvarintLen(uint64(len(name))) + len(name) + uvarintLen(uint64(len(value))) + len(value)
	}
	slices.Sort(names) // so that the encoding is canonical
	e.begin(tagHeaders, size)
	for _, name := range names {
		for _, s := range [2]string{name, h[name]} {
			e.buf = binary.AppendUvarint(e.buf, uint64(len(s)))
			e.buf = append(e.buf, s...)
		}
	}
}

// Decode decodes a message from its two parts. The message's payload aliases
// parts[1]; nothing else retains parts. Decoding is strict: a message has exactly
// one encoding, and any other byte sequence is an error. On an error the returned
// message still carries Version, Kind and Request as far as they were read, so
// that the refusal can name the request.
func Decode(parts [][]byte) (Message, error) {
	if len(parts) != 2 {
		return Message{}, fmt.Errorf("%w: %d parts, must be 2 (head, payload)", ErrMalformed, len(parts))
	}
	return DecodeParts(parts[0], parts[1])
}

// DecodeParts is Decode for a caller that has no slice of parts.
func DecodeParts(head, payload []byte) (Message, error) {
	var m Message
	if len(head) < 3 || head[0] != magic {
		return m, fmt.Errorf("%w: the head does not begin with the protocol's mark", ErrMalformed)
	}
	m.Version = head[1]
	if m.Version < OldestVersion || m.Version > Version {
		return m, fmt.Errorf("%w: version %d, this side reads %d to %d", ErrVersion, m.Version, OldestVersion, Version)
	}
	m.Kind = Kind(head[2])
	if !m.Kind.valid() {
		kind := m.Kind
		m.Kind = Invalid
		return m, fmt.Errorf("%w: kind %d does not exist", ErrMalformed, kind)
	}
	// A single string backs all text fields, because substrings do not allocate.
	d := decoder{rest: string(head[3:]), may: allowed[m.Kind]}
	m.Request = d.uvarint()
	for last := 0; d.err == nil && len(d.rest) > 0; {
		last = d.field(&m, last)
	}
	if len(payload) > 0 && (!d.may.has(tagPayload) || len(payload) > MaxPayload) {
		d.fail(ErrField, "field %d: %d bytes (limit %d, and only in kinds that have one)", tagPayload, len(payload), MaxPayload)
	}
	if d.err != nil {
		return Message{Version: m.Version, Kind: m.Kind, Request: m.Request}, fmt.Errorf("decode kind %d: %w", m.Kind, d.err)
	}
	if len(payload) > 0 {
		m.Payload = payload
	}
	return m, nil
}

type decoder struct {
	rest string
	may  fieldSet
	err  error
}

// fail keeps the first error and drops the remaining input, which ends decoding.
func (d *decoder) fail(base error, format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", base, fmt.Sprintf(format, args...))
	}
	d.rest = ""
}

// uvarint accepts only the shortest encoding.
func (d *decoder) uvarint() uint64 {
	var b [binary.MaxVarintLen64]byte
	v, n := binary.Uvarint(b[:copy(b[:], d.rest)])
	if n <= 0 || n > 1 && b[n-1] == 0 {
		d.fail(ErrMalformed, "a number is cut short or not in its shortest form")
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) bytes(limit int) (s string) {
	n := d.uvarint()
	switch {
	case n > uint64(limit):
		d.fail(ErrField, "%d bytes, limit %d", n, limit)
	case n > uint64(len(d.rest)):
		d.fail(ErrMalformed, "%d bytes announced, %d left", n, len(d.rest))
	default:
		s, d.rest = d.rest[:n], d.rest[n:]
	}
	return s
}

func (d *decoder) field(m *Message, last int) (tag int) {
	tag = int(d.rest[0])
	d.rest = d.rest[1:]
	switch {
	case tag <= last:
		d.fail(ErrMalformed, "it stands after field %d", last)
	case tag == tagPayload || !d.may.has(tag):
		d.fail(ErrField, "it does not exist in this kind")
	default:
		d.value(m, tag)
	}
	if d.err != nil {
		d.err = fmt.Errorf("field %d: %w", tag, d.err)
	}
	return tag
}

func (d *decoder) value(m *Message, tag int) {
	switch tag {
	case tagClient:
		m.Client = d.text(MaxID)
	case tagToken:
		m.Token = d.text(MaxToken)
	case tagTopic:
		m.Topic = d.text(MaxTopic)
	case tagGroup:
		m.Group = d.text(MaxID)
	case tagMode:
		m.Mode = Mode(d.number(uint64(AtLeastOnce)))
	case tagBusinessID:
		m.BusinessID = d.text(MaxID)
	case tagMessageID:
		m.MessageID = d.text(MaxID)
	case tagKey:
		m.Key = d.text(MaxID)
	case tagHeaders:
		m.Headers = d.headers()
	case tagTTL:
		m.TTL = d.duration()
	case tagAttempt:
		m.Attempt = int(d.number(math.MaxInt32))
	case tagAgain:
		m.Again = d.number(1) == 1
	case tagCredit:
		m.Credit = int(d.number(MaxCredit))
	case tagDelay:
		m.Delay = d.duration()
	case tagDeadLetter:
		m.DeadLetter = d.number(1) == 1
	case tagAnswer:
		m.Answer = Answer(d.number(uint64(Forgotten)))
	case tagReason:
		m.Reason = d.text(MaxReason)
	case tagCause:
		m.Cause = Cause(d.number(uint64(Forbidden)))
	}
}

func (d *decoder) text(limit int) string {
	s := d.bytes(limit)
	switch {
	case s == "":
		d.fail(ErrMalformed, "an empty field is left out")
	case !utf8.ValidString(s):
		d.fail(ErrField, "not UTF-8")
	}
	return s
}

func (d *decoder) number(limit uint64) uint64 {
	in := decoder{rest: d.bytes(binary.MaxVarintLen64)}
	v := in.uvarint()
	switch {
	case in.err != nil || in.rest != "":
		d.fail(ErrMalformed, "not a number in its shortest form")
	case v == 0:
		d.fail(ErrField, "zero is left out")
	case v > limit:
		d.fail(ErrField, "%d is over %d", v, limit)
	}
	return v
}

func (d *decoder) duration() time.Duration {
	ms := unzigzag(d.number(math.MaxUint64))
	if ms > maxDurationMS || ms < -maxDurationMS {
		d.fail(ErrField, "%d ms is out of range", ms)
	}
	return time.Duration(ms) * time.Millisecond
}

func (d *decoder) headers() map[string]string {
	in := decoder{rest: d.bytes(MaxHead)}
	h := make(map[string]string, min(MaxHeaders, len(in.rest)/2))
	last := ""
	for in.rest != "" {
		name := in.bytes(MaxHeader)
		value := in.bytes(MaxHeader)
		switch {
		case name <= last:
			in.fail(ErrMalformed, "header %.32q is empty, repeated or not in order", name)
		case len(name)+len(value) > MaxHeader:
			in.fail(ErrField, "header %.32q has %d bytes, limit %d", name, len(name)+len(value), MaxHeader)
		case !utf8.ValidString(name) || !utf8.ValidString(value):
			in.fail(ErrField, "header %.32q is not UTF-8", name)
		case len(h) == MaxHeaders:
			in.fail(ErrField, "more than %d headers", MaxHeaders)
		}
		h[name] = value
		last = name
	}
	if len(h) == 0 {
		in.fail(ErrMalformed, "an empty field is left out")
	}
	d.err = cmp.Or(d.err, in.err)
	return h
}

func zigzag(v int64) uint64   { return uint64(v<<1) ^ uint64(v>>63) }
func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }
