// Package transport carries protocol messages over one ZeroMQ connection: the
// handshake is go-zeromq's, over a net.Conn that is guarded here; frames are cut
// and joined here, because a server must bound what a peer makes it allocate,
// answer PING between its own frames, and never block on one peer.
package transport

import (
	"bufio"
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
	// A READY command carries a socket type and an identity.
	maxHandshakeFrame = 4 << 10
	maxCommand        = 1 << 10
	readBuffer        = 64 << 10
	keepBuffer        = 1 << 20 // a write buffer that grew beyond is not kept
)

var (
	// ErrFrame: bytes that are not ZMTP, or more than the protocol allows. The
	// connection cannot go on, since the place of the next frame is not known.
	ErrFrame = errors.New("transport: invalid frame")
	// ErrFull: the peer does not take what is sent to it.
	ErrFull = errors.New("transport: outgoing queue is full: the peer does not read")
	// ErrClosed: the connection was closed on this side.
	ErrClosed = errors.New("transport: closed")
)

// Options of a connection; all are required.
type Options struct {
	Handshake time.Duration // for the whole ZMTP handshake
	Silence   time.Duration // the peer is gone if nothing came for so long
	Write     time.Duration // one write may take so long
	Heartbeat time.Duration // a Ping is sent if nothing else was for so long
	Queue     int           // bytes waiting to be sent from which no more are taken: it is exceeded by one message
}

// Conn is one connection. Receive and Buffered are for one goroutine; the rest
// is safe for concurrent use.
type Conn struct {
	*Outgoing
	nc      net.Conn
	br      *bufio.Reader
	head    []byte
	silence time.Duration
	until   time.Time // of the read deadline that is set
}

// Accept makes the server's side (a ROUTER) of a connection.
func Accept(nc net.Conn, o Options) (*Conn, error) { return open(nc, zmq4.Router, true, o) }

// Connect makes the client's side (a DEALER).
func Connect(nc net.Conn, o Options) (*Conn, error) { return open(nc, zmq4.Dealer, false, o) }

func open(nc net.Conn, kind zmq4.SocketType, server bool, o Options) (c *Conn, err error) {
	if err := nc.SetDeadline(time.Now().Add(o.Handshake)); err != nil {
		return nil, fmt.Errorf("transport: handshake: %w", err)
	}
	g := &guard{Conn: nc, br: bufio.NewReaderSize(nc, readBuffer), left: greetingSize}
	if err := handshake(g, kind, server); err != nil {
		return nil, fmt.Errorf("transport: handshake with %s: %w", nc.RemoteAddr(), err)
	}
	if g.left != 0 {
		return nil, fmt.Errorf("%w: %d bytes of the handshake were not read", ErrFrame, g.left)
	}
	if err := nc.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("transport: handshake: %w", err)
	}
	return &Conn{Outgoing: newOutgoing(nc, o), nc: nc, br: g.br, silence: o.Silence}, nil
}

// handshake turns a panic into an error: the library slices a peer's metadata
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

// guard follows the frame headers of a handshake and stops at one that
// announces too much, before the library allocates it.
type guard struct {
	net.Conn
	br   *bufio.Reader
	left int // of the greeting, or of the frame
}

func (g *guard) Read(p []byte) (int, error) {
	if g.left == 0 {
		size, headerSize, _, err := peekHeader(g.br)
		if err != nil {
			return 0, err
		}
		if size > maxHandshakeFrame {
			return 0, fmt.Errorf("%w: %d bytes announced in a handshake, limit %d", ErrFrame, size, maxHandshakeFrame)
		}
		g.left = headerSize + int(size)
	}
	n, err := g.br.Read(p[:min(len(p), g.left)])
	g.left -= n
	return n, err
}

// peekHeader reads a frame's header without taking it.
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

// Receive waits for the next message. The payload is the caller's. PING
// commands are answered on the way. An error that is wire.ErrVersion,
// wire.ErrMalformed or wire.ErrField refuses one message, and the message
// returned names its request as far as it is known; with any other error the
// connection is over.
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
		if size > wire.MaxHead {
			return wire.Message{}, fmt.Errorf("%w: a head of %d bytes announced, limit %d", ErrFrame, size, wire.MaxHead)
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
		payload, extra, err := c.payload()
		if err != nil {
			return wire.Message{}, err
		}
		if extra {
			return wire.Message{}, fmt.Errorf("%w: more than 2 parts", wire.ErrMalformed)
		}
		return wire.DecodeParts(head, payload)
	}
}

// payload reads the second part, and throws away parts that must not follow.
func (c *Conn) payload() (payload []byte, extra bool, err error) {
	for part := 0; part < 16; part++ {
		size, headerSize, flags, err := peekHeader(c.br)
		switch {
		case err != nil:
			return nil, false, err
		case flags&flagCommand != 0:
			return nil, false, fmt.Errorf("%w: a command between the parts of a message", ErrFrame)
		case size > wire.MaxPayload:
			return nil, false, fmt.Errorf("%w: a payload of %d bytes announced, limit %d", ErrFrame, size, wire.MaxPayload)
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

// command answers PING (RFC 37: the PONG repeats the context after the TTL).
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

// extend moves the read deadline, not more often than is needed.
func (c *Conn) extend() error {
	now := time.Now()
	if c.until.Sub(now) > c.silence*3/4 {
		return nil
	}
	c.until = now.Add(c.silence)
	return c.nc.SetReadDeadline(c.until)
}

// SetHeartbeat adopts the interval that the peer told: a Ping if nothing was sent
// for so long, and the end after three of them in silence. For the goroutine
// that receives.
func (c *Conn) SetHeartbeat(d time.Duration) {
	c.silence = 3 * d
	c.until = time.Time{}
	c.mu.Lock()
	c.beatEvery = d
	c.mu.Unlock()
	c.Flush()
}

// Buffered says whether more bytes are here already: whoever gathers messages
// stops gathering when there are none. The next Receive may still block, when
// they are not a whole message.
func (c *Conn) Buffered() bool { return c.br.Buffered() > 0 }

// RemoteAddr of the peer.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }
