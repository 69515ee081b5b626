// Package nats observes the NATS client protocol, with JetStream on top
// (https://docs.nats.io/reference/reference-protocols/nats-protocol).
package nats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// Protocol is for links to a NATS server. The zero value is ready for use.
//
// Replies identify their request by inbox, so each frame can be struck alone. A
// message's ID is "STREAM:SEQUENCE".
type Protocol struct{}

var (
	_ links.Protocol  = Protocol{}
	_ links.Corrupter = Protocol{}
)

// Frame kinds of JetStream only.
const (
	FramePull       = "pull"        // a consumer asks for messages
	FrameInProgress = "in-progress" // +WPI: the consumer needs more time
	FrameTerm       = "term"        // +TERM: do not redeliver
	FrameAPI        = "api"         // any other request to $JS.API
	FrameAPIReply   = "api-reply"
)

var kinds = []links.KindInfo{
	{Name: links.FramePublish, To: evidence.ToBroker, Text: "PUB or HPUB of a message; with a reply inbox if JetStream is to confirm it"},
	{Name: links.FrameAccept, To: evidence.ToClient, Text: "the answer to a publish: JetStream's PubAck, its error, or no responders"},
	{Name: links.FrameSubscribe, To: evidence.ToBroker, Text: "SUB of a subject that is no inbox"},
	{Name: links.FrameUnsubscribe, To: evidence.ToBroker, Text: "UNSUB"},
	{Name: FramePull, To: evidence.ToBroker, Text: "a consumer asks for the next messages"},
	{Name: links.FrameDeliver, To: evidence.ToClient, Text: "MSG or HMSG handed to a consumer"},
	{Name: links.FrameAck, To: evidence.ToBroker, Text: "+ACK, empty or +NXT to an acknowledgement subject"},
	{Name: links.FrameAckConfirm, To: evidence.ToClient, Text: "the answer to an ack that asked for one"},
	{Name: links.FrameNack, To: evidence.ToBroker, Text: "-NAK: the consumer gives a message back"},
	{Name: links.FrameNackConfirm, To: evidence.ToClient, Text: "the answer to a nack or a term that asked for one"},
	{Name: FrameInProgress, To: evidence.ToBroker, Text: "+WPI: the consumer needs more time"},
	{Name: FrameTerm, To: evidence.ToBroker, Text: "+TERM: the message is never to be delivered again"},
	{Name: FrameAPI, To: evidence.ToBroker, Text: "any other request to JetStream's API"},
	{Name: FrameAPIReply, To: evidence.ToClient, Text: "the answer to a request to JetStream's API"},
	{Name: links.FrameError, To: evidence.ToClient, Text: "-ERR: the server refuses"},
}

func (Protocol) Name() string { return "nats" }

func (Protocol) Kinds() []links.KindInfo { return slices.Clone(kinds) }

// Legal refuses only to corrupt what carries no application message.
func (p Protocol) Legal(kind string, a links.Action) error {
	return links.LegalAlone(p.Name(), kind, a)
}

// Corrupt returns a copy with one byte of the payload altered.
func (Protocol) Corrupt(f links.Frame) ([]byte, error) {
	raw := bytes.Clone(f.Raw)
	op, n, err := parse(raw)
	if err != nil || n != len(raw) || op.payload == nil {
		return nil, errors.Join(errors.New("nats: not a whole message with a payload"), err)
	}
	return raw, links.CorruptPayload(op.payload)
}

// maxPending bounds a connection's unanswered requests.
const maxPending = 1 << 16

// request is a client's message with a reply inbox.
type request struct {
	answer string // kind of the frame that answers it
	item   evidence.FrameItem
}

// NewConn returns the framers of one connection.
func (Protocol) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	asked := links.NewPending[string, request](maxPending)
	return framer{understand: (&client{ix, asked}).understand}, framer{understand: (&server{ix, asked}).understand}
}

// framer cuts one direction into operations.
type framer struct {
	understand func(*operation) (kind string, items []evidence.FrameItem)
}

func (f framer) Next(buf []byte) (links.Frame, int, error) {
	op, n, err := parse(buf)
	if err != nil || n == 0 {
		return links.Frame{}, 0, err
	}
	frame := links.Frame{Raw: buf[:n]}
	frame.Kind, frame.Items = f.understand(&op)
	return frame, n, nil
}

// client interprets what a client sends.
type client struct {
	index *links.Index
	asked *links.Pending[string, request]
}

func (c *client) understand(op *operation) (string, []evidence.FrameItem) {
	switch op.verb {
	case "SUB":
		if !isInbox(op.subject) {
			return links.FrameSubscribe, nil
		}
	case "UNSUB":
		return links.FrameUnsubscribe, nil
	case "PUB", "HPUB":
		return c.publication(op)
	}
	return "", nil
}

func (c *client) publication(op *operation) (string, []evidence.FrameItem) {
	if id, ok := ackedMessage(op.subject); ok {
		kind, answer := acknowledgement(op.payload)
		item := c.index.Find(id)
		c.ask(op.reply, request{answer: answer, item: item})
		return kind, []evidence.FrameItem{item}
	}
	if api, ok := apiRequest(op.subject); ok {
		if strings.HasPrefix(api, "CONSUMER.MSG.NEXT.") {
			return FramePull, nil // answered by deliveries, and by statuses without a kind
		}
		c.ask(op.reply, request{answer: FrameAPIReply})
		return FrameAPI, nil
	}
	if isInbox(op.subject) || strings.HasPrefix(op.subject, "$") {
		return "", nil
	}
	item := ofPayload(op.payload)
	c.ask(op.reply, request{answer: links.FrameAccept, item: item})
	return links.FramePublish, itemsOf(item)
}

func (c *client) ask(inbox string, r request) {
	if inbox != "" && r.answer != "" {
		c.asked.Add(inbox, r)
	}
}

// acknowledgements of JetStream by prefix, with the kind of their answer. An
// empty one is an ack; +NXT acknowledges and pulls.
var acknowledgements = []struct{ prefix, kind, answer string }{
	{"+ACK", links.FrameAck, links.FrameAckConfirm},
	{"+NXT", links.FrameAck, ""},
	{"-NAK", links.FrameNack, links.FrameNackConfirm},
	{"+WPI", FrameInProgress, ""},
	{"+TERM", FrameTerm, links.FrameNackConfirm},
}

func acknowledgement(payload []byte) (kind, answer string) {
	for _, a := range acknowledgements {
		if bytes.HasPrefix(payload, []byte(a.prefix)) {
			return a.kind, a.answer
		}
	}
	if len(payload) == 0 {
		return links.FrameAck, links.FrameAckConfirm
	}
	return "", ""
}

// server interprets what a server sends.
type server struct {
	index *links.Index
	asked *links.Pending[string, request]
}

func (s *server) understand(op *operation) (string, []evidence.FrameItem) {
	switch op.verb {
	case "-ERR":
		return links.FrameError, nil
	case "MSG", "HMSG":
		return s.message(op)
	}
	return "", nil
}

func (s *server) message(op *operation) (string, []evidence.FrameItem) {
	// First the acknowledgement subject: a pulled message is sent to an inbox
	// too.
	if id, ok := ackedMessage(op.reply); ok {
		item := ofPayload(op.payload)
		item.MessageID = id
		s.index.Learn(item)
		return links.FrameDeliver, []evidence.FrameItem{item}
	}
	if r, ok := s.asked.Lookup(op.subject); ok {
		if r.answer == links.FrameAccept {
			r.item.MessageID = storedAs(op.payload)
			// A known ID is a deduplicated retry: the first payload is stored.
			if s.index.Find(r.item.MessageID).PublishID == "" {
				s.index.Learn(r.item)
			}
		}
		return r.answer, itemsOf(r.item)
	}
	if isInbox(op.subject) {
		return "", nil // a pull status: no messages, heartbeat
	}
	return links.FrameDeliver, itemsOf(ofPayload(op.payload))
}

// storedAs returns the stored message's ID from a PubAck, or "" for an error.
func storedAs(payload []byte) string {
	var ack struct {
		Stream string          `json:"stream"`
		Seq    uint64          `json:"seq"`
		Error  json.RawMessage `json:"error"`
	}
	if json.Unmarshal(payload, &ack) != nil || ack.Stream == "" || ack.Seq == 0 || ack.Error != nil {
		return ""
	}
	return MessageID(ack.Stream, ack.Seq)
}

// MessageID identifies a message of a stream: "ORDERS:7".
func MessageID(stream string, seq uint64) string {
	return stream + ":" + strconv.FormatUint(seq, 10)
}

// ackedMessage parses an acknowledgement subject:
// $JS.ACK.STREAM.CONSUMER.DELIVERED.SSEQ.CSEQ.TIME.PENDING, to which newer
// servers add domain and account hash before the stream and a token at the end
// (ADR-15; nats.go accepts 9, and 11 or more tokens).
func ackedMessage(subject string) (id string, ok bool) {
	if !strings.HasPrefix(subject, "$JS.ACK.") {
		return "", false
	}
	tokens := strings.Split(subject, ".")
	stream := 2
	switch {
	case len(tokens) >= 11:
		stream = 4
	case len(tokens) != 9:
		return "", false
	}
	seq, err := strconv.ParseUint(tokens[stream+3], 10, 64)
	if err != nil {
		return "", false
	}
	return MessageID(tokens[stream], seq), true
}

// apiRequest returns what follows $JS.API. or $JS.DOMAIN.API.
func apiRequest(subject string) (string, bool) {
	rest, ok := strings.CutPrefix(subject, "$JS.")
	if !ok {
		return "", false
	}
	if api, ok := strings.CutPrefix(rest, "API."); ok {
		return api, true
	}
	_, rest, _ = strings.Cut(rest, ".")
	return strings.CutPrefix(rest, "API.")
}

// isInbox recognises nats.go's inboxes; a client with another prefix is
// recognised by its requests alone.
func isInbox(subject string) bool { return strings.HasPrefix(subject, "_INBOX.") }

func ofPayload(payload []byte) evidence.FrameItem {
	e, err := evidence.ParseEnvelope(payload)
	if err != nil {
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

// operation is a protocol line, with its message if it has one.
type operation struct {
	verb           string // upper case
	subject, reply string
	payload        []byte // after the headers; nil if there is none
}

// maxLine bounds a line; CONNECT and INFO are the longest.
const maxLine = 1 << 20

// shape describes the arguments of a verb. Sizes are last; a reply is present if
// there is one argument more than needed.
type shape struct {
	need    int  // number of arguments without a reply
	reply   int  // index of the reply, if there is one
	sizes   int  // trailing numbers: 1 total, 2 headers and total
	subject bool // the first argument is a subject
	closed  bool // rejects further arguments
}

var shapes = map[string]shape{
	"PUB":     {need: 2, reply: 1, sizes: 1, subject: true, closed: true},
	"HPUB":    {need: 3, reply: 1, sizes: 2, subject: true, closed: true},
	"MSG":     {need: 3, reply: 2, sizes: 1, subject: true, closed: true},
	"HMSG":    {need: 4, reply: 2, sizes: 2, subject: true, closed: true},
	"SUB":     {need: 2, subject: true},
	"UNSUB":   {need: 1},
	"CONNECT": {}, "INFO": {}, "PING": {}, "PONG": {}, "+OK": {}, "-ERR": {},
}

var crlf = []byte("\r\n")

// parse parses the operation at the start of buf; n is 0 if it is incomplete.
func parse(buf []byte) (op operation, n int, err error) {
	end := bytes.IndexByte(buf[:min(len(buf), maxLine)], '\n')
	if end < 0 {
		if len(buf) >= maxLine {
			return op, 0, fmt.Errorf("nats: a line of more than %d bytes", maxLine)
		}
		return op, 0, plausible(buf)
	}
	line := string(bytes.TrimSuffix(buf[:end], []byte("\r")))
	verb := line
	if i := strings.IndexAny(line, " \t"); i >= 0 {
		verb = line[:i]
	}
	op.verb = strings.ToUpper(verb)
	s, known := shapes[op.verb]
	if !known {
		return op, 0, fmt.Errorf("nats: no operation %.20q", verb)
	}
	if s.need == 0 {
		return op, end + 1, nil
	}
	args := strings.Fields(line[len(verb):])
	hasReply := s.closed && len(args) == s.need+1
	if len(args) < s.need || s.closed && len(args) > s.need && !hasReply {
		return op, 0, fmt.Errorf("nats: %s with %d arguments", op.verb, len(args))
	}
	if s.subject {
		op.subject = args[0]
	}
	if hasReply {
		op.reply = args[s.reply]
	}
	if s.sizes == 0 {
		return op, end + 1, nil
	}
	headers, total := 0, 0
	if total, err = size(args[len(args)-1]); err == nil && s.sizes == 2 {
		headers, err = size(args[len(args)-2])
	}
	if err != nil || headers > total {
		return op, 0, errors.Join(fmt.Errorf("nats: %s announces %d bytes of headers in %d", op.verb, headers, total), err)
	}
	begin := end + 1
	n = begin + total + len(crlf)
	if len(buf) < n {
		return op, 0, nil
	}
	if !bytes.Equal(buf[begin+total:n], crlf) {
		return op, 0, fmt.Errorf("nats: %s is longer than the %d bytes that it announces", op.verb, total)
	}
	op.payload = buf[begin+headers : begin+total : begin+total]
	return op, n, nil
}

func size(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, err
	}
	if n > links.MaxFrame-maxLine {
		return 0, fmt.Errorf("a message of more than %d bytes", links.MaxFrame-maxLine)
	}
	return int(n), nil
}

// plausible rejects bytes that are not NATS before a line ends, because TLS
// has line ends only by accident.
func plausible(buf []byte) error {
	word := buf[:min(len(buf), len("CONNECT"))]
	if i := bytes.IndexAny(word, " \t\r"); i >= 0 {
		word = word[:i]
	}
	for verb := range shapes {
		if strings.HasPrefix(verb, strings.ToUpper(string(word))) {
			return nil
		}
	}
	return fmt.Errorf("nats: no operation begins with %.20q", word)
}
