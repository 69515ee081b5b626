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

// Link is a TCP relay for one actor, which faults can strike. It listens on a
// stable address and dials Upstream for each accepted connection. Every frame
// with a kind is recorded before its bytes are forwarded, so the order of
// FrameCarried events on a connection is proof. It records FrameCarried and
// FaultFired; arming and healing are for the caller to record. Safe for
// concurrent use.
type Link struct {
	opts   Options
	addr   string
	ctx    context.Context // cancelled by Close
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

// Options of a link; Protocol, Toxics and DialTimeout are optional.
type Options struct {
	Name     string   // the actor
	Upstream string   // host:port of the system
	Protocol Protocol // nil for bytes without frames
	Index    *Index   // shared by all links of a run
	Sink     evidence.Sink
	// Toxics inserts Toxiproxy from the start, so that AddToxic affects open
	// connections; otherwise it affects new ones only.
	Toxics      bool
	DialTimeout time.Duration // of the upstream; 0 means 5 s
}

const (
	defaultDialTimeout = 5 * time.Second
	// maxConns bounds a client that reconnects in a loop.
	maxConns = 1024
	// listenTimeout is how long healing Down tries to rebind its port, which
	// another process may have as an ephemeral port.
	listenTimeout = 5 * time.Second
	listenRetry   = 20 * time.Millisecond
)

// Open starts a link, which runs until Close; ctx bounds only the opening.
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

// Addr returns host:port, stable for the link's life.
func (l *Link) Addr() string { return l.addr }

// Lag returns the longest time the link itself delayed bytes, without a fault
// and with a receiver that reads. It measures the harness, not the system.
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
// goroutines. Held frames are discarded.
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

// Down closes the listener and resets all connections, so that connecting is
// refused. It fires at once. Heal listens on the same address again.
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
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
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

// BlackHole discards every byte in one direction, or in both (NoDirection),
// ends and resets included. Connections stay open; new ones are accepted and
// silent. It fires at each frame lost. Heal resets the connections that lost
// bytes, since a stream with a gap would forge evidence; others go on.
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

// swallows returns the black hole that swallows a connection's bytes, and marks
// the connection to be cut when it heals.
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
		ln.Close() // nothing was accepted yet, so there is nothing to lose
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

// cutAll ends every connection by how, and returns those it ended.
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

// note records a remark about this link for readers of the run.
func (l *Link) note(c *conn, to evidence.Direction, why string) {
	l.opts.Sink.Record(evidence.Event{Kind: evidence.Noted, Actor: l.opts.Name, Link: l.opts.Name, Conn: c.number, To: to, Reason: why})
}
