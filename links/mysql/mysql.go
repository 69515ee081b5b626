// Package mysql observes the client protocol of MySQL and MariaDB
// (https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html), on the
// link between a broker and the database that is its store.
package mysql

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/internal/statements"
)

// Protocol is for links to a MySQL or MariaDB server. The zero value is ready
// for use.
//
// A frame is a command in text form with its parameters inlined, or a whole
// reply. The handshake has no kind. TLS and compression cannot be read: such a
// connection passes through unobserved, and so does one that uses server-side
// prepared statements.
type Protocol struct{}

var _ links.Protocol = Protocol{}

func (Protocol) Name() string { return "mysql" }

func (Protocol) Kinds() []links.KindInfo { return statements.Kinds() }

func (p Protocol) Legal(kind string, a links.Action) error {
	return statements.Legal(p.Name(), kind, a)
}

// NewConn returns the framers of one connection.
func (Protocol) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	x := &exchange{}
	return &client{index: ix, exchange: x}, &server{exchange: x}
}

// exchange is the state shared by both directions, with the capabilities that
// the client requested in its handshake.
type exchange struct {
	statements.Exchange
	shortEnds     atomic.Bool // no EOF packet after the columns, and OK after the rows
	cachesColumns atomic.Bool // MariaDB may omit the columns
}

// packet returns the payload at the start of buf, its sequence number, and its
// length with the header; n is 0 if it is incomplete. A packet of 16 MiB,
// which another one continues, is over the limit.
func packet(buf []byte) (payload []byte, sequence byte, n int, err error) {
	const header = 4
	if len(buf) < header {
		return nil, 0, 0, nil
	}
	length := int(buf[0]) | int(buf[1])<<8 | int(buf[2])<<16
	switch {
	case length > links.MaxFrame-header:
		return nil, 0, 0, fmt.Errorf("a packet announces %d bytes, more than %d", length, links.MaxFrame-header)
	case len(buf) < header+length:
		return nil, 0, 0, nil
	}
	n = header + length
	return buf[header:n:n], buf[3], n, nil
}

var errEmpty = errors.New("an empty packet")

// client interprets what the broker sends.
type client struct {
	index    *links.Index
	exchange *exchange
	greeted  bool
}

func (c *client) Next(buf []byte) (links.Frame, int, error) {
	f, n, err := c.next(buf)
	if err != nil {
		err = fmt.Errorf("mysql: %w", err)
		c.exchange.Refuse(err)
	}
	return f, n, err
}

func (c *client) next(buf []byte) (links.Frame, int, error) {
	payload, sequence, n, err := packet(buf)
	if err != nil || n == 0 {
		return links.Frame{}, 0, err
	}
	f := links.Frame{Raw: buf[:n]}
	switch {
	case !c.greeted:
		c.greeted = true
		err = c.handshake(payload)
	case sequence == 0 && len(payload) == 0:
		err = errEmpty
	case sequence == 0: // only a command starts at sequence 0; the rest of a handshake does not
		var r statements.Request
		r, err = c.command(payload)
		f.Kind, f.Items = r.Kind, r.Items
	}
	if err != nil {
		return links.Frame{}, 0, err
	}
	return f, n, nil
}

// Capabilities requested by a client
// (https://dev.mysql.com/doc/dev/mysql-server/latest/group__group__cs__capabilities__flags.html).
const (
	longPassword    = 1 << 0 // unset by clients that know MariaDB's own capabilities
	compress        = 1 << 5
	protocol41      = 1 << 9
	encrypt         = 1 << 11
	deprecateEOF    = 1 << 24
	compressZstd    = 1 << 26
	queryAttributes = 1 << 27

	cacheMetadata = 1 << 4 // MariaDB: https://mariadb.com/kb/en/connection/#capabilities
)

// refusals lists the capabilities under which a connection cannot be observed.
var refusals = []struct {
	capability uint32
	why        string
}{
	{encrypt, "TLS cannot be read: give the store's DSN tls=false"},
	{compress | compressZstd, "compression cannot be read: give the store's DSN compress=false"},
	{queryAttributes, "query attributes are not observed"},
}

func (c *client) handshake(payload []byte) error {
	const fixed = 32
	if len(payload) < fixed {
		return fmt.Errorf("a handshake of %d bytes", len(payload))
	}
	asked := binary.LittleEndian.Uint32(payload)
	if asked&protocol41 == 0 {
		return errors.New("a client older than MySQL 4.1")
	}
	for _, r := range refusals {
		if asked&r.capability != 0 {
			return errors.New(r.why)
		}
	}
	c.exchange.shortEnds.Store(asked&deprecateEOF != 0)
	c.exchange.cachesColumns.Store(asked&longPassword == 0 && binary.LittleEndian.Uint32(payload[fixed-4:])&cacheMetadata != 0)
	return nil
}

// Commands (https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_command_phase.html).
const (
	quit            = 0x01
	initDatabase    = 0x02
	query           = 0x03
	ping            = 0x0e
	setOption       = 0x1b
	resetConnection = 0x1f
)

func (c *client) command(payload []byte) (r statements.Request, err error) {
	switch payload[0] {
	case quit:
		return r, nil // it has no reply
	case query:
		text := payload[1:]
		r.Kind = statements.KindOf(text)
		if r.Items, err = items(c.index, r.Kind, text); err != nil {
			return r, err
		}
	case initDatabase, ping, setOption, resetConnection:
	default:
		return r, fmt.Errorf("the command %#02x is not observed", payload[0])
	}
	return c.exchange.Ask(r)
}

// server interprets what the server sends.
type server struct {
	exchange *exchange
	greeted  bool
	ready    bool // the handshake is over
	reply    reply
}

func (s *server) Next(buf []byte) (f links.Frame, n int, err error) {
	err = s.exchange.Observed()
	if err == nil {
		f, n, err = s.next(buf)
	}
	if err != nil {
		err = fmt.Errorf("mysql: %w", err)
	}
	return f, n, err
}

// First bytes of a reply.
const (
	okay        = 0x00
	localInfile = 0xfb
	eof         = 0xfe
	failed      = 0xff
)

func (s *server) next(buf []byte) (f links.Frame, n int, err error) {
	payload, _, n, err := packet(buf)
	if err != nil || n == 0 {
		return f, 0, err
	}
	switch {
	case !s.ready:
		s.ready = s.greeted && len(payload) > 0 && payload[0] == okay
		s.greeted = true
		return links.Frame{Raw: buf[:n]}, n, nil
	case !s.exchange.Waiting():
		if len(payload) > 0 && payload[0] == failed { // the server ends the session
			return links.Frame{Raw: buf[:n]}, n, nil
		}
		return f, 0, statements.ErrUnasked
	}
	r := s.reply
	for n = 0; ; {
		payload, _, length, err := packet(buf[n:])
		if err != nil || length == 0 {
			return f, 0, err
		}
		n += length
		over, err := r.take(payload, s.exchange.shortEnds.Load(), s.exchange.cachesColumns.Load())
		switch {
		case err != nil:
			return f, 0, err
		case over:
			s.reply = reply{}
			return s.exchange.Answered().Reply(r.status, buf[:n]), n, nil
		case n >= statements.Part:
			s.reply = r
			return links.Frame{Raw: buf[:n]}, n, nil
		}
	}
}

// reply tracks how much of a reply has arrived
// (https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response.html).
type reply struct {
	expects stage
	columns int // still to come
	status  string
}

type stage uint8

const (
	result      stage = iota // OK, an error, or the number of columns
	definitions              // of columns
	columnsEnd               // EOF
	rows                     // and the packet that ends them
)

const (
	maxColumns      = 1 << 12 // the servers' own limit
	moreResults     = 1 << 3  // status: another result follows
	progressReport  = 0xffff  // sent in place of an error code: MariaDB is still working
	shortestEOFRows = 9       // a packet at least this long that begins like EOF is a row
)

// take consumes the next packet, and reports whether the reply is complete.
func (r *reply) take(payload []byte, shortEnds, cachesColumns bool) (over bool, err error) {
	if len(payload) == 0 {
		return false, errEmpty
	}
	if payload[0] == failed {
		if len(payload) < 3 {
			return false, errors.New("a malformed error")
		}
		code := binary.LittleEndian.Uint16(payload[1:])
		if code == progressReport {
			return false, nil
		}
		r.status = strconv.Itoa(int(code))
		return true, nil
	}
	switch r.expects {
	case result:
		switch payload[0] {
		case okay:
			return r.finish(payload, true)
		case eof: // reply to setOption
			return r.finish(payload, false)
		case localInfile:
			return false, errors.New("LOAD DATA LOCAL is not observed")
		}
		count, rest, ok := number(payload)
		if !ok || count == 0 || count > maxColumns {
			return false, fmt.Errorf("a reply that begins with %#02x", payload[0])
		}
		r.columns, r.expects = int(count), definitions
		if cachesColumns && len(rest) > 0 && rest[0] == 0 {
			r.columns = 0
			r.afterColumns(shortEnds)
		}
	case definitions:
		if r.columns--; r.columns == 0 {
			r.afterColumns(shortEnds)
		}
	case columnsEnd:
		if payload[0] != eof {
			return false, errors.New("no EOF behind the columns")
		}
		r.expects = rows
	case rows:
		if payload[0] == eof && (shortEnds || len(payload) < shortestEOFRows) {
			return r.finish(payload, shortEnds)
		}
	}
	return false, nil
}

func (r *reply) afterColumns(shortEnds bool) {
	r.expects = columnsEnd
	if shortEnds {
		r.expects = rows
	}
}

// finish ends a result with an OK packet or an older EOF, whose status says
// whether another result follows.
func (r *reply) finish(payload []byte, asOK bool) (over bool, err error) {
	rest, ok := payload[1:], true
	if asOK {
		if _, rest, ok = number(rest); ok { // affected rows
			_, rest, ok = number(rest) // last insert ID
		}
	} else if len(rest) >= 4 {
		rest = rest[2:] // warnings
	}
	if !ok || len(rest) < 2 {
		return false, errors.New("a malformed end of a result")
	}
	r.status, r.expects = links.Yes, result
	return binary.LittleEndian.Uint16(rest)&moreResults == 0, nil
}

// number parses a length-encoded integer.
func number(b []byte) (n uint64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	size, known := map[byte]int{0xfc: 2, 0xfd: 3, 0xfe: 8}[b[0]]
	switch {
	case b[0] < localInfile:
		return uint64(b[0]), b[1:], true
	case !known || len(b) < 1+size:
		return 0, nil, false
	}
	for i := range size {
		n |= uint64(b[1+i]) << (8 * i)
	}
	return n, b[1+size:], true
}
