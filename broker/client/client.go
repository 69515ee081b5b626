// Package client speaks to the reference broker. It hides nothing: it never
// reconnects, never retries, and tells a call that may have reached the broker
// from one that certainly did not.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

var (
	// ErrDisconnected: the connection is over. Everything that waited on it
	// has this error; a new one takes a new Dial.
	ErrDisconnected = errors.New("client: disconnected")
	// ErrRefused: the broker answered with an Error. For a call it means that
	// the broker did nothing.
	ErrRefused = errors.New("client: refused by the broker")
	// ErrUnsubscribed: the subscription was ended by Unsubscribe.
	ErrUnsubscribed = errors.New("client: unsubscribed")
)

// Options of a connection. Zero values stand for the default that is named.
type Options struct {
	Name         string        // of this client, told to the broker; "client"
	Token        string        // if the broker asks for one
	TLS          *tls.Config   // nil: in the clear. ServerName is the host that is dialled, if it names none
	Heartbeat    time.Duration // until the broker has told its own; 5 s
	WriteTimeout time.Duration // for one write; 5 s
	DefaultTTL   time.Duration // of publishes that name none; the store's
	Window       int           // unanswered publishes; at most, and by default, what the broker allows
	Outgoing     int           // bytes that may wait to be sent; 64 MiB
}

// Conn is one session. Its methods are safe for concurrent use.
type Conn struct {
	opts  Options
	conn  *transport.Conn
	slots chan struct{} // of the publish window
	all   sync.WaitGroup
	done  chan struct{}

	mu    sync.Mutex // also keeps requests in order of their numbers
	last  uint64
	calls map[uint64]*Call
	subs  map[uint64]*Subscription
	err   error
}

// Dial connects and says Hello. ctx bounds the whole of it.
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
		o.TLS.ServerName, _, _ = net.SplitHostPort(addr) // it was dialled, so it is one
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
	c.all.Go(func() { _ = conn.Run() }) // the reader sees the end too
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
	for err == nil && m.Kind == wire.Ping { // a broker that is busy may say so before it answers
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

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is nil while the connection lives, then why it ended (ErrDisconnected).
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Close ends the session at once: what was handed to Publish and has not been
// answered is left unknown. It returns when nothing of the connection runs.
func (c *Conn) Close() error {
	c.end(ErrDisconnected)
	c.all.Wait()
	return nil
}

func (c *Conn) end(cause error) {
	c.conn.Close()
	<-c.conn.Done() // no byte leaves any more, so Written is certain
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = cause
	for request, call := range c.calls {
		call.finish(wire.Message{}, cause)
		delete(c.calls, request)
	}
	for _, sub := range c.subs {
		sub.end(cause)
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
		return nil // was on its way when the subscription ended
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
	return nil // an answer that is repeated, or came after its call was given up
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

// Call is a request under way.
type Call struct {
	conn    *Conn
	publish bool
	start   int64
	done    chan struct{}
	reply   wire.Message
	err     error
}

// Done is closed when the answer, or the end of the connection, is here.
func (c *Call) Done() <-chan struct{} { return c.done }

// Wait returns the broker's answer. An error that is ErrDisconnected, or ctx's,
// leaves the outcome unknown unless Written says false; with ErrRefused nothing
// was done. Giving up the wait does not give up the call: Wait again.
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

// Written says whether any byte of the request may have reached the socket.
// After ErrDisconnected false is proof that the broker never had it.
func (c *Call) Written() bool { return c.conn.conn.Written(c.start) }

func (c *Call) finish(reply wire.Message, err error) {
	c.reply, c.err = reply, err
	if c.publish {
		<-c.conn.slots
	}
	close(c.done)
}

// call sends a request, in the order of the calls of it. before runs under the
// lock, with the request's number, ahead of any answer.
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

// send queues a message. Of the errors only ErrDisconnected says that the
// session is over.
func (c *Conn) send(m *wire.Message) (start int64, err error) {
	start, err = c.conn.Send(m)
	switch {
	case err == nil:
		return start, nil
	case errors.Is(err, wire.ErrField), errors.Is(err, transport.ErrFull):
		return 0, fmt.Errorf("client: %w", err)
	}
	return 0, fmt.Errorf("%w: %w", ErrDisconnected, err)
}

// Publish sends m (its Kind and Request are set here) and returns without
// waiting for the answer. Publishes leave in the order of the calls of one
// goroutine. It waits while the window, or the queue of bytes to the broker, is
// full. An error says that nothing was sent.
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

// Lookup asks what became of a business ID (LookupReply: Stored, Settled, Dead,
// NotSeen, Forgotten, Unknown). age is how long ago its first publish was
// called, at least: only with it can the broker prove that it never stored one
// (NotSeen); without it, or older than the broker remembers, it says Forgotten.
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
