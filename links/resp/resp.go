// Package resp observes the protocol of Redis, RESP2 and RESP3, with streams
// and pub/sub on top
// (https://redis.io/docs/latest/develop/reference/protocol-spec/).
package resp

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/internal/statements"
)

// Protocol is for links to a Redis server. The zero value is ready for use.
//
// Replies are matched to requests by position, so no request or reply may be
// dropped or duplicated alone: every later request would get its neighbour's
// reply. A message's ID is "KEY:ENTRY-ID".
type Protocol struct {
	// PubSub is for links whose deliveries are channel messages: these are
	// outside the request-reply sequence, and each can be struck alone.
	PubSub bool
	// Store is for links between a broker and the server that is its store. A
	// script that writes a batch is one frame, of the kinds that databases have.
	Store bool
}

var (
	_ links.Protocol  = Protocol{}
	_ links.Corrupter = Protocol{}
)

// Frame kinds of Redis only.
const (
	FrameRead  = "read"  // a consumer asks for entries: XREADGROUP, XREAD
	FrameClaim = "claim" // a consumer takes over pending entries: XAUTOCLAIM, XCLAIM
)

var kinds = []links.KindInfo{
	{Name: links.FramePublish, To: evidence.ToBroker, Text: "XADD to a stream, or PUBLISH to a channel"},
	{Name: links.FrameAccept, To: evidence.ToClient, Text: "the answer to a publish: the entry's ID, the number of receivers, or an error"},
	{Name: links.FrameSubscribe, To: evidence.ToBroker, Text: "XGROUP CREATE, or SUBSCRIBE to channels"},
	{Name: links.FrameSubscribed, To: evidence.ToClient, Text: "the answer to a subscribe"},
	{Name: links.FrameUnsubscribe, To: evidence.ToBroker, Text: "UNSUBSCRIBE"},
	{Name: links.FrameUnsubscribed, To: evidence.ToClient, Text: "the answer to an unsubscribe"},
	{Name: FrameRead, To: evidence.ToBroker, Text: "XREADGROUP or XREAD: a consumer asks for entries"},
	{Name: FrameClaim, To: evidence.ToBroker, Text: "XAUTOCLAIM or XCLAIM: a consumer takes over entries that were left pending"},
	{Name: links.FrameDeliver, To: evidence.ToClient, Text: "the answer to a read or a claim, if it carries entries; or a message of a channel"},
	{Name: links.FrameAck, To: evidence.ToBroker, Text: "XACK"},
	{Name: links.FrameAckConfirm, To: evidence.ToClient, Text: "the answer to an ack"},
}

func (Protocol) Name() string { return "resp" }

func (p Protocol) Kinds() []links.KindInfo {
	if p.Store {
		return statements.Kinds(statements.Begin, statements.Mark, statements.Commit, statements.Rollback)
	}
	return slices.Clone(kinds)
}

// Legal refuses actions that would shift positions (see Protocol), so that a
// drop becomes a withhold. It also refuses to corrupt replies, which would
// make the server return something else; a request's payload can be corrupted.
func (p Protocol) Legal(kind string, a links.Action) error {
	var why string
	switch a {
	case links.Drop, links.Duplicate:
		if p.PubSub && kind == links.FrameDeliver {
			return nil
		}
		why = "replies are matched by position: every later request would get its neighbour's reply"
	case links.Corrupt:
		if kind == links.FramePublish || p.PubSub && kind == links.FrameDeliver {
			return nil
		}
		why = "it carries no message of the application, or it is a reply and matched by position"
	default:
		return nil
	}
	return &links.ErrIllegal{Protocol: p.Name(), Kind: kind, Action: a, Why: why}
}

// Corrupt returns a copy with one byte of the payload altered.
func (Protocol) Corrupt(f links.Frame) ([]byte, error) {
	raw := bytes.Clone(f.Raw)
	v, n, err := parse(raw)
	if err != nil || n != len(raw) {
		return nil, errors.Join(errors.New("resp: not a whole frame"), err)
	}
	for _, e := range v.elems {
		if payload, _, ok := envelope(e.text); ok {
			return raw, links.CorruptPayload(payload)
		}
	}
	return nil, errors.New("resp: no payload of an application in this frame")
}

// NewConn returns the framers of one connection.
func (p Protocol) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	d := &exchange{}
	return &client{index: ix, dialogue: d, store: p.Store}, &server{index: ix, dialogue: d, store: p.Store}
}

// MessageID identifies an entry of a stream: "orders:1700000000000-0".
func MessageID(key, entry string) string { return key + ":" + entry }

// request is an unanswered request.
type request struct {
	answer string // kind of the reply's frame, or empty
	key    string // of the stream, if the reply needs it
	items  []evidence.FrameItem
}

// maxPending bounds a connection's unanswered requests.
const maxPending = 1 << 16

// exchange is the state shared by both directions of a connection.
type exchange struct {
	mu         sync.Mutex
	asked      []request // oldest first
	subscribed bool      // has subscribed: in RESP2 nothing else marks channel messages
}

func (d *exchange) ask(r request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.asked) >= maxPending {
		return fmt.Errorf("resp: more than %d requests without an answer", maxPending)
	}
	d.asked = append(d.asked, r)
	return nil
}

func (d *exchange) answered() (request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.asked) == 0 {
		return request{}, errors.New("resp: a reply without a request")
	}
	r := d.asked[0]
	d.asked = d.asked[1:]
	return r, nil
}

func (d *exchange) subscribe() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subscribed = true
}

func (d *exchange) isSubscribed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.subscribed
}

// client interprets what a client sends: arrays of bulk strings.
type client struct {
	index    *links.Index
	dialogue *exchange
	store    bool // see Protocol.Store
}

func (c *client) Next(buf []byte) (links.Frame, int, error) {
	if len(buf) > 0 && buf[0] != '*' {
		return links.Frame{}, 0, fmt.Errorf("resp: a request begins with %q, not with an array", buf[0])
	}
	v, n, err := parse(buf)
	if err != nil || n == 0 {
		return links.Frame{}, 0, err
	}
	frame := links.Frame{Raw: buf[:n]}
	args := make([][]byte, len(v.elems))
	for i, e := range v.elems {
		if e.kind != '$' || e.null {
			return links.Frame{}, 0, errors.New("resp: a request that is no array of bulk strings")
		}
		args[i] = e.text
	}
	if len(args) == 0 {
		return frame, n, nil // nor is it answered
	}
	understand := c.understand
	if c.store {
		understand = c.understandStore
	}
	if frame.Kind, frame.Items, err = understand(args); err != nil {
		return links.Frame{}, 0, err
	}
	return frame, n, nil
}

// understand classifies a request, and records what its reply will mean.
func (c *client) understand(args [][]byte) (kind string, items []evidence.FrameItem, err error) {
	var r request
	verb, first := strings.ToUpper(string(args[0])), argument(args, 1)
	switch verb {
	case "XADD", "PUBLISH", "SPUBLISH":
		kind = links.FramePublish
		r = request{answer: links.FrameAccept, items: itemsOf(args[1:])}
		if verb == "XADD" {
			r.key = first
		}
	case "XREADGROUP", "XREAD":
		kind, r = FrameRead, request{answer: links.FrameDeliver}
	case "XAUTOCLAIM", "XCLAIM":
		kind, r = FrameClaim, request{answer: links.FrameDeliver, key: first}
	case "XACK":
		kind, r = links.FrameAck, request{answer: links.FrameAckConfirm}
		for _, entry := range args[min(3, len(args)):] {
			r.items = append(r.items, c.index.Find(MessageID(first, string(entry))))
		}
	case "XGROUP":
		if strings.EqualFold(first, "CREATE") {
			kind, r = links.FrameSubscribe, request{answer: links.FrameSubscribed}
		}
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE":
		c.dialogue.subscribe()
		return links.FrameSubscribe, nil, nil // answered outside the sequence
	case "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE":
		c.dialogue.subscribe()
		return links.FrameUnsubscribe, nil, nil
	case "CLIENT":
		if strings.EqualFold(first, "REPLY") {
			return "", nil, errors.New("resp: CLIENT REPLY leaves requests without an answer")
		}
	}
	return kind, r.items, c.dialogue.ask(r)
}

func argument(args [][]byte, i int) string {
	if i < len(args) {
		return string(args[i])
	}
	return ""
}

// itemsOf finds a publish's message: the field of the entry that is an
// envelope.
func itemsOf(args [][]byte) []evidence.FrameItem {
	for _, arg := range args {
		if _, e, ok := envelope(arg); ok {
			return []evidence.FrameItem{{BusinessID: e.BusinessID, PublishID: e.PublishID}}
		}
	}
	return nil
}

// envelope finds an application payload: the whole text, or what follows its
// first line, which carries key and headers on a channel.
func envelope(text []byte) (payload []byte, e evidence.Envelope, ok bool) {
	e, err := evidence.ParseEnvelope(text)
	if err == nil {
		return text, e, true
	}
	if _, payload, ok = bytes.Cut(text, []byte("\n")); !ok {
		return nil, e, false
	}
	e, err = evidence.ParseEnvelope(payload)
	return payload, e, err == nil
}

// server interprets what a server sends.
type server struct {
	index    *links.Index
	dialogue *exchange
	store    bool // see Protocol.Store
}

func (s *server) Next(buf []byte) (links.Frame, int, error) {
	v, n, err := parse(buf)
	if err != nil || n == 0 {
		return links.Frame{}, 0, err
	}
	frame := links.Frame{Raw: buf[:n]}
	if kind, outside := s.pushed(v); outside && !s.store {
		frame.Kind = kind
		if kind == links.FrameDeliver {
			frame.Items = itemsOf([][]byte{v.elems[len(v.elems)-1].text})
		}
		return frame, n, nil
	}
	r, err := s.dialogue.answered()
	if err != nil {
		return links.Frame{}, 0, err
	}
	frame.Kind, frame.Items = r.answer, r.items
	if s.store {
		frame.Status = scriptStatus(v)
		return frame, n, nil
	}
	switch r.answer {
	case links.FrameAccept:
		frame.Items = s.stored(r, v)
		// An entry's ID, or a number of receivers; within MULTI it is +QUEUED.
		frame.Status = status(v, v.kind == '$' && !v.null || v.kind == ':' && string(v.text) != "0")
	case links.FrameAckConfirm:
		frame.Status = status(v, v.kind == ':' && string(v.text) == strconv.Itoa(len(r.items)))
	case links.FrameSubscribed:
		frame.Status = status(v, v.kind == '+' && string(v.text) == "OK")
	case links.FrameDeliver:
		if frame.Items = s.entries(r.key, v); frame.Items == nil {
			frame.Kind = "" // nothing to read, an error, or IDs only
		}
	}
	return frame, n, nil
}

// pushes are messages outside the sequence, by first element.
var pushes = map[string]string{
	"message": links.FrameDeliver, "pmessage": links.FrameDeliver, "smessage": links.FrameDeliver,
	"subscribe": links.FrameSubscribed, "psubscribe": links.FrameSubscribed, "ssubscribe": links.FrameSubscribed,
	"unsubscribe": links.FrameUnsubscribed, "punsubscribe": links.FrameUnsubscribed, "sunsubscribe": links.FrameUnsubscribed,
}

// pushed classifies what is outside the sequence: RESP3 pushes, and in RESP2
// the same as plain arrays on a subscribed connection.
func (s *server) pushed(v value) (kind string, outside bool) {
	name := ""
	if len(v.elems) > 0 {
		name = string(v.elems[0].text)
	}
	kind, known := pushes[name]
	return kind, v.kind == '>' || v.kind == '*' && known && s.dialogue.isSubscribed()
}

// status is a reply's meaning in one word: yes, the first word of an error, or
// the reply itself.
func status(v value, yes bool) string {
	if yes {
		return links.Yes
	}
	if word, _, _ := strings.Cut(string(v.text), " "); word != "" {
		return word
	}
	return "nothing"
}

// stored returns an accept's items, with the ID if an entry was stored.
func (s *server) stored(r request, v value) []evidence.FrameItem {
	if r.key == "" || v.kind != '$' || v.null || len(r.items) == 0 {
		return r.items
	}
	item := r.items[0]
	item.MessageID = MessageID(r.key, string(v.text))
	s.index.Learn(item)
	return []evidence.FrameItem{item}
}

// entries returns the messages in the reply to a read or a claim. A read
// replies with [key, entries] per stream (RESP3: a map), XCLAIM with entries,
// XAUTOCLAIM with a cursor and entries.
func (s *server) entries(key string, v value) (items []evidence.FrameItem) {
	list := v.elems
	switch {
	case key != "" && len(list) >= 2 && list[0].kind == '$':
		return s.read(key, list[1])
	case key != "":
		return s.read(key, v)
	case v.kind == '%':
		for i := 0; i+1 < len(list); i += 2 {
			items = append(items, s.read(string(list[i].text), list[i+1])...)
		}
		return items
	}
	for _, stream := range list {
		if len(stream.elems) == 2 {
			items = append(items, s.read(string(stream.elems[0].text), stream.elems[1])...)
		}
	}
	return items
}

// read returns the entries of one stream: each is [ID, fields], with null
// fields once deleted.
func (s *server) read(key string, entries value) (items []evidence.FrameItem) {
	for _, entry := range entries.elems {
		if len(entry.elems) != 2 || entry.elems[1].null {
			continue
		}
		item := evidence.FrameItem{MessageID: MessageID(key, string(entry.elems[0].text))}
		for _, field := range entry.elems[1].elems {
			if _, e, ok := envelope(field.text); ok {
				item.BusinessID, item.PublishID = e.BusinessID, e.PublishID
				s.index.Learn(item)
				break
			}
		}
		items = append(items, item)
	}
	return items
}
