// Package attack is what hostile peers do to a broker, each kind in one place:
// benchmarks measure what one costs others, the siege runs all of them. Targets
// are on this machine.
package attack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
)

// Attack is one kind of load that no fair peer makes.
type Attack struct {
	Name string
	// begin prepares it, and returns once it is under way.
	begin func(*Party) error
}

// Named is the attack of a name.
func Named(name string) (Attack, error) {
	for _, a := range All() {
		if a.Name == name {
			return a, nil
		}
	}
	return Attack{}, fmt.Errorf("attack: there is none with the name %q", name)
}

// Party is the attackers of one attack. They make no more connections than they
// need, and go on until End, or until the broker is gone.
type Party struct {
	addr, token string
	ctx         context.Context
	cancel      context.CancelFunc
	all         sync.WaitGroup

	mu   sync.Mutex
	open map[io.Closer]bool // nil once it has ended
	gone chan struct{}
	err  error
}

// Start begins an attack on the broker at addr, whose token is known; ctx bounds
// its preparation. The attack is under way when the error is nil.
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

// Gone is closed when an attacker cannot go on, as when the broker has ended.
func (p *Party) Gone() <-chan struct{} { return p.gone }

// Err is why, once Gone is closed.
func (p *Party) Err() error { return p.err }

// End ends it, and waits for the attackers.
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

// forever repeats f until the end or its first error.
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

// keep has c closed at the end.
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
	c, err := client.Dial(ctx, p.addr, client.Options{Name: name, Token: p.token})
	if err != nil {
		return nil, err
	}
	return c, p.keep(c)
}

// subscribed is a subscription of a session of its own.
func (p *Party) subscribed(topic string, mode wire.Mode, window int) (*client.Conn, *client.Subscription, error) {
	c, err := p.dial("of " + topic)
	if err != nil {
		return nil, nil, err
	}
	sub, err := c.Subscribe(p.ctx, client.Filter{Topic: topic, Mode: mode, Window: window})
	return c, sub, err
}

// raw is a connection on which nothing has been said.
func (p *Party) raw() (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(p.ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	return nc, p.keep(nc)
}

// enter is a connection past its Hello, on which anything may be said.
func (p *Party) enter(reads bool) (net.Conn, error) {
	nc, err := p.raw()
	if err != nil {
		return nil, err
	}
	_, _ = nc.Write(Entering(p.token)) // if it fails, so does what is said next
	if reads {
		p.all.Go(func() { _, _ = io.Copy(io.Discard, nc) }) // until it ends
	}
	return nc, nil
}

// say writes a message n times over at each call.
func say(nc net.Conn, n int, m wire.Message) func() error {
	said := bytes.Repeat(Frames(m), n)
	return func() error {
		_, err := nc.Write(said)
		return err
	}
}

// sayForever is say, on a session of its own that reads its answers.
func (p *Party) sayForever(n int, m wire.Message) error {
	nc, err := p.enter(true)
	if err == nil {
		p.forever(say(nc, n, m))
	}
	return err
}

// publishAll publishes as fast as the window allows, n messages.
func (p *Party) publishAll(c *client.Conn, n int, m func(i int) wire.Message) error {
	var last *client.Call
	for i := range n {
		var err error
		if last, err = c.Publish(p.ctx, m(i)); err != nil {
			return err
		}
	}
	_, err := last.Wait(p.ctx)
	return err
}

// consume acknowledges what comes.
func (p *Party) consume(sub *client.Subscription) {
	p.forever(func() error {
		d, err := sub.Receive(p.ctx)
		if err == nil {
			_, err = d.AckStart()
		}
		return err
	})
}
