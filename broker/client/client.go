// Package client is a client of the reference broker. It hides nothing: it never
// reconnects or retries, and it distinguishes a call that may have reached the
// broker from one that certainly did not.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

var (
	// ErrDisconnected reports that the connection has ended. Every pending call
	// fails with it; only a new Dial reconnects.
	ErrDisconnected = errors.New("client: disconnected")
	// ErrRefused reports that the broker answered with an Error. A call that
	// fails with it had no effect.
	ErrRefused = errors.New("client: refused by the broker")
	// ErrUnsubscribed reports that Unsubscribe ended the subscription.
	ErrUnsubscribed = errors.New("client: unsubscribed")
)

// Options configures a connection. The zero value of a field selects the default
// named there.
type Options struct {
	Name         string        // announced to the broker; default "client"
	Token        string        // required if the broker asks for one
	TLS          *tls.Config   // nil: plaintext; an empty ServerName becomes the dialled host
	Heartbeat    time.Duration // until the broker announces its own; default 5 s
	WriteTimeout time.Duration // for one write; default 5 s
	DefaultTTL   time.Duration // of publishes that set none; default: the store's
	Window       int           // maximum number of unanswered publishes; default and upper bound: what the broker allows
	Outgoing     int           // bytes that may be queued to be sent; default 64 MiB
}

// Conn is one session. Its methods are safe for concurrent use.
type Conn struct {
	opts  Options
	conn  *transport.Conn
	slots chan struct{} // semaphore of the publish window
	all   sync.WaitGroup
	done  chan struct{}
	cause atomic.Pointer[error] // why the session ends, from before it has ended

	mu    sync.Mutex // also keeps requests in the order of their numbers
	last  uint64
	calls map[uint64]*Call
	subs  map[uint64]*Subscription
	err   error
}

// Dial connects and completes the handshake up to the Welcome. ctx bounds all of
// it.
func Dial(ctx context.Context, addr string, o Options) (*Conn, error) {
	o.Name = cmp.Or(o.Name, "client")
	o.Heartbeat = cmp.Or(o.Heartbeat, 5*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 5*time.Second)
	o.Outgoing = cmp.Or(o.Outgoing, 64<<20)
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("client: dial: %w", err)
	}
	if o.TLS != nil && o.TLS.ServerName == "" {
		o.TLS = o.TLS.Clone()
		o.TLS.ServerName, _, _ = net.SplitHostPort(addr) // Dial succeeded, so addr is valid
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	c, err := enter(nc, o)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("client: dial %s: %w", addr, errors.Join(err, ctx.Err()))
	}
	return c, nil
}

func enter(nc net.Conn, o Options) (*Conn, error) {
	conn, err := transport.Connect(nc, transport.Options{
		TLS: o.TLS, Handshake: time.Minute, Silence: 3 * o.Heartbeat, Write: o.WriteTimeout, Heartbeat: o.Heartbeat, Queue: o.Outgoing,
	})
	if err != nil {
		return nil, err
	}
	c := &Conn{
		opts: o, conn: conn, done: make(chan struct{}),
		calls: map[uint64]*Call{}, subs: map[uint64]*Subscription{}, last: 1,
	}
	c.all.Go(func() { _ = conn.Run() }) // the reader sees the error too
	welcome, err := c.hello()
	if err == nil {
		err = conn.Admit()
	}
	if err != nil {
		conn.Close()
		c.all.Wait()
		return nil, err
	}
	if c.opts.Window <= 0 || c.opts.Window > welcome.Credit {
		c.opts.Window = welcome.Credit
	}
	c.slots = make(chan struct{}, c.opts.Window)
	if welcome.TTL > 0 {
		conn.SetHeartbeat(welcome.TTL)
	}
	c.all.Go(c.read)
	return c, nil
}

func (c *Conn) hello() (wire.Message, error) {
	if _, err := c.conn.Send(&wire.Message{Kind: wire.Hello, Request: 1, Client: c.opts.Name, Token: c.opts.Token}); err != nil {
		return wire.Message{}, err
	}
	c.conn.Flush()
	m, err := c.conn.Receive()
	for err == nil && m.Kind == wire.Ping { // a busy broker may send heartbeats before it answers
		m, err = c.conn.Receive()
	}
	switch {
	case err != nil:
		return m, err
	case m.Kind == wire.Error:
		return m, fmt.Errorf("%w: %s", ErrRefused, m.Reason)
	case m.Kind != wire.Welcome:
		return m, fmt.Errorf("%w: the broker answered Hello with kind %d", wire.ErrMalformed, m.Kind)
	}
	return m, nil
}

// Done returns a channel that is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns nil while the connection is open, afterwards an error wrapping
// ErrDisconnected that says why it ended.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Close ends the session at once; unanswered publishes remain unknown. It returns
// when every goroutine of the connection has ended.
func (c *Conn) Close() error {
	c.end(ErrDisconnected)
	c.all.Wait()
	return nil
}

func (c *Conn) end(cause error) {
	c.cause.CompareAndSwap(nil, &cause) // before calls can fail because of it
	c.conn.Close()
	<-c.conn.Done() // nothing is written any more, so Written is definitive
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = *c.cause.Load()
	for request, call := range c.calls {
		call.finish(wire.Message{}, c.err)
		delete(c.calls, request)
	}
	for _, sub := range c.subs {
		sub.end(c.err)
	}
	close(c.done)
}

func (c *Conn) read() {
	for {
		m, err := c.conn.Receive()
		if err == nil {
			err = c.take(&m)
		}
		if err != nil {
			c.end(fmt.Errorf("%w: %w", ErrDisconnected, err))
			return
		}
	}
}

func (c *Conn) take(m *wire.Message) error {
	switch m.Kind {
	case wire.Ping, wire.Pong:
		return nil
	case wire.Deliver:
		if sub := c.sub(m.Request); sub != nil {
			return sub.put(m)
		}
		return nil // was in flight when the subscription ended
	}
	call := c.answered(m.Request)
	switch {
	case call != nil && m.Kind == wire.Error:
		call.finish(*m, fmt.Errorf("%w: %s", ErrRefused, m.Reason))
	case call != nil:
		call.finish(*m, nil)
	case m.Kind == wire.Error && m.Request == 0:
		return fmt.Errorf("%w: %s", ErrRefused, m.Reason)
	}
	return nil // a duplicate answer, or one to an unknown request
}

func (c *Conn) sub(request uint64) *Subscription {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.subs[request]
}

func (c *Conn) answered(request uint64) *Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[request]
	delete(c.calls, request)
	return call
}

// Call is a request in flight.
type Call struct {
	conn    *Conn
	publish bool
	start   int64
	done    chan struct{}
	reply   wire.Message
	err     error
}

// Done returns a channel that is closed when the answer arrives or the connection
// ends.
func (c *Call) Done() <-chan struct{} { return c.done }

// Wait returns the broker's answer. After ErrDisconnected or ctx's error the
// outcome is unknown unless Written returns false; after ErrRefused nothing was
// done. When ctx ends, the call stays in flight, and Wait may be called again.
func (c *Call) Wait(ctx context.Context) (wire.Message, error) {
	select {
	case <-c.done:
		return c.reply, c.err
	default:
	}
	select {
	case <-c.done:
		return c.reply, c.err
	case <-ctx.Done():
		return wire.Message{}, fmt.Errorf("client: waiting for the answer: %w", ctx.Err())
	}
}

// Written reports whether any byte of the request may have reached the socket.
// After ErrDisconnected, false proves that the broker never received it.
func (c *Call) Written() bool { return c.conn.conn.Written(c.start) }

func (c *Call) finish(reply wire.Message, err error) {
	c.reply, c.err = reply, err
	if c.publish {
		<-c.conn.slots
	}
	close(c.done)
}

// call enqueues a request; requests leave in the order of the calls. before runs
// under the lock with the request's number, so before any answer can arrive.
func (c *Conn) call(m wire.Message, publish bool, before func(request uint64)) (*Call, error) {
	call := &Call{conn: c, publish: publish, done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	m.Request = c.last + 1
	start, err := c.send(&m)
	if err != nil {
		return nil, err
	}
	c.last++
	call.start = start
	c.calls[m.Request] = call
	if before != nil {
		before(m.Request)
	}
	c.conn.Flush()
	return call, nil
}

// send enqueues a message. Only an error wrapping ErrDisconnected means that the
// session has ended.
func (c *Conn) send(m *wire.Message) (start int64, err error) {
	start, err = c.conn.Send(m)
	switch {
	case err == nil:
		return start, nil
	case errors.Is(err, wire.ErrField), errors.Is(err, transport.ErrFull):
		return 0, fmt.Errorf("client: %w", err)
	}
	if cause := c.cause.Load(); cause != nil {
		return 0, *cause
	}
	return 0, fmt.Errorf("%w: %w", ErrDisconnected, err)
}

// Publish sends m, whose Kind and Request it sets, without waiting for the
// answer. Publishes of one goroutine leave in call order. It blocks while the
// window or the outgoing queue is full. An error means that nothing was sent.
func (c *Conn) Publish(ctx context.Context, m wire.Message) (*Call, error) {
	m.Kind = wire.Publish
	if m.TTL == 0 {
		m.TTL = c.opts.DefaultTTL
	}
	select {
	case c.slots <- struct{}{}:
	case <-c.done:
		return nil, c.Err()
	case <-ctx.Done():
		return nil, fmt.Errorf("client: publish: waiting for a place in the window: %w", ctx.Err())
	}
	for {
		call, err := c.call(m, true, nil)
		if err == nil {
			return call, nil
		}
		if errors.Is(err, transport.ErrFull) {
			select {
			case <-c.conn.Took():
				continue
			case <-c.done:
				err = c.Err()
			case <-ctx.Done():
				err = fmt.Errorf("client: publish: waiting for the broker to read: %w", ctx.Err())
			}
		}
		<-c.slots
		return nil, err
	}
}

// request sends m and waits for its answer.
func (c *Conn) request(ctx context.Context, m wire.Message) (wire.Message, error) {
	call, err := c.call(m, false, nil)
	if err != nil {
		return wire.Message{}, err
	}
	return call.Wait(ctx)
}

// Lookup asks for the fate of a business ID; the LookupReply's Answer is Stored,
// Settled, Dead, NotSeen, Forgotten or Unknown. age is a lower bound for the time
// since its first publish was called. Only with it can the broker prove that it
// never stored the ID (NotSeen); without it, or if it exceeds what the broker
// remembers, the answer is Forgotten.
func (c *Conn) Lookup(ctx context.Context, businessID string, age time.Duration) (wire.Message, error) {
	if age > 0 {
		age = max(age, time.Millisecond)
	}
	return c.request(ctx, wire.Message{Kind: wire.Lookup, BusinessID: businessID, TTL: age})
}

// Admin sends a command: stats, rows, dlq.list, dlq.show, dlq.redrive,
// dlq.discard; the last three name a message. The AdminReply's Payload is JSON.
func (c *Conn) Admin(ctx context.Context, command, messageID string) (wire.Message, error) {
	return c.request(ctx, wire.Message{Kind: wire.Admin, Topic: command, MessageID: messageID})
}
