// Package mqtt observes MQTT 3.1.1 and 5.0
// (https://docs.oasis-open.org/mqtt/mqtt/v5.0/mqtt-v5.0.html).
package mqtt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// Protocol of links to an MQTT server. The zero value is ready; the version is
// what each connection's CONNECT says.
//
// Answers find their packet by its identifier, so each frame can be struck
// alone. MQTT gives a message no ID of its own: the identifier is one
// connection's, and used again.
type Protocol struct{}

var (
	_ links.Protocol  = Protocol{}
	_ links.Corrupter = Protocol{}
)

// Kinds of MQTT beyond the uniform ones. At quality of service (QoS) 2 the
// answer to a publish is the last packet of four, because only then has the
// server passed it on; and a delivery is acknowledged by the consumer's PUBREC,
// after which the server may not send it again.
const (
	FramePublishReceived = "publish-received" // PUBREC of a publish
	FramePublishRelease  = "publish-release"  // PUBREL of a publish
	FrameAckComplete     = "ack-complete"     // PUBCOMP of a delivery
	FrameDisconnect      = "disconnect"       // the server ends the connection
)

var kinds = []links.KindInfo{
	{Name: links.FramePublish, To: evidence.ToBroker, Text: "PUBLISH by a client"},
	{Name: links.FrameAccept, To: evidence.ToClient, Text: "the answer to a publish: PUBACK at QoS 1, PUBCOMP or a PUBREC that refuses at QoS 2"},
	{Name: FramePublishReceived, To: evidence.ToClient, Text: "PUBREC of a publish at QoS 2: received, not yet passed on"},
	{Name: FramePublishRelease, To: evidence.ToBroker, Text: "PUBREL of a publish at QoS 2: the server may pass it on"},
	{Name: links.FrameDeliver, To: evidence.ToClient, Text: "PUBLISH by the server"},
	{Name: links.FrameAck, To: evidence.ToBroker, Text: "a consumer has processed a message: PUBACK at QoS 1, PUBREC at QoS 2"},
	{Name: links.FrameAckConfirm, To: evidence.ToClient, Text: "PUBREL of a delivery at QoS 2: the server has discarded it (QoS 1 has no such answer)"},
	{Name: FrameAckComplete, To: evidence.ToBroker, Text: "PUBCOMP of a delivery at QoS 2: its packet identifier is free again"},
	{Name: links.FrameSubscribe, To: evidence.ToBroker, Text: "SUBSCRIBE"},
	{Name: links.FrameSubscribed, To: evidence.ToClient, Text: "SUBACK"},
	{Name: links.FrameUnsubscribe, To: evidence.ToBroker, Text: "UNSUBSCRIBE"},
	{Name: links.FrameUnsubscribed, To: evidence.ToClient, Text: "UNSUBACK"},
	{Name: FrameDisconnect, To: evidence.ToClient, Text: "DISCONNECT by the server (MQTT 5), with its reason"},
}

// Name is "mqtt".
func (Protocol) Name() string { return "mqtt" }

// Kinds are all named kinds.
func (Protocol) Kinds() []links.KindInfo { return slices.Clone(kinds) }

// Legal allows everything but to corrupt what is not a message of the application.
func (p Protocol) Legal(kind string, a links.Action) error {
	return links.LegalAlone(p.Name(), kind, a)
}

// Corrupt gives a copy of the frame with one byte of the payload altered. A
// frame does not say its version: the payload is where an envelope of ours begins.
func (Protocol) Corrupt(f links.Frame) ([]byte, error) {
	raw := bytes.Clone(f.Raw)
	p, n, err := parse(raw)
	if err != nil || n != len(raw) || p.kind != publish {
		return nil, errors.Join(errors.New("mqtt: not a whole PUBLISH"), err)
	}
	for _, version := range []byte{version5, version311} {
		m, err := p.publication(version)
		if err != nil {
			continue
		}
		if payload, _, ok := envelope(m.payload); ok {
			return raw, links.CorruptPayload(payload)
		}
	}
	return nil, errors.New("mqtt: a PUBLISH without an envelope: where its payload begins is not certain")
}

// The protocol versions, as CONNECT has them.
const (
	version31  = 3
	version311 = 4
	version5   = 5
)

// conn is what the two framers of a connection share.
type conn struct {
	version   atomic.Uint32 // 0 until CONNECT was seen
	published sent
	delivered sent
}

// sent is what was last sent under each packet identifier, of which there are
// 65,535. Safe for concurrent use.
type sent struct {
	mu    sync.Mutex
	items map[uint16]evidence.FrameItem
}

func (s *sent) put(id uint16, item evidence.FrameItem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.items == nil {
		s.items = make(map[uint16]evidence.FrameItem)
	}
	s.items[id] = item
}

// get gives the zero item for what was sent on an earlier connection.
func (s *sent) get(id uint16) evidence.FrameItem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items[id]
}

// NewConn starts the framing of one connection.
func (Protocol) NewConn(*links.Index) (toBroker, toClient links.Framer) {
	c := &conn{}
	return framer{c, c.ofClient}, framer{c, c.ofServer}
}

// framer cuts one direction into packets.
type framer struct {
	conn       *conn
	understand func(packet, *links.Frame) error // names the frame and says what it carries
}

func (f framer) Next(buf []byte) (links.Frame, int, error) {
	p, n, err := parse(buf)
	if err != nil {
		return links.Frame{}, 0, err
	}
	if p.kind != 0 && p.kind != connect && f.conn.version.Load() == 0 {
		return links.Frame{}, 0, errors.New("mqtt: the connection does not begin with CONNECT")
	}
	if n == 0 {
		return links.Frame{}, 0, nil
	}
	frame := links.Frame{Raw: buf[:n]}
	if err := f.understand(p, &frame); err != nil {
		return links.Frame{}, 0, err
	}
	return frame, n, nil
}

// ofClient understands what a client sends.
func (c *conn) ofClient(p packet, f *links.Frame) error {
	switch p.kind {
	case connect:
		return c.connected(p)
	case publish:
		f.Kind = links.FramePublish
		return c.carries(p, &c.published, f)
	case puback, pubrec:
		f.Kind = links.FrameAck
		return c.answers(p, &c.delivered, f)
	case pubrel:
		f.Kind = FramePublishRelease
		return c.answers(p, &c.published, f)
	case pubcomp:
		f.Kind = FrameAckComplete
		return c.answers(p, &c.delivered, f)
	case subscribe:
		f.Kind = links.FrameSubscribe
	case unsubscribe:
		f.Kind = links.FrameUnsubscribe
	case pingreq, disconnect, auth:
	default:
		return fmt.Errorf("mqtt: a client sent a packet of type %d", p.kind)
	}
	return nil
}

// ofServer understands what a server sends.
func (c *conn) ofServer(p packet, f *links.Frame) error {
	switch p.kind {
	case publish:
		f.Kind = links.FrameDeliver
		return c.carries(p, &c.delivered, f)
	case puback, pubcomp:
		f.Kind = links.FrameAccept
		return c.replies(p, f)
	case pubrec:
		f.Kind = FramePublishReceived
		if p.reason() >= failure {
			f.Kind = links.FrameAccept // it ends the exchange
		}
		return c.replies(p, f)
	case pubrel:
		f.Kind = links.FrameAckConfirm
		return c.answers(p, &c.delivered, f)
	case suback:
		f.Kind = links.FrameSubscribed
		return c.subscribed(p, f)
	case unsuback:
		f.Kind = links.FrameUnsubscribed
	case disconnect:
		f.Kind = FrameDisconnect
	case connack, pingresp, auth:
	default:
		return fmt.Errorf("mqtt: a server sent a packet of type %d", p.kind)
	}
	return nil
}

func (c *conn) connected(p packet) error {
	name, rest, ok := text(p.body)
	if !ok || len(rest) == 0 {
		return errors.New("mqtt: CONNECT ends before its version")
	}
	// A bridge sets the highest bit, and nothing else changes.
	switch version := rest[0] &^ 0x80; {
	case string(name) == "MQTT" && (version == version311 || version == version5), string(name) == "MQIsdp" && version == version31:
		c.version.Store(uint32(version))
		return nil
	}
	return fmt.Errorf("mqtt: CONNECT names protocol %.10q, version %d", name, rest[0])
}

// carries reads a PUBLISH, and remembers under its identifier what it carries.
func (c *conn) carries(p packet, s *sent, f *links.Frame) error {
	m, err := p.publication(byte(c.version.Load()))
	if err != nil {
		return err
	}
	item := itemOf(m.payload)
	if m.id != 0 {
		s.put(m.id, item)
	}
	f.Items = itemsOf(item)
	return nil
}

// answers reads which PUBLISH a packet belongs to.
func (c *conn) answers(p packet, s *sent, f *links.Frame) error {
	id, ok := p.id()
	if !ok {
		return fmt.Errorf("mqtt: a packet of type %d without an identifier", p.kind)
	}
	f.Items = itemsOf(s.get(id))
	return nil
}

// replies reads what the server says to a PUBLISH.
func (c *conn) replies(p packet, f *links.Frame) error {
	f.Status = said(p.reason())
	return c.answers(p, &c.published, f)
}

// subscribed reads a SUBACK: one code for each filter.
func (c *conn) subscribed(p packet, f *links.Frame) error {
	if len(p.body) < 2 {
		return errors.New("mqtt: SUBACK without an identifier")
	}
	codes, ok := p.body[2:], true
	if c.version.Load() == version5 {
		_, codes, ok = properties(codes)
	}
	if !ok {
		return errors.New("mqtt: SUBACK ends before its codes")
	}
	f.Status = links.Yes
	for _, code := range codes {
		if code >= failure {
			f.Status = said(code)
		}
	}
	return nil
}

// failure is the first reason code that is no success.
const failure = 0x80

// reasons are the codes that answers to PUBLISH and SUBSCRIBE may have.
var reasons = map[byte]string{
	0x00: links.Yes,
	0x10: "no-matching-subscribers",
	0x80: "unspecified-error",
	0x83: "implementation-error",
	0x87: "not-authorized",
	0x8F: "topic-filter-invalid",
	0x90: "topic-name-invalid",
	0x91: "identifier-in-use",
	0x92: "identifier-not-found",
	0x97: "quota-exceeded",
	0x99: "payload-format-invalid",
	0x9E: "shared-subscriptions-unsupported",
	0xA1: "subscription-identifiers-unsupported",
	0xA2: "wildcards-unsupported",
}

func said(code byte) string {
	if word, known := reasons[code]; known {
		return word
	}
	return fmt.Sprintf("reason-0x%02x", code)
}

// The packet types.
const (
	connect = iota + 1
	connack
	publish
	puback
	pubrec
	pubrel
	pubcomp
	subscribe
	suback
	unsubscribe
	unsuback
	pingreq
	pingresp
	disconnect
	auth
)

// flags are fixed for every type but PUBLISH.
var flags = [...]byte{pubrel: 2, subscribe: 2, unsubscribe: 2, auth: 0}

// packet is a fixed header with what follows it.
type packet struct {
	kind  byte // 0 while there is no byte of it
	flags byte
	body  []byte
}

// parse reads the packet that begins buf; n is 0 while it is incomplete.
func parse(buf []byte) (p packet, n int, err error) {
	if len(buf) == 0 {
		return p, 0, nil
	}
	p.kind, p.flags = buf[0]>>4, buf[0]&0xF
	if p.kind == 0 || p.kind != publish && p.flags != flags[p.kind] {
		return p, 0, fmt.Errorf("mqtt: no packet begins with 0x%02x", buf[0])
	}
	length, used, err := variable(buf[1:])
	if err != nil || used == 0 {
		return p, 0, err
	}
	head := 1 + used
	if length > links.MaxFrame-head {
		return p, 0, fmt.Errorf("mqtt: a peer announced a packet of more than %d bytes", links.MaxFrame)
	}
	if len(buf)-head < length {
		return p, 0, nil
	}
	n = head + length
	p.body = buf[head:n:n]
	return p, n, nil
}

// variable reads a variable byte integer, of four bytes at most; used is 0
// while it is incomplete.
func variable(buf []byte) (v, used int, err error) {
	for i, b := range buf[:min(len(buf), 4)] {
		v |= int(b&0x7F) << (7 * i)
		if b < 0x80 {
			return v, i + 1, nil
		}
	}
	if len(buf) >= 4 {
		return 0, 0, errors.New("mqtt: a length of more than four bytes")
	}
	return 0, 0, nil
}

// text reads a string or binary value with its length in two bytes before it.
func text(b []byte) (value, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	if len(b) < n {
		return nil, nil, false
	}
	return b[2:n], b[n:], true
}

// properties reads the properties of MQTT 5 as a whole.
func properties(b []byte) (value, rest []byte, ok bool) {
	length, used, err := variable(b)
	if err != nil || used == 0 || len(b)-used < length {
		return nil, nil, false
	}
	return b[used : used+length], b[used+length:], true
}

// publication is what a PUBLISH carries. Its topic may be an alias, and is
// needed by nobody here.
type publication struct {
	id      uint16 // 0 at QoS 0
	payload []byte
}

func (p packet) publication(version byte) (m publication, err error) {
	_, rest, ok := text(p.body)
	if qos := p.flags >> 1 & 3; ok && qos > 0 {
		if ok = len(rest) >= 2; ok {
			m.id, rest = binary.BigEndian.Uint16(rest), rest[2:]
		}
	}
	if ok && version == version5 {
		_, rest, ok = properties(rest)
	}
	if !ok {
		return m, errors.New("mqtt: PUBLISH ends before its payload")
	}
	m.payload = rest[:len(rest):len(rest)]
	return m, nil
}

// id of the packet that this one answers.
func (p packet) id() (uint16, bool) {
	if len(p.body) < 2 {
		return 0, false
	}
	return binary.BigEndian.Uint16(p.body), true
}

// reason code of an answer: success where it is left out, as it always is in MQTT 3.1.1.
func (p packet) reason() byte {
	if len(p.body) < 3 {
		return 0
	}
	return p.body[2]
}

// envelope finds a payload of an application: all of what a PUBLISH carries, or
// what follows its first line. That is where key and headers go in MQTT 3.1.1,
// which has no properties.
func envelope(carried []byte) (payload []byte, e evidence.Envelope, ok bool) {
	e, err := evidence.ParseEnvelope(carried)
	if err == nil {
		return carried, e, true
	}
	_, payload, ok = bytes.Cut(carried, []byte("\n"))
	if !ok {
		return nil, evidence.Envelope{}, false
	}
	e, err = evidence.ParseEnvelope(payload)
	return payload, e, err == nil
}

func itemOf(carried []byte) evidence.FrameItem {
	_, e, ok := envelope(carried)
	if !ok {
		return evidence.FrameItem{}
	}
	return evidence.FrameItem{BusinessID: e.BusinessID, PublishID: e.PublishID}
}

func itemsOf(item evidence.FrameItem) []evidence.FrameItem {
	if item == (evidence.FrameItem{}) {
		return nil
	}
	return []evidence.FrameItem{item}
}
