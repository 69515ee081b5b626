// Package zmtp observes ZeroMQ's wire protocol (ZMTP 3.x, security NULL or
// PLAIN) with the reference broker's protocol on top.
package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// Protocol is for links to the reference broker. The zero value is ready for
// use.
//
// Replies carry their request's number, so each frame can be struck alone.
type Protocol struct{}

var (
	_ links.Protocol  = Protocol{}
	_ links.Corrupter = Protocol{}
)

// maxPending bounds a connection's requests.
const maxPending = 1 << 16

// maxParts bounds a message's parts: our protocol uses two.
const maxParts = 64

func (Protocol) Name() string { return "zmtp" }

// NewConn returns the framers of one connection.
func (Protocol) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	asked := links.NewPending[uint64, evidence.FrameItem](maxPending)
	return &framer{to: evidence.ToBroker, index: ix, asked: asked}, &framer{to: evidence.ToClient, index: ix, asked: asked}
}

// kinds names the messages that a script can strike; hellos and heartbeats have
// no name.
var kinds = map[wire.Kind]links.KindInfo{
	wire.Publish:          {Name: links.FramePublish, To: evidence.ToBroker, Text: "a message to be published"},
	wire.PublishReply:     {Name: links.FrameAccept, To: evidence.ToClient, Text: "the broker's answer to a publish, whatever it says"},
	wire.Subscribe:        {Name: links.FrameSubscribe, To: evidence.ToBroker, Text: "a consumer asks for its subscription"},
	wire.SubscribeReply:   {Name: links.FrameSubscribed, To: evidence.ToClient, Text: "the answer to a subscribe"},
	wire.Unsubscribe:      {Name: links.FrameUnsubscribe, To: evidence.ToBroker, Text: "a consumer ends its subscription"},
	wire.UnsubscribeReply: {Name: links.FrameUnsubscribed, To: evidence.ToClient, Text: "the answer to an unsubscribe"},
	wire.Credit:           {Name: "credit", To: evidence.ToBroker, Text: "a consumer will take more deliveries"},
	wire.Deliver:          {Name: links.FrameDeliver, To: evidence.ToClient, Text: "a message handed to a consumer"},
	wire.Ack:              {Name: links.FrameAck, To: evidence.ToBroker, Text: "a consumer has processed a message"},
	wire.AckReply:         {Name: links.FrameAckConfirm, To: evidence.ToClient, Text: "the answer to an ack"},
	wire.Nack:             {Name: links.FrameNack, To: evidence.ToBroker, Text: "a consumer gives a message back"},
	wire.NackReply:        {Name: links.FrameNackConfirm, To: evidence.ToClient, Text: "the answer to a nack"},
	wire.Lookup:           {Name: "lookup", To: evidence.ToBroker, Text: "a producer asks what became of a business ID"},
	wire.LookupReply:      {Name: "lookup-reply", To: evidence.ToClient, Text: "the answer to a lookup"},
	wire.Admin:            {Name: "admin", To: evidence.ToBroker, Text: "an administrator's command"},
	wire.AdminReply:       {Name: "admin-reply", To: evidence.ToClient, Text: "the answer to a command"},
	wire.Error:            {Name: links.FrameError, To: evidence.ToClient, Text: "the broker refuses a message or the connection"},
}

// Kinds returns all kinds, in the order of wire.Kind.
func (Protocol) Kinds() []links.KindInfo {
	list := make([]links.KindInfo, 0, len(kinds))
	for k := wire.Invalid; k <= wire.Error; k++ {
		if info, named := kinds[k]; named {
			list = append(list, info)
		}
	}
	return list
}

// Legal refuses only to corrupt what has no payload.
func (p Protocol) Legal(kind string, a links.Action) error {
	return links.LegalAlone(p.Name(), kind, a)
}

// Corrupt returns a copy with one byte of the payload altered.
func (Protocol) Corrupt(f links.Frame) ([]byte, error) {
	raw := bytes.Clone(f.Raw)
	m, err := split(raw)
	if err != nil || !m.whole || len(m.parts) < 2 {
		return nil, errors.Join(errors.New("zmtp: not a whole message with a payload"), err)
	}
	return raw, links.CorruptPayload(m.parts[len(m.parts)-1])
}

// framer cuts one direction: the 64-byte greeting, then commands and messages
// (https://rfc.zeromq.org/spec/23).
type framer struct {
	to      evidence.Direction
	index   *links.Index
	asked   *links.Pending[uint64, evidence.FrameItem]
	greeted bool
}

const (
	greetingSize = 64
	signature    = 0xFF // first byte of a greeting
	signatureEnd = 0x7F // its tenth
)

func (f *framer) Next(buf []byte) (links.Frame, int, error) {
	if !f.greeted {
		return f.greeting(buf)
	}
	m, err := split(buf)
	if err != nil || !m.whole {
		return links.Frame{}, 0, err
	}
	frame := links.Frame{Raw: buf[:m.size]}
	if !m.command {
		// An invalid message is for the broker to answer.
		if msg, err := wire.Decode(m.parts); err == nil && kinds[msg.Kind].To == f.to {
			frame.Kind = kinds[msg.Kind].Name
			frame.Items = f.items(&msg)
			frame.Status = answers[msg.Answer]
		}
	}
	return frame, m.size, nil
}

// answers are the words for Frame.Status.
var answers = map[wire.Answer]string{
	wire.Accepted: links.Yes, wire.Declined: "declined", wire.Rejected: "rejected", wire.Unknown: "unknown", wire.Refused: "refused",
	wire.Stored: "stored", wire.Settled: "settled", wire.Dead: "dead", wire.NotSeen: "not-seen", wire.Forgotten: "forgotten",
}

func (f *framer) greeting(buf []byte) (links.Frame, int, error) {
	if len(buf) > 0 && buf[0] != signature || len(buf) > 9 && buf[9] != signatureEnd {
		return links.Frame{}, 0, errors.New("zmtp: no greeting of ZMTP 3")
	}
	if len(buf) < greetingSize {
		return links.Frame{}, 0, nil
	}
	f.greeted = true
	return links.Frame{Raw: buf[:greetingSize]}, greetingSize, nil
}

// items lists a frame's messages. A reply refers to its request, an
// acknowledgement to its delivery.
func (f *framer) items(m *wire.Message) []evidence.FrameItem {
	item := evidence.FrameItem{BusinessID: m.BusinessID, MessageID: m.MessageID}
	switch m.Kind {
	case wire.Publish, wire.Deliver:
		if e, err := evidence.ParseEnvelope(m.Payload); err == nil {
			item.BusinessID, item.PublishID = e.BusinessID, e.PublishID
		}
		if m.Kind == wire.Deliver {
			f.index.Learn(item)
		}
	case wire.Ack, wire.Nack:
		item = f.index.Find(m.MessageID)
	case wire.PublishReply, wire.AckReply, wire.NackReply, wire.LookupReply:
		if asked, ok := f.asked.Lookup(m.Request); ok {
			if m.MessageID != "" {
				asked.MessageID = m.MessageID
			}
			item = asked
		}
		// A known message ID is a deduplicated retry: the first payload is
		// stored.
		if m.Kind == wire.PublishReply && f.index.Find(item.MessageID).PublishID == "" {
			f.index.Learn(item)
		}
	}
	if f.to == evidence.ToBroker && m.Request != 0 {
		f.asked.Add(m.Request, item)
	}
	if item == (evidence.FrameItem{}) {
		return nil
	}
	return []evidence.FrameItem{item}
}

// message is a command, or a message with all its parts.
type message struct {
	whole   bool
	command bool
	size    int
	parts   [][]byte // alias the buffer
}

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

func split(buf []byte) (m message, err error) {
	for at := 0; ; {
		rest := buf[at:]
		if len(rest) == 0 {
			return m, nil
		}
		flags := rest[0]
		if flags&^(flagMore|flagLong|flagCommand) != 0 {
			return m, fmt.Errorf("zmtp: frame flags %#x have reserved bits set", flags)
		}
		if flags&flagCommand != 0 && (flags&flagMore != 0 || at > 0) {
			return m, fmt.Errorf("zmtp: a command within a message (flags %#x)", flags)
		}
		head := 2
		if flags&flagLong != 0 {
			head = 9
		}
		if len(rest) < head {
			return m, nil
		}
		size := uint64(rest[1])
		if flags&flagLong != 0 {
			size = binary.BigEndian.Uint64(rest[1:])
		}
		if size > uint64(links.MaxFrame-at-head) || at+head > links.MaxFrame {
			return m, fmt.Errorf("zmtp: a peer announced a message of more than %d bytes", links.MaxFrame)
		}
		if len(m.parts) == maxParts {
			return m, fmt.Errorf("zmtp: a message of more than %d parts", maxParts)
		}
		if uint64(len(rest)-head) < size {
			return m, nil
		}
		end := head + int(size)
		m.parts = append(m.parts, rest[head:end:end])
		at += end
		if flags&flagMore == 0 {
			m.whole, m.command, m.size = true, flags&flagCommand != 0, at
			return m, nil
		}
	}
}
