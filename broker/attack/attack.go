// Package attack implements the attacks of hostile peers on a broker. Benchmarks
// measure what one attack costs other clients; the siege runs all of them. Use it
// only against brokers on this machine.
package attack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
)

// Attack is one kind of load that no well-behaved peer generates.
type Attack struct {
	Name string
	// begin prepares the attack and returns once it is under way.
	begin func(*Party) error
}

// Named returns the attack with the given name.
func Named(name string) (Attack, error) {
	for _, a := range All() {
		if a.Name == name {
			return a, nil
		}
	}
	return Attack{}, fmt.Errorf("attack: there is none with the name %q", name)
}

// Party is the set of attackers of one attack. They open no more connections than
// they need, and continue until End or until the broker is gone.
type Party struct {
	addr, token string
	ctx         context.Context
	cancel      context.CancelFunc
	all         sync.WaitGroup
	requests    atomic.Int64
	bytes       atomic.Int64

	mu   sync.Mutex
	open map[io.Closer]bool // nil once the attack has ended
	gone chan struct{}
	err  error
}

// Start starts the attack on the broker at addr, whose token the attackers know.
// ctx bounds the preparation only. When Start returns without an error, the
// attack is under way.
func (a Attack) Start(ctx context.Context, addr, token string) (*Party, error) {
	p := &Party{addr: addr, token: token, open: map[io.Closer]bool{}, gone: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, p.leave)
	err := a.begin(p)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		p.End()
		return nil, fmt.Errorf("attack: %s: %w", a.Name, err)
	}
	return p, nil
}

// Gone returns a channel that is closed when an attacker cannot continue, for
// example because the broker has ended.
func (p *Party) Gone() <-chan struct{} { return p.gone }

// Err returns the reason once Gone is closed.
func (p *Party) Err() error { return p.err }

// Made returns how many requests the attackers have made so far, connections
// included, and how many bytes they have sent. Of what goes through a client it
// counts the payloads only.
func (p *Party) Made() (requests, bytes int64) { return p.requests.Load(), p.bytes.Load() }

// counted counts the bytes written to a connection.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.bytes.Add(int64(n))
	return n, err
}

// End stops the attack and waits for its goroutines.
func (p *Party) End() {
	p.leave()
	p.all.Wait()
}

func (p *Party) leave() {
	p.cancel()
	p.mu.Lock()
	open := p.open
	p.open = nil
	p.mu.Unlock()
	for c := range open {
		c.Close()
	}
}

// forever repeats f until the attack ends or f fails.
func (p *Party) forever(f func() error) {
	p.all.Go(func() {
		for p.ctx.Err() == nil {
			if err := f(); err != nil {
				p.lost(err)
				return
			}
		}
	})
}

func (p *Party) lost(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
		close(p.gone)
	}
}

// keep registers c to be closed at the end.
func (p *Party) keep(c io.Closer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		c.Close()
		return context.Canceled
	}
	p.open[c] = true
	return nil
}

func (p *Party) drop(c io.Closer) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

func (p *Party) dial(name string) (*client.Conn, error) {
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	p.requests.Add(1)
	c, err := client.Dial(ctx, p.addr, client.Options{Name: name, Token: p.token})
	if err != nil {
		return nil, err
	}
	return c, p.keep(c)
}

// subscribed opens a session of its own and subscribes.
func (p *Party) subscribed(topic string, mode wire.Mode, window int) (*client.Conn, *client.Subscription, error) {
	c, err := p.dial("of " + topic)
	if err != nil {
		return nil, nil, err
	}
	p.requests.Add(1)
	sub, err := c.Subscribe(p.ctx, client.Filter{Topic: topic, Mode: mode, Window: window})
	return c, sub, err
}

// raw opens a connection and sends nothing.
func (p *Party) raw() (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(p.ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	p.requests.Add(1)
	nc = counted{nc, &p.bytes}
	return nc, p.keep(nc)
}

// enter opens a raw connection and sends everything up to Hello; the caller may
// send any bytes afterwards.
func (p *Party) enter(reads bool) (net.Conn, error) {
	nc, err := p.raw()
	if err != nil {
		return nil, err
	}
	_, _ = nc.Write(Entering(p.token)) // if this fails, the next write fails too
	if reads {
		p.all.Go(func() { _, _ = io.Copy(io.Discard, nc) }) // until it ends
	}
	return nc, nil
}

// say returns a function that writes the message n times per call.
func (p *Party) say(nc net.Conn, n int, m wire.Message) func() error {
	said := bytes.Repeat(Frames(m), n)
	return func() error {
		_, err := nc.Write(said)
		if err == nil {
			p.requests.Add(int64(n))
		}
		return err
	}
}

// sayForever repeats say on a session of its own, whose replies are read and
// discarded.
func (p *Party) sayForever(n int, m wire.Message) error {
	nc, err := p.enter(true)
	if err == nil {
		p.forever(p.say(nc, n, m))
	}
	return err
}

// publishAll publishes n messages as fast as the window allows, and waits for the
// last answer.
func (p *Party) publishAll(c *client.Conn, n int, m func(i int) wire.Message) error {
	var last *client.Call
	for i := range n {
		m := m(i)
		var err error
		if last, err = c.Publish(p.ctx, m); err != nil {
			return err
		}
		p.requests.Add(1)
		p.bytes.Add(int64(len(m.Payload)))
	}
	_, err := last.Wait(p.ctx)
	return err
}

// consume acknowledges every delivery.
func (p *Party) consume(sub *client.Subscription) {
	p.forever(func() error {
		d, err := sub.Receive(p.ctx)
		if err == nil {
			p.requests.Add(1)
			_, err = d.AckStart()
		}
		return err
	})
}
