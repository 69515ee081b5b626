// Package postgres observes the protocol of PostgreSQL, version 3
// (https://www.postgresql.org/docs/current/protocol-message-formats.html), on
// the link between a broker and the database that is its store.
package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/internal/statements"
)

// Protocol is for links to a PostgreSQL server. The zero value is ready for
// use.
//
// A frame is a store operation: everything up to Sync, or a simple query. Its
// reply is everything up to ReadyForQuery. Start-up, authentication and
// preparing statements have no kind. TLS cannot be read: such a connection
// passes through unobserved, and so does one that uses COPY or Flush.
type Protocol struct{}

var _ links.Protocol = Protocol{}

func (Protocol) Name() string { return "postgres" }

func (Protocol) Kinds() []links.KindInfo { return statements.Kinds() }

func (p Protocol) Legal(kind string, a links.Action) error {
	return statements.Legal(p.Name(), kind, a)
}

// NewConn returns the framers of one connection.
func (Protocol) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	x := &exchange{}
	return &client{
		index: ix, exchange: x,
		prepared: links.NewPending[string, statement](maxStatements), portals: links.NewPending[string, statements.Request](maxPortals),
	}, &server{exchange: x}
}

const (
	maxStatements = 1 << 10 // prepared on one connection
	maxPortals    = 1 << 4
	maxName       = 1 << 10 // bytes of a statement's name
)

type exchange struct {
	statements.Exchange
	encryption atomic.Int32 // encryption requests, each answered by one byte
}

// message is a protocol message: a type, and a length-prefixed body.
type message struct {
	kind byte
	body []byte
}

// cut returns the message at the start of buf and its length; n is 0 if it is
// incomplete.
func cut(buf []byte, known string) (m message, n int, err error) {
	const header = 5
	if len(buf) < header {
		return m, 0, nil
	}
	m.kind = buf[0]
	length := binary.BigEndian.Uint32(buf[1:])
	switch {
	case bytes.IndexByte([]byte(known), m.kind) < 0:
		return m, 0, fmt.Errorf("%w: a message of type %q", errForeign, m.kind)
	case length < 4:
		return m, 0, fmt.Errorf("a message of type %q announces a length of %d", m.kind, length)
	case length >= links.MaxFrame:
		return m, 0, fmt.Errorf("a message of type %q announces %d bytes, more than %d", m.kind, length, links.MaxFrame)
	case int(length)+1 > len(buf):
		return m, 0, nil
	}
	n = int(length) + 1
	m.body = buf[header:n:n]
	return m, n, nil
}

var errForeign = errors.New("not observed")

// client interprets what the broker sends.
type client struct {
	index    *links.Index
	exchange *exchange
	started  bool
	prepared *links.Pending[string, statement]
	portals  *links.Pending[string, statements.Request]
}

func (c *client) Next(buf []byte) (f links.Frame, n int, err error) {
	if c.started {
		f, n, err = c.request(buf)
	} else {
		f, n, err = c.start(buf)
	}
	if err != nil {
		err = fmt.Errorf("postgres: %w", err)
		c.exchange.Refuse(err)
	}
	return f, n, err
}

// Request codes in place of a protocol version.
const (
	version3   = 3
	cancelCode = 80877102
	sslCode    = 80877103
	gssCode    = 80877104
)

// maxStart is the longest start-up packet that servers accept.
const maxStart = 10000

// start parses a packet that precedes the first message, and so has no type.
func (c *client) start(buf []byte) (f links.Frame, n int, err error) {
	const handshake = 0x16 // first byte of TLS
	if len(buf) > 0 && buf[0] == handshake {
		return f, 0, errTLS
	}
	if len(buf) < 8 {
		return f, 0, nil
	}
	length, code := binary.BigEndian.Uint32(buf), binary.BigEndian.Uint32(buf[4:])
	if length < 8 || length > maxStart {
		return f, 0, fmt.Errorf("a start-up packet announces %d bytes", length)
	}
	if int(length) > len(buf) {
		return f, 0, nil
	}
	switch {
	case code == sslCode, code == gssCode:
		c.exchange.encryption.Add(1)
	case code == cancelCode:
	case code>>16 == version3:
		c.started = true
	default:
		return f, 0, fmt.Errorf("protocol version %d.%d", code>>16, code&0xffff)
	}
	return links.Frame{Raw: buf[:length]}, int(length), nil
}

var errTLS = errors.New("TLS cannot be read: give the store's DSN sslmode=disable")

const (
	requests = "PBDECSQXpF" // without Flush and COPY, whose replies do not end with ReadyForQuery
	ending   = "SQXpF"
	answered = "SQF"
)

// request consumes messages up to the one that ends a request.
func (c *client) request(buf []byte) (f links.Frame, n int, err error) {
	for {
		m, length, err := cut(buf[n:], requests)
		if err != nil || length == 0 {
			return f, 0, err
		}
		if n += length; n > links.MaxFrame {
			return f, 0, fmt.Errorf("a request of more than %d bytes", links.MaxFrame)
		}
		if bytes.IndexByte([]byte(ending), m.kind) >= 0 {
			break
		}
	}
	r, err := c.understand(buf[:n])
	if err != nil {
		return f, 0, err
	}
	return links.Frame{Kind: r.Kind, Items: r.Items, Raw: buf[:n]}, n, nil
}

// understand interprets a whole request. Its kind is that of the first
// statement it executes.
func (c *client) understand(raw []byte) (r statements.Request, err error) {
	for len(raw) > 0 {
		m, n, err := cut(raw, requests)
		if err != nil {
			return r, err
		}
		raw = raw[n:]
		body := reader{rest: m.body}
		switch m.kind {
		case 'P':
			name, sql := body.name(), body.text()
			if body.bad {
				return r, errors.New("a malformed Parse")
			}
			c.prepared.Add(name, prepare(sql))
		case 'B':
			portal, name := body.name(), body.name()
			s, known := c.prepared.Lookup(name)
			if body.bad || !known {
				return r, fmt.Errorf("a Bind of the statement %q, which was not prepared here", name)
			}
			bound, err := s.bind(c.index, &body)
			if err != nil {
				return r, err
			}
			c.portals.Add(portal, bound)
		case 'E':
			portal := body.name()
			run, known := c.portals.Lookup(portal)
			if body.bad || !known {
				return r, fmt.Errorf("an Execute of the portal %q, which was not bound here", portal)
			}
			if r.Kind == "" {
				r.Kind = run.Kind
			}
			r.Items = append(r.Items[:len(r.Items):len(r.Items)], run.Items...)
		case 'Q':
			sql := body.text()
			if body.bad {
				return r, errors.New("a malformed Query")
			}
			if r.Kind == "" {
				r.Kind = statements.KindOf(sql)
			}
		}
		if bytes.IndexByte([]byte(answered), m.kind) >= 0 {
			return c.exchange.Ask(r)
		}
	}
	return r, nil
}

// server interprets what the server sends.
type server struct {
	exchange *exchange
	ready    bool   // start-up is over
	status   string // of the reply in progress
}

const (
	replies = "RSKvNAZE123CITDntsV"
	beside  = "NSA" // may arrive at any time
)

func (s *server) Next(buf []byte) (f links.Frame, n int, err error) {
	err = s.exchange.Observed()
	if err == nil {
		f, n, err = s.next(buf)
	}
	if err != nil {
		err = fmt.Errorf("postgres: %w", err)
	}
	return f, n, err
}

func (s *server) next(buf []byte) (f links.Frame, n int, err error) {
	if len(buf) > 0 && s.exchange.encryption.Load() > 0 && buf[0] != 'E' { // an old server refuses with an error
		if buf[0] != 'N' {
			return f, 0, errTLS
		}
		s.exchange.encryption.Add(-1)
		return links.Frame{Raw: buf[:1]}, 1, nil
	}
	m, n, err := cut(buf, replies)
	if err != nil || n == 0 {
		return f, 0, err
	}
	if !s.ready || bytes.IndexByte([]byte(beside), m.kind) >= 0 {
		s.ready = s.ready || m.kind == 'Z'
		return links.Frame{Raw: buf[:n]}, n, nil
	}
	if !s.exchange.Waiting() {
		if m.kind == 'E' { // the server ends the session
			return links.Frame{Raw: buf[:n]}, n, nil
		}
		return f, 0, statements.ErrUnasked
	}
	return s.reply(buf)
}

// reply consumes messages up to ReadyForQuery, or a part of them.
func (s *server) reply(buf []byte) (f links.Frame, n int, err error) {
	status := s.status
	for {
		m, length, err := cut(buf[n:], replies)
		if err != nil || length == 0 {
			return f, 0, err
		}
		n += length
		over := m.kind == 'Z'
		switch m.kind {
		case 'C', 'I':
			if status == "" {
				status = links.Yes
			}
			if bytes.HasPrefix(m.body, []byte("ROLLBACK")) {
				status = "ROLLBACK" // also after a COMMIT that follows an error
			}
		case 'E':
			status, over = failure(m.body)
		}
		if over {
			s.status = ""
			r := s.exchange.Answered()
			if status == "ROLLBACK" && r.Kind != statements.Commit || status == "" {
				status = links.Yes
			}
			return r.Reply(status, buf[:n]), n, nil
		}
		if n >= statements.Part {
			s.status = status
			return links.Frame{Raw: buf[:n]}, n, nil
		}
	}
}

// failure returns the SQLSTATE of an ErrorResponse, and whether it ends the
// session.
func failure(body []byte) (code string, fatal bool) {
	code = "error"
	for len(body) > 1 {
		value, rest, ok := bytes.Cut(body[1:], []byte{0})
		if !ok {
			break
		}
		switch body[0] {
		case 'C':
			if len(value) == len("23505") {
				code = string(value)
			}
		case 'V': // the severity, not localised
			fatal = string(value) == "FATAL" || string(value) == "PANIC"
		}
		body = rest
	}
	return code, fatal
}
