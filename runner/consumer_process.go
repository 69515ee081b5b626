package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/defects"
	"github.com/custodymq/custody/tasks"
)

// ConsumerRole is the role of a process that is one consumer.
const ConsumerRole = "consumer"

// remoteConsumer is what such a process is told.
type remoteConsumer struct {
	System      string // as `--system` names it
	Credentials string
	Scale       float64
	Spec        script.Consumer
	Address     string
	Base        int64
	Sessions    int
	Call        time.Duration
	Defect      string
	Seat        int
}

// NewConsumerRole makes the role; find gives a system by its name.
func NewConsumerRole(find func(spec string, scale float64) (systems.System, error)) process.Role {
	var (
		cancel context.CancelFunc = func() {}
		done                      = make(chan struct{})
		end    error
	)
	return process.Role{
		Start: func(ctx context.Context, config json.RawMessage, p *process.Parent) error {
			var r remoteConsumer
			if err := json.Unmarshal(config, &r); err != nil {
				return fmt.Errorf("runner: a consumer's configuration: %w", err)
			}
			s, err := find(r.System, r.Scale)
			if err != nil {
				return err
			}
			connector, ok := s.(systems.Connector)
			if !ok {
				return fmt.Errorf("runner: %s has no clients for another process", r.System)
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
			ctx, cancel = context.WithCancel(ctx)
			c := newConsumer(r.Spec, clients, r.Address, parentsDatabase{p}, evidence.NewPipeSink(p.Events, r.Base), tasks.NewReal(func() time.Duration { return evidence.Now(r.Base) }), r.Call, s.Describe(), r.Defect)
			c.seat = r.Seat
			tasks.Go(func() {
				defer close(done)
				if end = errors.Join(c.run(ctx, r.Sessions), closing()); end != nil {
					_ = p.Notify(failedNote, end.Error()) // it is this process's exit status too
				}
			})
			return nil
		},
		Stop: func(context.Context) error {
			cancel()
			<-done
			return end
		},
	}
}

// What a consumer's process tells its parent, and asks of it.
const (
	failedNote    = "failed"
	applyQuestion = "apply"
)

// parentsDatabase is the business database as a consumer's process reaches it.
// It lives in the parent, where no lock of it is held by a process that is
// paused or killed in the middle of a transaction.
type parentsDatabase struct{ parent *process.Parent }

type application struct {
	Delivery business.Delivery
	Log      bool
}

func (d parentsDatabase) Apply(ctx context.Context, m business.Delivery, log bool) (outcome business.Outcome, err error) {
	if err := d.parent.Ask(ctx, applyQuestion, application{m, log}, &outcome); err != nil {
		return business.Uncertain, err
	}
	return outcome, nil
}

func (b *run) applyFor(ctx context.Context, question string, params json.RawMessage) (any, error) {
	var a application
	if err := json.Unmarshal(params, &a); question != applyQuestion || err != nil {
		return nil, fmt.Errorf("runner: a consumer's process asks for %q: %w", question, err)
	}
	return b.db.Apply(ctx, a.Delivery, a.Log)
}

// consumerActor is a consumer as the bench sees it: something that is started,
// stopped and killed, in this process or in one of its own.
type consumerActor struct {
	spec script.Consumer
	b    *run

	mu       sync.Mutex
	sessions int // at least as many as it has had
	running  bool
	seat     int                // while it runs
	cancel   context.CancelFunc // of the latest, in this process
	over     *atomic.Bool
	process  process.Process // the latest, of its own
}

// start it; nothing happens when it runs.
func (a *consumerActor) start(ctx context.Context) error {
	if a.isRunning() {
		return nil
	}
	a.seat = a.b.freeSeat(a)
	if !a.spec.Child {
		a.begin()
		return nil
	}
	// Sessions of a killed process are not counted here; a gap in their
	// numbers is harmless, a number used twice is not.
	a.sessions += 1000
	connector, ok := a.b.o.System.(systems.Connector)
	if !ok {
		return errors.New("runner: this system has no clients for another process")
	}
	spawn := a.spawn
	if a.b.sim != nil {
		spawn = a.simulate
	}
	process, err := spawn(ctx, connector)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.process, a.running = process, true
	return nil
}

// freeSeat is the lowest of its logical subscriber that no other running
// consumer has.
func (b *run) freeSeat(of *consumerActor) int {
	taken := map[int]bool{}
	for _, other := range b.actors {
		if other != of && other.isRunning() && other.spec.Destination == of.spec.Destination && subscription(other.spec) == subscription(of.spec) {
			taken[other.seat] = true
		}
	}
	seat := 0
	for taken[seat] {
		seat++
	}
	return seat
}

// begin it in this process.
func (a *consumerActor) begin() {
	running, cancel := context.WithCancel(a.b.life)
	c := a.consumer(a.b.clients)
	over := new(atomic.Bool)
	a.mu.Lock()
	a.cancel, a.over, a.running = cancel, over, true
	first := a.sessions
	a.mu.Unlock()
	a.b.rt.Go(func() {
		defer a.b.rt.Wake()
		defer over.Store(true)
		if err := c.run(running, first); err != nil {
			a.b.fail(err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sessions = c.sessions
	})
}

func (a *consumerActor) consumer(clients systems.Clients) *consumer {
	b := a.b
	c := newConsumer(a.spec, clients, b.addressOf(a.spec.Name), b.db, b.rec, b.rt, b.bounds.call, b.desc, b.o.Defect)
	c.seat = a.seat
	return c
}

// spawn it in a process of its own.
func (a *consumerActor) spawn(ctx context.Context, connector systems.Connector) (process.Process, error) {
	log, err := a.b.files.Log(a.spec.Name)
	if err != nil {
		return nil, err
	}
	child, err := process.StartChild(ctx, process.ChildOptions{Role: ConsumerRole, Log: log,
		Config: remoteConsumer{System: a.b.o.Spec, Credentials: connector.Credentials(a.b.instance), Scale: a.b.o.Scale, Spec: a.spec,
			Address: a.b.addressOf(a.spec.Name), Base: a.b.files.Base(), Sessions: a.sessions, Call: a.b.bounds.call, Defect: a.b.o.Defect, Seat: a.seat},
		Events: func(r io.Reader) { a.b.adopt(r, a.spec.Name) },
		Asked:  a.b.applyFor,
		Exited: func(x process.Exit) {
			log.Close() // it may be started again
			a.exited(x)
		},
	}, func(note string, value json.RawMessage) {
		if note == failedNote {
			a.b.fail(fmt.Errorf("consumer %s: %s", a.spec.Name, value))
		}
	})
	if err != nil {
		return nil, err
	}
	a.b.rec.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: a.spec.Name})
	return child, nil
}

func (a *consumerActor) exited(x process.Exit) {
	a.b.rec.Record(evidence.Event{Kind: evidence.ProcessExited, Actor: a.spec.Name,
		Exit: &evidence.ExitInfo{Code: x.Code, Signal: x.Signal, Ordered: x.Ordered}})
	if !x.Ordered {
		a.b.fail(fmt.Errorf("the process of consumer %s ended by itself (exit code %d %s): see its log", a.spec.Name, x.Code, x.Signal))
	}
}

// stop it in order; nothing happens when it does not run.
func (a *consumerActor) stop(ctx context.Context) error {
	_, err := a.end(ctx, process.Process.Stop)
	return err
}

// end it, and say which incarnation was ended.
func (a *consumerActor) end(ctx context.Context, order func(process.Process, context.Context) error) (faults.Stroke, error) {
	a.mu.Lock()
	running, cancel, over := a.running, a.cancel, a.over
	a.running = false
	a.mu.Unlock()
	s := faults.Stroke{Incarnation: a.b.watch.starts(a.spec.Name)}
	if !running {
		return missed(s, a.spec.Name), nil
	}
	if a.spec.Child {
		return a.strike(ctx, order)
	}
	cancel()
	if err := a.b.rt.Wait(ctx, over.Load); err != nil {
		return s, fmt.Errorf("runner: consumer %s did not stop: %w", a.spec.Name, err)
	}
	return s, nil
}

// strike gives an order to the process that there is now.
func (a *consumerActor) strike(ctx context.Context, order func(process.Process, context.Context) error) (faults.Stroke, error) {
	a.mu.Lock()
	current := a.process
	a.mu.Unlock()
	s := faults.Stroke{Incarnation: a.b.watch.starts(a.spec.Name)}
	err := process.Strike(ctx, current, order)
	if errors.Is(err, process.ErrNotRunning) {
		return missed(s, a.spec.Name), nil
	}
	return s, err
}

func (a *consumerActor) isRunning() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running
}

// The consumer's process as faults strike it.

func (a *consumerActor) Kill(ctx context.Context) (faults.Stroke, error) {
	return a.end(ctx, process.Process.Kill)
}

func (a *consumerActor) Shutdown(ctx context.Context) (faults.Stroke, error) {
	return a.end(ctx, process.Process.Stop)
}

func (a *consumerActor) Pause(ctx context.Context) (faults.Stroke, error) {
	return a.strike(ctx, process.Process.Pause)
}

func (a *consumerActor) Continue(ctx context.Context, paused faults.Stroke) (faults.Stroke, error) {
	if a.b.watch.starts(a.spec.Name) != paused.Incarnation {
		return ended(paused), nil
	}
	s, err := a.strike(ctx, process.Process.Continue)
	if s.Missed != "" {
		s = ended(paused)
	}
	return s, err
}

// Revive does nothing: whether a consumer comes back is the script's to say.
func (a *consumerActor) Revive(context.Context) (faults.Stroke, error) {
	return faults.Stroke{Incarnation: a.b.watch.starts(a.spec.Name)}, nil
}
