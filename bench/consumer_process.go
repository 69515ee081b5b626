package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/defects"
)

// ConsumerRole is the role of a process that is one consumer.
const ConsumerRole = "consumer"

// databaseFile is the business database, in the run's private folder.
const databaseFile = "business.db"

// remoteConsumer is what such a process is told.
type remoteConsumer struct {
	System      string // as `--system` names it
	Credentials string
	Scale       float64
	Spec        script.Consumer
	Address     string
	Dir         string
	Base        int64
	Sessions    int
	Call        time.Duration
	Defect      string
	Seat        int
}

// NewConsumerRole makes the role; find gives a system by its name.
func NewConsumerRole(find func(spec string, scale float64) (systems.System, error)) containers.Role {
	var (
		cancel context.CancelFunc = func() {}
		done                      = make(chan struct{})
		end    error
	)
	return containers.Role{
		Start: func(ctx context.Context, config json.RawMessage, p *containers.Parent) error {
			var r remoteConsumer
			if err := json.Unmarshal(config, &r); err != nil {
				return fmt.Errorf("bench: a consumer's configuration: %w", err)
			}
			s, err := find(r.System, r.Scale)
			if err != nil {
				return err
			}
			connector, ok := s.(systems.Connector)
			if !ok {
				return fmt.Errorf("bench: %s has no clients for another process", r.System)
			}
			clients, err := connector.Connect(r.Credentials)
			if err != nil {
				return err
			}
			closing := func() error { return nil }
			if c, ok := clients.(io.Closer); ok {
				closing = c.Close
			}
			if d, ok := defects.Find(r.Defect); ok {
				clients = d.Clients(clients)
			}
			db, err := business.Open(ctx, filepath.Join(r.Dir, databaseFile))
			if err != nil {
				return errors.Join(err, closing())
			}
			ctx, cancel = context.WithCancel(ctx)
			c := newConsumer(r.Spec, clients, r.Address, db, evidence.NewPipeSink(p.Events, r.Base), r.Call, s.Describe(), r.Defect)
			c.seat = r.Seat
			go func() {
				defer close(done)
				end = errors.Join(c.run(ctx, r.Sessions), db.Close(), closing())
			}()
			return nil
		},
		Stop: func(context.Context) error {
			cancel()
			<-done
			return end
		},
	}
}

// consumerActor is a consumer as the bench sees it: something that is started,
// stopped and killed, in this process or in one of its own.
type consumerActor struct {
	spec script.Consumer
	b    *Bench

	mu       sync.Mutex
	sessions int // at least as many as it has had
	running  bool
	seat     int // while it runs
	cancel   context.CancelFunc
	done     chan struct{}
	child    *containers.Child
}

// start it; nothing happens when it runs.
func (a *consumerActor) start(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running {
		return nil
	}
	a.done = make(chan struct{})
	a.seat = a.b.freeSeat(a)
	if a.spec.Child {
		if err := a.startChild(ctx); err != nil {
			return err
		}
		a.running = true
		return nil
	}
	running, cancel := context.WithCancel(a.b.life)
	c := newConsumer(a.spec, a.b.clients, a.b.addressOf(a.spec.Name), a.b.db, a.b.rec, a.b.bounds.call, a.b.desc, a.b.o.Defect)
	c.seat = a.seat
	first := a.sessions
	a.cancel = cancel
	a.running = true
	done := a.done
	go func() {
		defer close(done)
		if err := c.run(running, first); err != nil {
			a.b.fail(err)
		}
		a.mu.Lock()
		a.sessions = c.sessions
		a.mu.Unlock()
	}()
	return nil
}

// freeSeat is the lowest of its logical subscriber that no other running
// consumer has.
func (b *Bench) freeSeat(of *consumerActor) int {
	taken := map[int]bool{}
	for _, other := range b.consumers {
		if other != of && other.spec.Destination == of.spec.Destination && subscription(other.spec) == subscription(of.spec) {
			other.mu.Lock()
			if other.running {
				taken[other.seat] = true
			}
			other.mu.Unlock()
		}
	}
	seat := 0
	for taken[seat] {
		seat++
	}
	return seat
}

func (a *consumerActor) startChild(ctx context.Context) error {
	connector, ok := a.b.o.System.(systems.Connector)
	if !ok {
		return errors.New("bench: this system has no clients for another process")
	}
	log, err := a.b.rec.Log(a.spec.Name)
	if err != nil {
		return err
	}
	// Sessions of a killed process are not counted here; a gap in their
	// numbers is harmless, a number used twice is not.
	a.sessions += 1000
	done := a.done
	child, err := containers.StartChild(ctx, containers.ChildOptions{Role: ConsumerRole, Log: log,
		Config: remoteConsumer{System: a.b.o.Spec, Credentials: connector.Credentials(a.b.instance), Scale: a.b.o.Scale, Spec: a.spec,
			Address: a.b.addressOf(a.spec.Name), Dir: a.b.work, Base: a.b.rec.Base(), Sessions: a.sessions, Call: a.b.bounds.call, Defect: a.b.o.Defect, Seat: a.seat},
		Events: func(r io.Reader) { a.b.adopt(r, a.spec.Name) },
		Exited: func(x containers.Exit) {
			log.Close() // it may be started again
			a.b.rec.Record(evidence.Event{Kind: evidence.ProcessExited, Actor: a.spec.Name,
				Exit: &evidence.ExitInfo{Code: x.Code, Signal: x.Signal, Ordered: x.Ordered}})
			close(done)
		},
	}, nil)
	if err != nil {
		return err
	}
	a.child = child
	a.b.rec.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: a.spec.Name})
	return nil
}

// stop it in order; nothing happens when it does not run.
func (a *consumerActor) stop(ctx context.Context) error {
	return a.end(ctx, func(ctx context.Context) error { return a.child.Stop(ctx) })
}

func (a *consumerActor) end(ctx context.Context, child func(context.Context) error) error {
	a.mu.Lock()
	running, cancel, done := a.running, a.cancel, a.done
	a.running = false
	a.mu.Unlock()
	if !running {
		return nil
	}
	if a.spec.Child {
		return child(ctx)
	}
	cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("bench: consumer %s did not stop: %w", a.spec.Name, context.Cause(ctx))
	}
}

func (a *consumerActor) isRunning() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running
}

// The consumer's process as faults strike it.

func (a *consumerActor) Kill(ctx context.Context) error {
	return a.end(ctx, func(ctx context.Context) error { return a.child.Kill(ctx) })
}

func (a *consumerActor) Shutdown(ctx context.Context) error { return a.stop(ctx) }

func (a *consumerActor) Pause(ctx context.Context) error { return a.child.Pause(ctx) }

func (a *consumerActor) Continue(ctx context.Context) error { return a.child.Continue(ctx) }

// Revive does nothing: whether a consumer comes back is the script's to say.
func (a *consumerActor) Revive(context.Context) error { return nil }
