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
	"github.com/custodymq/custody/tasks"
)

// conn is a relayed connection: two sockets, and a pump per direction.
//
// A half-close or reset is forwarded like data in its own direction, after
// everything sent before it and after any hold.
type conn struct {
	link   *Link
	number int
	ctx    context.Context // cancelled when the connection is cut
	cancel context.CancelFunc
	gate   atomic.Pointer[hold] // closed while both directions are held
	ending atomic.Bool          // an orderly cut: nothing more is forwarded

	mu             sync.Mutex
	client, broker *net.TCPConn // broker is nil until dialled
	cut            bool
	reason         string
	ended          [3]bool // by direction: the sender's half-close was forwarded
	broken         [3]bool // by direction: the receiver is gone
}

// lingerTimeout is how long an orderly cut waits for both peers to close, so
// that data already sent arrives.
const lingerTimeout = time.Second

func newConn(l *Link, number int, client *net.TCPConn) *conn {
	c := &conn{link: l, number: number, client: client}
	c.ctx, c.cancel = context.WithCancel(l.ctx)
	return c
}

func (c *conn) run() {
	defer c.shut("")
	if a := c.link.swallows(c, evidence.ToBroker); a != nil {
		// Nothing this client sends may arrive, so do not connect upstream.
		c.event(evidence.LinkConnected, "into a black hole")
		p := &pump{conn: c, to: evidence.ToBroker, src: c.client, swallowing: a}
		p.discard(Frame{}) // a client waiting for its server's greeting sends nothing
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
	if c.cut { // cut while dialling
		broker.SetLinger(0)
		broker.Close()
		return context.Canceled
	}
	c.broker = broker
	return nil
}

func (c *conn) relay() {
	toBroker, toClient := c.link.opts.Protocol.NewConn(c.link.opts.Index)
	var wg tasks.Group
	for _, p := range []*pump{
		{conn: c, to: evidence.ToBroker, src: c.client, dst: c.broker, framer: toBroker},
		{conn: c, to: evidence.ToClient, src: c.broker, dst: c.client, framer: toClient},
	} {
		wg.Go(p.run)
	}
	wg.Wait()
}

// reset closes both sides with a TCP reset, shut in the usual way. They report
// whether this call closed the connection.
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
		// Both calls fail on a socket reset by its peer.
		side.SetLinger(linger)
		side.Close()
	}
	return true
}

// finish is an orderly cut: it half-closes both sides, and gives the peers
// lingerTimeout to close while the pumps drain.
func (c *conn) finish(reason string) {
	c.ending.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reason = reason
	for _, side := range []*net.TCPConn{c.client, c.broker} {
		side.CloseWrite() // fails only if the peer is gone
	}
	time.AfterFunc(lingerTimeout, tasks.Guarded(func() { c.shut("") }))
}

// end forwards a sender's half-close.
func (c *conn) end(to evidence.Direction, dst *net.TCPConn) {
	c.mu.Lock()
	c.ended[to] = true
	dead := c.broken[to] || c.broken[opposite[to]]
	c.mu.Unlock()
	if dead {
		c.reset("a peer is gone")
		return
	}
	dst.CloseWrite() // fails only if dst is gone, which its own pump reports
}

// receiverGone marks a direction's receiver as gone. The other pump forwards
// that, after everything it received, unless it has ended.
func (c *conn) receiverGone(to evidence.Direction) {
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

// pump relays one direction of a connection. It never reorders: while it waits,
// it does not read.
type pump struct {
	conn       *conn
	to         evidence.Direction
	src, dst   *net.TCPConn
	framer     Framer    // nil if unobserved
	buf        []byte    // read, not yet consumed
	swallowing *Armed    // everything from here on is discarded
	since      time.Time // when the buffered bytes became ready to forward
	broken     bool      // dst is gone
}

const (
	readSize = 32 << 10
	// keepSize is the largest empty buffer kept.
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

// fill reads what is available, growing the buffer up to one whole frame.
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

// carry records and forwards the complete frames in the buffer. Frames that are
// not struck are written together.
func (p *pump) carry() bool {
	rest := p.buf
	ready := 0 // bytes of rest that are recorded and to be forwarded
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
			p.discard(f)
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

// next cuts the frame at the start of b; n is 0 if it is incomplete.
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

// observe records a frame before it is forwarded, and returns the hit on it, if
// any.
func (p *pump) observe(f Frame) *hit {
	h := p.conn.link.aim(p, f)
	struck := ""
	if h != nil {
		struck = h.armed.Struck()
	}
	p.record(f, struck)
	return h
}

// strike performs the action. A withholding action has fired when decided, a
// forwarding one when written.
func (p *pump) strike(h *hit) bool {
	fire := func() { h.armed.fire(p.conn, p.to, h.frame) }
	defer func() { p.since = time.Now() }()
	if withholds[h.armed.Action] {
		fire()
		return effects[h.armed.Action](p, h)
	}
	more := effects[h.armed.Action](p, h)
	if !p.broken {
		fire()
	}
	return more
}

// withholds lists the actions that keep a frame from being forwarded.
var withholds = map[Action]bool{Drop: true, Hold: true, Delay: true, CutBefore: true, Withhold: true}

// discard drops a frame.
func (p *pump) discard(f Frame) {
	a := p.swallowing
	if f.Kind != "" {
		p.record(f, string(a.Action))
	}
	if f.Kind != "" || a.Count() == 0 {
		a.fire(p.conn, p.to, f)
	}
}

func (p *pump) record(f Frame, struck string) {
	p.conn.link.opts.Sink.Record(Carried(p.conn.link.opts.Name, p.conn.number, p.to, f, struck))
}

// wait blocks until the hold is released or the timer fires. It is false if the
// connection was cut.
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

// write forwards bytes until the connection is cut. A receiver that is gone
// does not end the pump: see conn.receiverGone.
func (p *pump) write(b []byte) bool {
	if p.broken {
		return true
	}
	p.conn.link.lagged(time.Since(p.since))
	defer func() { p.since = time.Now() }() // a slow receiver is not our lag
	if _, err := p.dst.Write(b); err != nil {
		p.broken = true
		p.conn.receiverGone(p.to)
	}
	return p.conn.ctx.Err() == nil
}

// stop forwards how the sender ended.
func (p *pump) stop(err error) {
	switch {
	case p.conn.ctx.Err() != nil || p.conn.ending.Load():
	case p.swallowing != nil || p.conn.link.swallows(p.conn, p.to) != nil:
		<-p.conn.ctx.Done() // a black hole swallows the end too
	case errors.Is(err, io.EOF):
		p.forwardRest()
		p.conn.end(p.to, p.dst)
	default:
		p.conn.reset(fmt.Sprintf("%s side: %v", senders[p.to], err))
	}
}

// forwardRest forwards an incomplete last frame.
func (p *pump) forwardRest() {
	if len(p.buf) > 0 {
		p.write(p.buf)
	}
}

var senders = [...]string{evidence.ToBroker: "client", evidence.ToClient: "broker"}
