// Package amqp observes AMQP 0-9-1 (https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf)
// with RabbitMQ's publisher confirms.
package amqp

import (
	"bytes"
	"errors"
	"slices"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// Protocol is for links to an AMQP 0-9-1 broker. The zero value is ready for
// use.
//
// A frame is a method with its content: method frame, content header and
// bodies. A message's ID is its message-id property. Publishes and deliveries
// are numbered per channel and settled by number, so each frame can be struck
// alone. Acknowledgements have no reply.
//
// A channel's content may be interleaved with frames of other channels (section
// 4.2.6). RabbitMQ and its client, with one channel per connection, interleave
// only heartbeats, which are then part of the surrounding frame. Any other
// interleaving is an error: its units are not contiguous.
type Protocol struct{}

var (
	_ links.Protocol  = Protocol{}
	_ links.Corrupter = Protocol{}
)

// Frame kinds of AMQP only.
const (
	FrameReturn = "return" // the broker returns an unroutable message
	FrameGet    = "get"    // a client polls for one message
	FrameCancel = "cancel" // the broker cancels a consumer: its queue is gone
)

var kinds = []links.KindInfo{
	{Name: links.FramePublish, To: evidence.ToBroker, Text: "basic.publish with its content"},
	{Name: links.FrameAccept, To: evidence.ToClient, Text: "a publisher confirm: basic.ack or basic.nack of one publish, or of all up to one"},
	{Name: FrameReturn, To: evidence.ToClient, Text: "basic.return: a mandatory message that no queue takes; its confirm follows, and says yes"},
	{Name: links.FrameSubscribe, To: evidence.ToBroker, Text: "basic.consume"},
	{Name: links.FrameSubscribed, To: evidence.ToClient, Text: "basic.consume-ok"},
	{Name: links.FrameUnsubscribe, To: evidence.ToBroker, Text: "basic.cancel: the client ends its subscription"},
	{Name: FrameCancel, To: evidence.ToClient, Text: "basic.cancel: the broker ends a subscription, because its queue is gone"},
	{Name: FrameGet, To: evidence.ToBroker, Text: "basic.get: the client asks for one message"},
	{Name: links.FrameDeliver, To: evidence.ToClient, Text: "basic.deliver or basic.get-ok with its content"},
	{Name: links.FrameAck, To: evidence.ToBroker, Text: "basic.ack of one delivery, or of all up to one; it has no answer"},
	{Name: links.FrameNack, To: evidence.ToBroker, Text: "basic.nack or basic.reject"},
	{Name: links.FrameError, To: evidence.ToClient, Text: "channel.close or connection.close: the broker refuses"},
}

func (Protocol) Name() string { return "amqp" }

func (Protocol) Kinds() []links.KindInfo { return slices.Clone(kinds) }

// byPosition lists kinds identified by their position in the stream, with why.
var byPosition = map[string]string{
	links.FramePublish:     "a confirm names a publish by its place on the channel, and would name another",
	links.FrameSubscribe:   "the broker answers a channel's requests in their order",
	links.FrameSubscribed:  "a channel's answers are matched to its requests by their order",
	links.FrameUnsubscribe: "the broker answers a channel's requests in their order",
	FrameGet:               "the broker answers a channel's requests in their order",
}

// withPayload lists the kinds that can be corrupted.
var withPayload = map[string]bool{links.FramePublish: true, links.FrameDeliver: true, FrameReturn: true}

// Legal refuses to remove or duplicate what is identified by its position, and
// to corrupt what carries no application message.
func (p Protocol) Legal(kind string, a links.Action) error {
	why := ""
	switch a {
	case links.Drop, links.Duplicate:
		why = byPosition[kind]
	case links.Corrupt:
		if !withPayload[kind] {
			why = "it carries no message of the application"
		}
	}
	if why == "" {
		return nil
	}
	return &links.ErrIllegal{Protocol: p.Name(), Kind: kind, Action: a, Why: why}
}

// Corrupt returns a copy with one byte of the payload altered; lengths do not
// change.
func (Protocol) Corrupt(f links.Frame) ([]byte, error) {
	raw := bytes.Clone(f.Raw)
	u, n, err := cut(raw)
	if err != nil || n != len(raw) || len(u.body) == 0 {
		return nil, errors.Join(errors.New("amqp: not a whole message with a payload"), err)
	}
	payload := bytes.Join(u.body, nil)
	if err := links.CorruptPayload(payload); err != nil {
		return nil, err
	}
	for _, piece := range u.body {
		payload = payload[copy(piece, payload):]
	}
	return raw, nil
}

// NewConn returns the framers of one connection.
func (Protocol) NewConn(*links.Index) (toBroker, toClient links.Framer) {
	c := &conversation{channels: make(map[uint16]*channel)}
	return framer{c.fromClient}, framer{c.fromBroker}
}

// framer cuts one direction into units.
type framer struct {
	understand func(*unit) links.Frame
}

func (f framer) Next(buf []byte) (links.Frame, int, error) {
	u, n, err := cut(buf)
	if err != nil || n == 0 {
		return links.Frame{}, 0, err
	}
	frame := f.understand(&u)
	frame.Raw = buf[:n]
	return frame, n, nil
}
