// Package transport carries protocol messages over one ZeroMQ connection,
// optionally inside TLS. go-zeromq performs the handshake, over a net.Conn that
// this package guards. Framing is implemented here because a server must bound
// what a peer can make it allocate, answer PING between its own frames, and never
// block on one peer.
//
// A connection starts untrusted: until Admit it has a single absolute deadline
// and a small byte budget, whatever the peer sends. A peer that has not presented
// its token can therefore neither hold a connection nor make this side allocate.
package transport

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"

	"github.com/custodymq/custody/broker/wire"
)

// Flags of a ZMTP frame (RFC 23).
const (
	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04
)

const (
	greetingSize = 64
	// Limit of every frame until Admit. A READY command carries a socket type and
	// an identity, a Hello a name and a token.
	maxEarlyFrame = 4 << 10
	earlyBuffer   = 4 << 10 // size of the read buffer until Admit
	// Limit of everything a peer may send until Admit, PINGs included. With TLS
	// the handshake and the peer's certificates count too.
	earlyBytes    = 16 << 10
	earlyBytesTLS = 64 << 10

	maxCommand = 1 << 10
	readBuffer = 64 << 10
	keepBuffer = 64 << 10 // a write buffer that grew beyond this is released
)

var (
	// ErrFrame reports bytes that are not ZMTP or exceed a protocol limit. The
	// connection is unusable, because the next frame boundary is unknown.
	ErrFrame = errors.New("transport: invalid frame")
	// ErrFull reports that the outgoing queue is full because the peer does not
	// read.
	ErrFull = errors.New("transport: outgoing queue is full: the peer does not read")
	// ErrClosed reports that this side closed the connection.
	ErrClosed = errors.New("transport: closed")
)

// Options configures a connection. All fields but TLS are required.
type Options struct {
	TLS       *tls.Config   // nil: plaintext
	Handshake time.Duration // deadline for everything up to Admit, whatever the peer sends meanwhile
	Silence   time.Duration // the peer is considered gone after receiving nothing for this long; detected at most a quarter later
	Write     time.Duration // deadline for one write
	Heartbeat time.Duration // send a Ping after sending nothing else for this long
	Queue     int           // bytes queued at which Send returns ErrFull; one message may exceed it
}

// Conn is one connection. Receive, Buffered, SetHeartbeat and Admit must be
// called from one goroutine; the other methods are safe for concurrent use.
type Conn struct {
	*Outgoing
	nc       net.Conn
	br       *bufio.Reader
	head     []byte
	silence  time.Duration
	until    time.Time // the read deadline currently set
	admitted bool
	early    *budget
	reserve  func(n int) error
	tls      *tls.ConnectionState
}

// Accept performs the server's side of the handshake, as a ROUTER.
func Accept(nc net.Conn, o Options) (*Conn, error) { return open(nc, zmq4.Router, true, o) }

// Connect performs the client's side of the handshake, as a DEALER.
func Connect(nc net.Conn, o Options) (*Conn, error) { return open(nc, zmq4.Dealer, false, o) }

func open(nc net.Conn, kind zmq4.SocketType, server bool, o Options) (*Conn, error) {
	if err := nc.SetDeadline(time.Now().Add(o.Handshake)); err != nil {
		return nil, fmt.Errorf("transport: handshake: %w", err)
	}
	c := &Conn{early: &budget{Conn: nc, limit: earlyBytes, left: earlyBytes}, silence: o.Silence}
	c.nc = c.early
	if o.TLS != nil {
		c.early.limit, c.early.left = earlyBytesTLS, earlyBytesTLS
		secured, state, err := secure(c.early, server, o.TLS)
		if err != nil {
			return nil, fmt.Errorf("transport: TLS handshake with %s: %w", nc.RemoteAddr(), err)
		}
		c.nc, c.tls = secured, state
	}
	c.br = bufio.NewReaderSize(c.nc, earlyBuffer)
	g := &guard{Conn: c.nc, br: c.br, left: greetingSize}
	if err := handshake(g, kind, server); err != nil {
		return nil, fmt.Errorf("transport: handshake with %s: %w", nc.RemoteAddr(), err)
	}
	if g.left != 0 {
		return nil, fmt.Errorf("%w: %d bytes of the handshake were not read", ErrFrame, g.left)
	}
	c.Outgoing = newOutgoing(c.nc, o)
	return c, nil
}

// Admit marks the peer as authenticated and replaces the handshake's limits with
// the protocol's. Messages sent before Admit stay queued until Run.
func (c *Conn) Admit() error {
	if err := c.nc.SetReadDeadline(time.Time{}); err != nil { // each write sets its own deadline
		return fmt.Errorf("transport: admit: %w", err)
	}
	c.admitted = true
	c.early.limit = 0
	ahead, _ := c.br.Peek(c.br.Buffered())
	c.br = bufio.NewReaderSize(&resumed{ahead: ahead, next: c.nc}, readBuffer)
	_, _ = c.br.Peek(len(ahead)) // fill the buffer, so that Buffered counts these bytes
	return nil
}

// SetReserve registers f, which is called with a message's total size n before
// its payload is read. f blocks until there is room. An error from it ends the
// connection.
func (c *Conn) SetReserve(f func(n int) error) { c.reserve = f }

// Refuse writes everything queued and then m, which tells the peer why it is not
// admitted. The handshake's deadline applies. Run must not be running.
func (c *Conn) Refuse(m *wire.Message) error {
	if _, err := c.Send(m); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.nc.Write(c.queue)
	return err
}

// Certificate returns the peer's verified certificate, or nil if it presented
// none.
func (c *Conn) Certificate() *x509.Certificate {
	if c.tls == nil || len(c.tls.VerifiedChains) == 0 {
		return nil
	}
	return c.tls.VerifiedChains[0][0]
}

// Waiting returns how many bytes are queued to be sent.
func (c *Conn) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

// budget fails reads once an unadmitted peer has sent too much. It counts below
// TLS, to bound what TLS itself allocates too.
type budget struct {
	net.Conn
	limit, left int // limit 0: admitted
}

func (b *budget) Read(p []byte) (int, error) {
	if b.limit == 0 {
		return b.Conn.Read(p)
	}
	if b.left == 0 {
		return 0, fmt.Errorf("%w: more than %d bytes before the Hello was accepted", ErrFrame, b.limit)
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// resumed reads the bytes that a previous buffer read ahead, then from the
// connection.
type resumed struct {
	ahead []byte
	next  io.Reader
}

func (r *resumed) Read(p []byte) (int, error) {
	if len(r.ahead) == 0 {
		r.ahead = nil // releases the previous buffer
		return r.next.Read(p)
	}
	n := copy(p, r.ahead)
	r.ahead = r.ahead[n:]
	return n, nil
}

// limit returns the size limit of a frame, which is tighter until Admit.
func (c *Conn) limit(usual uint64) uint64 {
	if c.admitted {
		return usual
	}
	return min(usual, maxEarlyFrame)
}

// handshake converts a panic into an error: the library slices a peer's metadata
// by lengths that the peer announced.
func handshake(g *guard, kind zmq4.SocketType, server bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: malformed handshake: %v", ErrFrame, p)
		}
	}()
	_, err = zmq4.Open(g, null.Security(), kind, nil, server, nil)
	return err
}

// guard follows the frame headers of a handshake and fails at one that announces
// too much, before the library allocates for it.
type guard struct {
	net.Conn
	br   *bufio.Reader
	left int // bytes left of the greeting or the frame
}

func (g *guard) Read(p []byte) (int, error) {
	if g.left == 0 {
		size, headerSize, _, err := peekHeader(g.br)
		if err != nil {
			return 0, err
		}
		if size > maxEarlyFrame {
			return 0, fmt.Errorf("%w: %d bytes announced in a handshake, limit %d", ErrFrame, size, maxEarlyFrame)
		}
		g.left = headerSize + int(size)
	}
	n, err := g.br.Read(p[:min(len(p), g.left)])
	g.left -= n
	return n, err
}

// peekHeader parses a frame's header without consuming it.
func peekHeader(br *bufio.Reader) (size uint64, headerSize int, flags byte, err error) {
	b, err := br.Peek(2)
	if err != nil {
		return 0, 0, 0, cutShort(b, err)
	}
	flags = b[0]
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, 0, 0, fmt.Errorf("%w: reserved flags in %#x", ErrFrame, flags)
	}
	if flags&flagLong == 0 {
		return uint64(b[1]), 2, flags, nil
	}
	if b, err = br.Peek(9); err != nil {
		return 0, 0, 0, cutShort(b, err)
	}
	return binary.BigEndian.Uint64(b[1:]), 9, flags, nil
}

func cutShort(got []byte, err error) error {
	if errors.Is(err, io.EOF) && len(got) > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Receive blocks until the next message; the caller owns its payload. PING
// commands are answered in passing. An error that wraps wire.ErrVersion,
// wire.ErrMalformed or wire.ErrField concerns one message, and the returned
// message carries its request number if known; any other error ends the
// connection.
func (c *Conn) Receive() (wire.Message, error) {
	for {
		if err := c.extend(); err != nil {
			return wire.Message{}, err
		}
		size, headerSize, flags, err := peekHeader(c.br)
		if err != nil {
			return wire.Message{}, err
		}
		if flags&flagCommand != 0 {
			if err := c.command(int(min(size, maxCommand+1)), headerSize, flags); err != nil {
				return wire.Message{}, err
			}
			continue
		}
		if limit := c.limit(wire.MaxHead); size > limit {
			return wire.Message{}, fmt.Errorf("%w: a head of %d bytes announced, limit %d", ErrFrame, size, limit)
		}
		if cap(c.head) < int(size) {
			c.head = make([]byte, size)
		}
		head := c.head[:size]
		if err := c.read(headerSize, head); err != nil {
			return wire.Message{}, err
		}
		if flags&flagMore == 0 {
			return wire.Message{}, fmt.Errorf("%w: one part, must be 2 (head, payload)", wire.ErrMalformed)
		}
		payload, extra, err := c.payload(head)
		if err != nil {
			return wire.Message{}, err
		}
		if extra {
			return wire.Message{}, fmt.Errorf("%w: more than 2 parts", wire.ErrMalformed)
		}
		return wire.DecodeParts(head, payload)
	}
}

// payload reads the second part, and discards any surplus parts.
func (c *Conn) payload(head []byte) (payload []byte, extra bool, err error) {
	for part := 0; part < 16; part++ {
		size, headerSize, flags, err := peekHeader(c.br)
		switch {
		case err != nil:
			return nil, false, err
		case flags&flagCommand != 0:
			return nil, false, fmt.Errorf("%w: a command between the parts of a message", ErrFrame)
		case size > c.limit(wire.MaxPayload):
			return nil, false, fmt.Errorf("%w: a payload of %d bytes announced, limit %d", ErrFrame, size, c.limit(wire.MaxPayload))
		}
		if c.reserve != nil {
			if err := c.reserve(len(head) + int(size)); err != nil {
				return nil, false, err
			}
			if size > readBuffer { // the reservation may have blocked
				c.until = time.Time{}
				if err := c.extend(); err != nil {
					return nil, false, err
				}
			}
		}
		payload = make([]byte, size)
		if err := c.read(headerSize, payload); err != nil {
			return nil, false, err
		}
		if flags&flagMore == 0 {
			return payload, part > 0, nil
		}
	}
	return nil, false, fmt.Errorf("%w: a message of more than 16 parts", ErrFrame)
}

func (c *Conn) read(headerSize int, body []byte) error {
	if _, err := c.br.Discard(headerSize); err != nil {
		return err
	}
	_, err := io.ReadFull(c.br, body)
	return err
}

// command answers PING with PONG (RFC 37: the PONG repeats the context that
// follows the TTL).
func (c *Conn) command(size, headerSize int, flags byte) error {
	if size > maxCommand || flags&flagMore != 0 {
		return fmt.Errorf("%w: a command of more than %d bytes or one part", ErrFrame, maxCommand)
	}
	body := make([]byte, size)
	if err := c.read(headerSize, body); err != nil {
		return err
	}
	const ping = "\x04PING"
	if len(body) >= len(ping)+2 && string(body[:len(ping)]) == ping {
		if err := c.sendCommand(append([]byte("\x04PONG"), body[len(ping)+2:]...)); err != nil {
			return err
		}
		c.Flush()
	}
	return nil
}

// extend moves the read deadline, but no more often than necessary: a peer may
// stay silent for the whole interval, and for at most a quarter more. Until Admit
// the handshake's deadline stands.
func (c *Conn) extend() error {
	if !c.admitted {
		return nil
	}
	now := time.Now()
	if c.until.Sub(now) > c.silence {
		return nil
	}
	c.until = now.Add(c.silence * 5 / 4)
	return c.nc.SetReadDeadline(c.until)
}

// SetHeartbeat adopts the interval that the peer announced: a Ping is sent after
// sending nothing for d, and the connection ends after 3d of silence. It must be
// called from the goroutine that calls Receive.
func (c *Conn) SetHeartbeat(d time.Duration) {
	c.silence = 3 * d
	c.until = time.Time{}
	c.mu.Lock()
	c.beatEvery = d
	c.mu.Unlock()
	c.Flush()
}

// Buffered reports whether more bytes have been read already; a caller that
// batches messages stops when there are none. The next Receive may still block if
// they are not a whole message.
func (c *Conn) Buffered() bool { return c.br.Buffered() > 0 }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }
