// Package kafka observes the Kafka wire protocol
// (https://kafka.apache.org/protocol): every request and response is a frame,
// and those that carry or settle messages list them.
package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// Protocol is for links to a Kafka broker. All links of an instance must use
// one value, because frames are interpreted using other connections (see
// shared). Create it with New. Safe for concurrent use.
//
// A message's ID is "TOPIC-PARTITION@OFFSET". Client IDs must be unique per
// session: a commit gives only an offset, and acknowledges what the session
// received before it.
type Protocol struct{ shared *shared }

// New returns the protocol for one instance.
func New() Protocol { return Protocol{newShared()} }

var (
	_ links.Protocol  = Protocol{}
	_ links.Corrupter = Protocol{}
)

// Frame kinds of Kafka only.
const (
	FrameFetch   = "fetch"  // a consumer asks for messages
	FrameReject  = "reject" // share groups: do not redeliver
	FrameRenew   = "renew"  // share groups: extend the acquisition lock
	FrameLeave   = "leave"  // a consumer leaves its group
	FrameLeft    = "left"
	FrameStored  = "stored"  // transactions: the answer to a publish, ahead of the commit
	FrameCommit  = "commit"  // transactions: publishes become visible
	FrameAbort   = "abort"   // transactions: publishes are discarded
	FrameAborted = "aborted" // the answer to an abort
)

var kinds = []links.KindInfo{
	{Name: links.FramePublish, To: evidence.ToBroker, Text: "Produce: the messages of one request"},
	{Name: links.FrameAccept, To: evidence.ToClient, Text: "the answer to a Produce, or to the commit of a transaction; with acks=0 there is none"},
	{Name: FrameStored, To: evidence.ToClient, Text: "the answer to a Produce within a transaction"},
	{Name: FrameCommit, To: evidence.ToBroker, Text: "EndTxn: the messages that the transaction has stored are committed"},
	{Name: FrameAbort, To: evidence.ToBroker, Text: "EndTxn: they are taken back"},
	{Name: FrameAborted, To: evidence.ToClient, Text: "the answer to an abort"},
	{Name: links.FrameSubscribe, To: evidence.ToBroker, Text: "JoinGroup, or the first heartbeat of a consumer or share group's member"},
	{Name: links.FrameSubscribed, To: evidence.ToClient, Text: "the answer to a subscribe"},
	{Name: FrameLeave, To: evidence.ToBroker, Text: "LeaveGroup, or a member's last heartbeat"},
	{Name: FrameLeft, To: evidence.ToClient, Text: "the answer to a leave"},
	{Name: FrameFetch, To: evidence.ToBroker, Text: "Fetch or ShareFetch, unless it carries acknowledgements"},
	{Name: links.FrameDeliver, To: evidence.ToClient, Text: "the answer to a Fetch or ShareFetch that carries messages"},
	{Name: links.FrameAck, To: evidence.ToBroker, Text: "OffsetCommit: all that this session was given before the offset; in a share group the messages it accepts"},
	{Name: links.FrameAckConfirm, To: evidence.ToClient, Text: "the answer to an ack"},
	{Name: links.FrameNack, To: evidence.ToBroker, Text: "share groups: the consumer gives messages back"},
	{Name: FrameReject, To: evidence.ToBroker, Text: "share groups: the messages are never to be delivered again"},
	{Name: FrameRenew, To: evidence.ToBroker, Text: "share groups: the consumer needs more time"},
	{Name: links.FrameNackConfirm, To: evidence.ToClient, Text: "the answer to a nack, a reject or a renew"},
}

func (Protocol) Name() string { return "kafka" }

func (Protocol) Kinds() []links.KindInfo { return slices.Clone(kinds) }

// Legal refuses what would separate an answer from its request: the broker
// answers in request order, and a client matches the next answer to its oldest
// request.
func (p Protocol) Legal(kind string, a links.Action) error {
	why := ""
	switch a {
	case links.Drop:
		why = "answers come in the order of the requests: this one and all after it are withheld instead"
	case links.Duplicate:
		why = "answers come in the order of the requests: one more would be taken for the answer to another request"
	default:
		return links.LegalAlone(p.Name(), kind, a)
	}
	return &links.ErrIllegal{Protocol: p.Name(), Kind: kind, Action: a, Why: why}
}

// Corrupt returns a copy with one byte of the first payload altered and its
// batch's checksum recomputed.
func (Protocol) Corrupt(f links.Frame) ([]byte, error) {
	raw := bytes.Clone(f.Raw)
	for at := range raw {
		b, ok := batchAt(raw[at:])
		if !ok || b.checksum() != b.sum() {
			continue
		}
		for _, payload := range b.records {
			err := links.CorruptPayload(payload)
			b.setSum(b.checksum())
			return raw, err
		}
	}
	return nil, errors.New("kafka: no uncompressed batch with a message")
}

// NewConn returns the framers of one connection.
func (p Protocol) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	c := &conn{shared: p.shared, index: ix, asked: links.NewPending[int32, pendingRequest](maxPending)}
	return framer{c.request}, framer{c.response}
}

// maxPending bounds a connection's unanswered requests.
const maxPending = 1 << 12

// pendingRequest is a request that the broker will answer.
type pendingRequest struct {
	request kmsg.Request // without a body, unless the answer needs it
	session string       // client ID
	kind    string       // of the frame that answers it
	items   []evidence.FrameItem
	sent    map[topicPartition][]sent // messages of a Produce
	from    positions                 // of a Fetch
	txn     *transaction              // of a Produce or an EndTxn
}

// topicPartition is a partition of a topic.
type topicPartition struct {
	topic     string
	partition int32
}

// sent is a message of a Produce: its offset is the response's base offset plus
// delta.
type sent struct {
	delta int64
	item  evidence.FrameItem
}

// MessageID identifies a message of a partition: "orders-0@7".
func MessageID(topic string, partition int32, offset int64) string {
	return fmt.Sprintf("%s-%d@%d", topic, partition, offset)
}

func (p topicPartition) at(offset int64) string { return MessageID(p.topic, p.partition, offset) }

// framer cuts one direction into length-prefixed frames.
type framer struct {
	understand func(body []byte) (links.Frame, error)
}

func (f framer) Next(buf []byte) (links.Frame, int, error) {
	if len(buf) < 4 {
		return links.Frame{}, 0, nil
	}
	size := binary.BigEndian.Uint32(buf)
	if size > links.MaxFrame-4 {
		return links.Frame{}, 0, fmt.Errorf("kafka: a frame of %d bytes, more than %d", size, links.MaxFrame-4)
	}
	n := 4 + int(size)
	if len(buf) < n {
		return links.Frame{}, 0, nil
	}
	frame, err := f.understand(buf[4:n])
	if err != nil {
		return links.Frame{}, 0, err
	}
	frame.Raw = buf[:n]
	return frame, n, nil
}

// errShort: a frame is truncated.
var errShort = errors.New("kafka: a frame is shorter than what it announces")

// requestHead parses API key, version, correlation ID and client ID (request
// headers 1 and 2).
func requestHead(b []byte) (key, version int16, correlation int32, client string, rest []byte, err error) {
	if len(b) < 10 {
		return 0, 0, 0, "", nil, errShort
	}
	key, version = int16(binary.BigEndian.Uint16(b)), int16(binary.BigEndian.Uint16(b[2:]))
	correlation = int32(binary.BigEndian.Uint32(b[4:]))
	length := int(int16(binary.BigEndian.Uint16(b[8:])))
	rest = b[10:]
	if length > len(rest) {
		return 0, 0, 0, "", nil, errShort
	}
	if length > 0 {
		client, rest = string(rest[:length]), rest[length:]
	}
	return key, version, correlation, client, rest, nil
}

// skipTags skips the tagged fields of a flexible header.
func skipTags(b []byte) ([]byte, error) {
	count, b, ok := uvarint(b)
	for ; ok && count > 0; count-- {
		var size uint64
		if _, b, ok = uvarint(b); !ok {
			break
		}
		if size, b, ok = uvarint(b); !ok || size > uint64(len(b)) {
			return nil, errShort
		}
		b = b[size:]
	}
	if !ok {
		return nil, errShort
	}
	return b, nil
}

func uvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}
