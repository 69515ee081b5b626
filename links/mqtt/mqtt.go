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

// Protocol is for links to an MQTT server. The zero value is ready for use;
// each connection's CONNECT gives the version.
//
// Answers identify their packet, so each frame can be struck alone. MQTT has no
// message IDs: a packet identifier belongs to one connection and is reused.
type Protocol struct{}

var (
	_ links.Protocol  = Protocol{}
	_ links.Corrupter = Protocol{}
)

// Frame kinds of MQTT only. At QoS 2 the answer to a publish is the last of
// four packets, because only then has the server passed it on; a delivery is
// acknowledged by the consumer's PUBREC, after which the server may not send it
// again.
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

func (Protocol) Name() string { return "mqtt" }

func (Protocol) Kinds() []links.KindInfo { return slices.Clone(kinds) }

// Legal refuses only to corrupt what carries no application message.
func (p Protocol) Legal(kind string, a links.Action) error {
	return links.LegalAlone(p.Name(), kind, a)
}

// Corrupt returns a copy with one byte of the payload altered. A frame does not
// tell its version, so the payload is found by its envelope.
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
	return nil, errors.New("mqtt: a PUBLISH without an envelope: the start of its payload is unknown")
}

// Protocol versions, as in CONNECT.
const (
	version31  = 3
	version311 = 4
	version5   = 5
)

// conn is the state shared by a connection's framers.
type conn struct {
	version   atomic.Uint32 // 0 before CONNECT
	published sent
	delivered sent
}

// sent holds the last PUBLISH under each packet identifier. Safe for concurrent
// use.
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

// get returns the zero item for one sent on an earlier connection.
func (s *sent) get(id uint16) evidence.FrameItem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items[id]
}

// NewConn returns the framers of one connection.
func (Protocol) NewConn(*links.Index) (toBroker, toClient links.Framer) {
	c := &conn{}
	return framer{c, c.fromClient}, framer{c, c.fromServer}
}

// framer cuts one direction into packets.
type framer struct {
	conn       *conn
	understand func(packet, *links.Frame) error // sets the frame's kind and items
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

// fromClient interprets a client's packet.
func (c *conn) fromClient(p packet, f *links.Frame) error {
	switch p.kind {
	case connect:
		return c.connected(p)
	case publish:
		f.Kind = links.FramePublish
		return c.readPublish(p, &c.published, f)
	case puback, pubrec:
		f.Kind = links.FrameAck
		return c.readAnswer(p, &c.delivered, f)
	case pubrel:
		f.Kind = FramePublishRelease
		return c.readAnswer(p, &c.published, f)
	case pubcomp:
		f.Kind = FrameAckComplete
		return c.readAnswer(p, &c.delivered, f)
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

// fromServer interprets a server's packet.
func (c *conn) fromServer(p packet, f *links.Frame) error {
	switch p.kind {
	case publish:
		f.Kind = links.FrameDeliver
		return c.readPublish(p, &c.delivered, f)
	case puback, pubcomp:
		f.Kind = links.FrameAccept
		return c.readReply(p, f)
	case pubrec:
		f.Kind = FramePublishReceived
		if p.reason() >= failure {
			f.Kind = links.FrameAccept // a refusal ends the exchange
		}
		return c.readReply(p, f)
	case pubrel:
		f.Kind = links.FrameAckConfirm
		return c.readAnswer(p, &c.delivered, f)
	case suback:
		f.Kind = links.FrameSubscribed
		return c.readSuback(p, f)
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
	// A bridge sets the highest bit, which changes nothing else.
	switch version := rest[0] &^ 0x80; {
	case string(name) == "MQTT" && (version == version311 || version == version5), string(name) == "MQIsdp" && version == version31:
		c.version.Store(uint32(version))
		return nil
	}
	return fmt.Errorf("mqtt: CONNECT names protocol %.10q, version %d", name, rest[0])
}

// readPublish parses a PUBLISH and remembers its item by packet identifier.
func (c *conn) readPublish(p packet, s *sent, f *links.Frame) error {
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

// readAnswer finds the PUBLISH a packet belongs to.
func (c *conn) readAnswer(p packet, s *sent, f *links.Frame) error {
	id, ok := p.id()
	if !ok {
		return fmt.Errorf("mqtt: a packet of type %d without an identifier", p.kind)
	}
	f.Items = itemsOf(s.get(id))
	return nil
}

// readReply reads the server's answer to a PUBLISH.
func (c *conn) readReply(p packet, f *links.Frame) error {
	f.Status = reasonName(p.reason())
	return c.readAnswer(p, &c.published, f)
}

// readSuback reads a SUBACK: one code per filter.
func (c *conn) readSuback(p packet, f *links.Frame) error {
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
			f.Status = reasonName(code)
		}
	}
	return nil
}

// failure is the lowest reason code of a failure.
const failure = 0x80

// reasons names the reason codes of answers to PUBLISH and SUBSCRIBE.
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

func reasonName(code byte) string {
	if word, known := reasons[code]; known {
		return word
	}
	return fmt.Sprintf("reason-0x%02x", code)
}

// Packet types.
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

// flags are fixed for all types but PUBLISH.
var flags = [...]byte{pubrel: 2, subscribe: 2, unsubscribe: 2, auth: 0}

// packet is a fixed header with what follows it.
type packet struct {
	kind  byte // 0 without a byte
	flags byte
	body  []byte
}

// parse parses the packet at the start of buf; n is 0 if it is incomplete.
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

// variable parses a variable byte integer of at most four bytes; used is 0 if
// it is incomplete.
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

// text parses a string or binary value prefixed with a two-byte length.
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

// properties returns the MQTT 5 properties unparsed.
func properties(b []byte) (value, rest []byte, ok bool) {
	length, used, err := variable(b)
	if err != nil || used == 0 || len(b)-used < length {
		return nil, nil, false
	}
	return b[used : used+length], b[used+length:], true
}

// publication is the content of a PUBLISH, without the topic.
type publication struct {
	id      uint16 // 0 for QoS 0
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

// id returns the identifier of the packet this one answers.
func (p packet) id() (uint16, bool) {
	if len(p.body) < 2 {
		return 0, false
	}
	return binary.BigEndian.Uint16(p.body), true
}

// reason returns an answer's reason code: success if omitted, as always in MQTT
// 3.1.1.
func (p packet) reason() byte {
	if len(p.body) < 3 {
		return 0
	}
	return p.body[2]
}

// envelope finds an application payload: the whole content of a PUBLISH, or
// what follows its first line, which carries key and headers in MQTT 3.1.1,
// where there are no properties.
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
