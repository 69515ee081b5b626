package links

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/evidence"
)

// conn is one relayed connection: two sockets and a pump for each direction.
//
// What a peer does to its socket travels like its bytes, in its own direction
// and in order: its end is passed on as an end and its reset as a reset, behind
// everything that it sent, and neither overtakes a hold.
type conn struct {
	link   *Link
	number int
	ctx    context.Context // ends when the connection is cut
	cancel context.CancelFunc
	gate   atomic.Pointer[hold] // shut while both directions wait
	ending atomic.Bool          // an orderly cut: nothing more is forwarded

	mu             sync.Mutex
	client, broker *net.TCPConn // broker is nil until it is dialled
	cut            bool
	reason         string
	ended          [3]bool // by direction: its sender's end was passed on
	broken         [3]bool // by direction: its receiver takes no more
}

// lingerBound is how long an orderly cut waits for the peers to close too, so
// that what was already sent reaches them before the sockets go.
const lingerBound = time.Second

func newConn(l *Link, number int, client *net.TCPConn) *conn {
	c := &conn{link: l, number: number, client: client}
	c.ctx, c.cancel = context.WithCancel(l.ctx)
	return c
}

func (c *conn) run() {
	defer c.shut("")
	if a := c.link.swallows(c, evidence.ToBroker); a != nil {
		// Nothing this client sends may arrive, so neither does its connect.
		c.event(evidence.LinkConnected, "into a black hole")
		p := &pump{conn: c, to: evidence.ToBroker, src: c.client, swallowing: a}
		p.swallow(Frame{}) // a client that waits for its server's first word sends nothing
		p.run()
	} else if err := c.connect(); err != nil {
		c.reset(fmt.Sprintf("upstream: %v", err))
	} else {
		c.event(evidence.LinkConnected, "")
		c.relay()
	}
	c.shut("closed by its peers")
	c.event(evidence.LinkDisconnected, c.reason)
}

func (c *conn) connect() error {
	broker, err := c.link.dial(c.ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut { // while it was dialled: the other side has been told, and so is this one
		broker.SetLinger(0)
		broker.Close()
		return context.Canceled
	}
	c.broker = broker
	return nil
}

func (c *conn) relay() {
	toBroker, toClient := c.link.opts.Protocol.NewConn(c.link.opts.Index)
	var wg sync.WaitGroup
	for _, p := range []*pump{
		{conn: c, to: evidence.ToBroker, src: c.client, dst: c.broker, framer: toBroker},
		{conn: c, to: evidence.ToClient, src: c.broker, dst: c.client, framer: toClient},
	} {
		wg.Go(p.run)
	}
	wg.Wait()
}

// reset ends both sides at once, with a TCP reset; shut in the usual way. They
// report whether it was they who did it.
func (c *conn) reset(reason string) bool { return c.close(reason, 0) }
func (c *conn) shut(reason string) bool  { return c.close(reason, -1) }

func (c *conn) close(reason string, linger int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return false
	}
	c.cut = true
	if c.reason == "" {
		c.reason = reason
	}
	c.cancel()
	for _, side := range []*net.TCPConn{c.client, c.broker} {
		if side == nil {
			continue
		}
		// A socket that its peer has reset fails both calls, and is gone.
		side.SetLinger(linger)
		side.Close()
	}
	return true
}

// finish is an orderly cut: both peers see an end, and have lingerBound to
// close in their turn while the pumps drain what they still send.
func (c *conn) finish(reason string) {
	c.ending.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reason = reason
	for _, side := range []*net.TCPConn{c.client, c.broker} {
		side.CloseWrite() // fails only where the peer has gone, which is what is wanted
	}
	time.AfterFunc(lingerBound, func() { c.shut("") })
}

// end passes on that the sender of a direction has ended its stream.
func (c *conn) end(to evidence.Direction, dst *net.TCPConn) {
	c.mu.Lock()
	c.ended[to] = true
	dead := c.broken[to] || c.broken[opposite[to]]
	c.mu.Unlock()
	if dead {
		c.reset("a peer is gone")
		return
	}
	dst.CloseWrite() // fails only where dst has gone: its own pump says so
}

// breaks notes that the receiver of a direction takes no more. That it is gone
// is told by the other pump, behind all that it sent; unless that has ended.
func (c *conn) breaks(to evidence.Direction) {
	c.mu.Lock()
	c.broken[to] = true
	dead := c.ended[opposite[to]]
	c.mu.Unlock()
	if dead {
		c.reset("a peer is gone")
	}
}

var opposite = [...]evidence.Direction{evidence.ToBroker: evidence.ToClient, evidence.ToClient: evidence.ToBroker}

func (c *conn) event(kind evidence.Kind, reason string) {
	name := c.link.opts.Name
	c.link.opts.Sink.Record(evidence.Event{Kind: kind, Actor: name, Link: name, Conn: c.number, Reason: reason})
}

// pump carries one direction of a connection. It never reorders: while it
// waits, it does not read.
type pump struct {
	conn       *conn
	to         evidence.Direction
	src, dst   *net.TCPConn
	framer     Framer    // nil: unobserved
	buf        []byte    // read and not yet consumed
	swallowing *Armed    // everything is thrown away from here on
	since      time.Time // what is in the buffer was there, and nothing held it
	broken     bool      // dst takes no more
}

const (
	readSize = 32 << 10
	// keepSize is the largest buffer kept once it is empty.
	keepSize = 1 << 20
)

func (p *pump) run() {
	p.buf = make([]byte, 0, readSize)
	for {
		n, err := p.fill()
		p.since = time.Now()
		if n > 0 && !p.carry() {
			return
		}
		if err != nil {
			p.stop(err)
			return
		}
	}
}

// fill reads what is there, into a buffer that grows up to one whole frame.
func (p *pump) fill() (int, error) {
	if len(p.buf) == 0 && cap(p.buf) > keepSize {
		p.buf = make([]byte, 0, readSize)
	}
	if len(p.buf) == cap(p.buf) {
		grown := make([]byte, len(p.buf), 2*cap(p.buf))
		copy(grown, p.buf)
		p.buf = grown
	}
	n, err := p.src.Read(p.buf[len(p.buf):cap(p.buf)])
	p.buf = p.buf[:len(p.buf)+n]
	return n, err
}

// carry records and forwards what is complete in the buffer. Frames that
// nothing happens to leave in one write.
func (p *pump) carry() bool {
	rest := p.buf
	ready := 0 // of rest: recorded, and to be forwarded
	flush := func() bool {
		out := rest[:ready]
		rest, ready = rest[ready:], 0
		return len(out) == 0 || p.write(out)
	}
	for ready < len(rest) {
		if g := p.conn.gate.Load(); g != nil && !(flush() && p.wait(g, nil)) {
			return false
		}
		if p.broken || p.conn.ending.Load() {
			rest, ready = nil, 0
			break
		}
		f, n := p.next(rest[ready:])
		if n == 0 {
			break
		}
		if p.swallowing == nil {
			p.swallowing = p.conn.link.swallows(p.conn, p.to)
		}
		if p.swallowing != nil {
			if !flush() {
				return false
			}
			p.swallow(f)
			rest = rest[n:]
			continue
		}
		h := (*hit)(nil)
		if f.Kind != "" {
			h = p.observe(f)
		}
		if h == nil {
			ready += n
			continue
		}
		if !flush() {
			return false
		}
		rest = rest[n:]
		if !p.strike(h) {
			return false
		}
	}
	if !flush() {
		return false
	}
	p.buf = p.buf[:copy(p.buf, rest)]
	return true
}

// next cuts the frame at the start of b; n is 0 while it is incomplete.
func (p *pump) next(b []byte) (Frame, int) {
	if p.framer != nil {
		f, n, err := p.framer.Next(b)
		if err == nil && n == 0 && len(b) > MaxFrame {
			err = fmt.Errorf("a frame of more than %d bytes", MaxFrame)
		}
		if err == nil {
			return f, n
		}
		p.framer = nil
		p.conn.link.note(p.conn, p.to, fmt.Sprintf("passed through unobserved from here on: %v", err))
	}
	return Frame{Raw: b}, len(b)
}

// observe records a frame before it is forwarded, with what is to be done to it.
func (p *pump) observe(f Frame) *hit {
	h := p.conn.link.aim(p, f)
	struck := ""
	// A duplicate is two frames, of which the first is the sender's own.
	if h != nil && h.armed.action != Duplicate {
		struck = string(h.armed.action)
	}
	p.record(evidence.FrameCarried, f, struck)
	return h
}

// strike does what the action says. Fired means that the effect was seen: what
// withholds has happened once it is decided, what forwards once it is written.
func (p *pump) strike(h *hit) bool {
	fire := func() { h.armed.fire(p.conn, p.to, h.frame) }
	defer func() { p.since = time.Now() }()
	if withholds[h.armed.action] {
		fire()
		return effects[h.armed.action](p, h)
	}
	more := effects[h.armed.action](p, h)
	if !p.broken {
		fire()
	}
	return more
}

// withholds are the actions whose effect is that a frame does not go on.
var withholds = map[Action]bool{Drop: true, Hold: true, Delay: true, CutBefore: true, Withhold: true}

// swallow throws a frame away.
func (p *pump) swallow(f Frame) {
	a := p.swallowing
	if f.Kind != "" {
		p.record(evidence.FrameCarried, f, string(a.action))
	}
	if f.Kind != "" || a.Count() == 0 {
		a.fire(p.conn, p.to, f)
	}
}

func (p *pump) record(kind evidence.Kind, f Frame, struck string) {
	name := p.conn.link.opts.Name
	p.conn.link.opts.Sink.Record(evidence.Event{
		Kind: kind, Actor: name, Link: name, Conn: p.conn.number, Frame: f.Kind, To: p.to, Items: f.Items, Struck: struck, Negative: f.Negative(), Reason: f.Says,
	})
}

// wait is one hold, until it is released or the timer fires. False: the
// connection was cut meanwhile.
func (p *pump) wait(h *hold, timer <-chan time.Time) bool {
	select {
	case <-h.released:
	case <-timer:
	case <-p.conn.ctx.Done():
	}
	h.armed.forget(h)
	p.since = time.Now()
	return p.conn.ctx.Err() == nil
}

// write forwards bytes. It is interrupted by whatever cuts the connection. A
// receiver that takes no more ends nothing yet: see conn.breaks.
func (p *pump) write(b []byte) bool {
	if p.broken {
		return true
	}
	p.conn.link.lagged(time.Since(p.since))
	defer func() { p.since = time.Now() }() // a receiver that does not read is no stall of ours
	if _, err := p.dst.Write(b); err != nil {
		p.broken = true
		p.conn.breaks(p.to)
	}
	return p.conn.ctx.Err() == nil
}

// stop passes on how the sender ended.
func (p *pump) stop(err error) {
	switch {
	case p.conn.ctx.Err() != nil || p.conn.ending.Load():
	case p.swallowing != nil || p.conn.link.swallows(p.conn, p.to) != nil:
		<-p.conn.ctx.Done() // an end is lost like any byte
	case errors.Is(err, io.EOF):
		p.forwardRest()
		p.conn.end(p.to, p.dst)
	default:
		p.conn.reset(fmt.Sprintf("%s side: %v", senders[p.to], err))
	}
}

// forwardRest forwards a frame that its sender never completed.
func (p *pump) forwardRest() {
	if len(p.buf) > 0 {
		p.write(p.buf)
	}
}

var senders = [...]string{evidence.ToBroker: "client", evidence.ToClient: "broker"}
