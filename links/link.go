package links

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/tasks"
)

// Link is an interruptible TCP relay for one actor. It listens on an address
// of its own that stays the same for its life, and dials Upstream for each
// connection it accepts. Every frame with a kind is recorded before its bytes
// are forwarded, so the order of FrameCarried events of one connection is
// proof. FrameCarried and FaultFired come from here; arming and healing are
// for the caller to record. Safe for concurrent use.
type Link struct {
	opts   Options
	addr   string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     tasks.Group
	holes  [3]atomic.Pointer[Armed] // black holes, by evidence.Direction
	lag    atomic.Int64             // nanoseconds: see Lag

	mu       sync.Mutex
	closed   bool
	listener net.Listener // nil while down
	chain    *chain       // nil until a byte-level fault is armed; set once
	conns    map[*conn]struct{}
	accepted int
	armed    []*Armed
}

// Options of a link; all but Protocol, Toxics and DialTimeout are required.
type Options struct {
	Name     string   // the actor's
	Upstream string   // host:port of the system
	Protocol Protocol // nil: the link sees bytes and no frames
	Index    *Index   // shared by all links of a run
	Sink     evidence.Sink
	// Toxics chains Toxiproxy in from the start, so that AddToxic works on
	// connections that are already open; otherwise on new ones only.
	Toxics      bool
	DialTimeout time.Duration // of the upstream; 0 is 5 s
}

const (
	defaultDialTimeout = 5 * time.Second
	// maxConns bounds what a client that reconnects without pause can open.
	maxConns = 1024
	// listenBound is how long Heal of a link that was down tries to get its
	// port back: another process may have it as the local end of a connection.
	listenBound = 5 * time.Second
	listenRetry = 20 * time.Millisecond
)

// Open starts a link; ctx bounds the opening only. The link runs until Close.
func Open(ctx context.Context, o Options) (*Link, error) {
	if o.Name == "" || o.Upstream == "" || o.Index == nil || o.Sink == nil {
		return nil, errors.New("links: a link needs a name, an upstream, an index and a sink")
	}
	if o.Protocol == nil {
		o.Protocol = opaque{}
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = defaultDialTimeout
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("links: link of %s cannot listen: %w", o.Name, err)
	}
	l := &Link{opts: o, addr: ln.Addr().String(), conns: map[*conn]struct{}{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if o.Toxics {
		if l.chain, err = newChain(o.Upstream); err != nil {
			return nil, errors.Join(err, ln.Close())
		}
	}
	l.serve(ln)
	return l, nil
}

// Addr is where the actor connects: host:port, the same for the link's life.
func (l *Link) Addr() string { return l.addr }

// Lag is the longest time that bytes which had arrived waited for the link
// itself: neither a fault held them, nor did their receiver not read. It is a
// measure of the harness, and says nothing about the system.
func (l *Link) Lag() time.Duration { return time.Duration(l.lag.Load()) }

func (l *Link) lagged(d time.Duration) {
	for {
		longest := l.lag.Load()
		if int64(d) <= longest || l.lag.CompareAndSwap(longest, int64(d)) {
			return
		}
	}
}

// Close cuts every connection, ends every fault and waits for the link's
// goroutines. Frames still held are discarded.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	armed := l.armed
	l.armed = nil
	for _, a := range armed {
		a.Disarm()
	}
	ln, t := l.listener, l.chain
	l.listener = nil
	l.mu.Unlock()
	l.cancel()
	var err error
	if ln != nil {
		err = ln.Close()
	}
	l.cutAll("link closed", (*conn).shut)
	if t != nil {
		t.close()
	}
	l.wg.Wait()
	return err
}

// Down closes the listener and resets all connections: the system refuses. It
// fires at once. Heal listens on the same address again.
func (l *Link) Down(label string) (Injection, error) {
	l.mu.Lock()
	ln := l.listener
	l.listener = nil
	l.mu.Unlock()
	if ln == nil {
		return nil, fmt.Errorf("link of %s: %w", l.opts.Name, ErrDown)
	}
	a := l.newArmed(label, "down")
	a.undo = l.up
	if err := ln.Close(); err != nil {
		return nil, fmt.Errorf("links: take the link of %s down: %w", l.opts.Name, err)
	}
	l.cutAll("link down", (*conn).reset)
	a.fire(nil, evidence.NoDirection, Frame{})
	return a, nil
}

func (l *Link) up(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listenBound)
	defer cancel()
	var lc net.ListenConfig
	for {
		ln, err := lc.Listen(ctx, "tcp", l.addr)
		if err == nil {
			l.serve(ln)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("links: link of %s cannot listen on %s again (is its port taken?): %w", l.opts.Name, l.addr, err)
		case <-time.After(listenRetry):
		}
	}
}

// Reset sends a TCP reset to both ends of every open connection. It has fired
// if there was one.
func (l *Link) Reset(label string) Injection {
	a := l.newArmed(label, "reset")
	for _, c := range l.cutAll("reset", (*conn).reset) {
		a.fire(c, evidence.NoDirection, Frame{})
	}
	return a
}

// BlackHole throws away every byte in one direction, or both (NoDirection),
// while connections stay open and new ones are accepted and silent: no end, no
// reset passes either. It fires at each frame that is lost. Heal resets the
// connections that lost bytes, since a stream with a gap would forge evidence;
// those that lost nothing go on.
func (l *Link) BlackHole(label string, to evidence.Direction) (Injection, error) {
	a := l.newArmed(label, "black-hole")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	ways := []evidence.Direction{to}
	if to == evidence.NoDirection {
		ways = []evidence.Direction{evidence.ToBroker, evidence.ToClient}
	}
	for _, way := range ways {
		if l.holes[way].Load() != nil {
			return nil, fmt.Errorf("links: link of %s is a black hole already", l.opts.Name)
		}
	}
	for _, way := range ways {
		l.holes[way].Store(a)
	}
	return a, nil
}

// swallows gives the black hole that a connection falls into; from then on it
// is to be cut when that heals.
func (l *Link) swallows(c *conn, to evidence.Direction) *Armed {
	if l.holes[to].Load() == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.holes[to].Load()
	if a != nil {
		a.gapped[c] = struct{}{}
	}
	return a
}

func (l *Link) serve(ln net.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		ln.Close() // nothing was accepted yet: there is nothing to lose
		return
	}
	l.listener = ln
	l.wg.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return // only Down and Close end a loopback listener
			}
			l.admit(client.(*net.TCPConn), ln)
		}
	})
}

// admit starts a connection, unless its listener was closed meanwhile.
func (l *Link) admit(client *net.TCPConn, ln net.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != ln || len(l.conns) >= maxConns {
		client.SetLinger(0)
		client.Close()
		return
	}
	l.accepted++
	c := newConn(l, l.accepted, client)
	l.conns[c] = struct{}{}
	l.wg.Go(func() {
		c.run()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, c)
		for _, a := range l.armed {
			delete(a.gapped, c)
		}
		for to := range l.holes {
			if a := l.holes[to].Load(); a != nil {
				delete(a.gapped, c)
			}
		}
	})
}

func (l *Link) dial(ctx context.Context) (*net.TCPConn, error) {
	l.mu.Lock()
	addr, t := l.opts.Upstream, l.chain
	l.mu.Unlock()
	if t != nil {
		addr = t.addr()
	}
	d := net.Dialer{Timeout: l.opts.DialTimeout}
	up, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return up.(*net.TCPConn), nil
}

// cutAll ends every connection in one way and gives those it ended.
func (l *Link) cutAll(reason string, how func(*conn, string) bool) (cut []*conn) {
	l.mu.Lock()
	conns := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		if how(c, reason) {
			cut = append(cut, c)
		}
	}
	return cut
}

// note records something that a reader of the run must know of this link.
func (l *Link) note(c *conn, to evidence.Direction, why string) {
	l.opts.Sink.Record(evidence.Event{Kind: evidence.Noted, Actor: l.opts.Name, Link: l.opts.Name, Conn: c.number, To: to, Reason: why})
}
