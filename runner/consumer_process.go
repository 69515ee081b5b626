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

// ConsumerRole is the role of a child process that runs one consumer.
const ConsumerRole = "consumer"

// consumerConfig is the configuration of such a process.
type consumerConfig struct {
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

// NewConsumerRole makes the role; find looks up a system by name.
func NewConsumerRole(find func(spec string, scale float64) (systems.System, error)) process.Role {
	var (
		cancel context.CancelFunc = func() {}
		done                      = make(chan struct{})
		end    error
	)
	return process.Role{
		Start: func(ctx context.Context, config json.RawMessage, p *process.Parent) error {
			var r consumerConfig
			if err := json.Unmarshal(config, &r); err != nil {
				return fmt.Errorf("runner: consumer configuration: %w", err)
			}
			s, err := find(r.System, r.Scale)
			if err != nil {
				return err
			}
			connector, ok := s.(systems.Connector)
			if !ok {
				return fmt.Errorf("runner: %s does not support consumers in child processes", r.System)
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
			c := newConsumer(r.Spec, clients, r.Address, parentDatabase{p}, evidence.NewPipeSink(p.Events, r.Base), tasks.NewReal(func() time.Duration { return evidence.Now(r.Base) }), r.Call, s.Describe(), r.Defect)
			c.seat = r.Seat
			tasks.Go(func() {
				defer close(done)
				if end = errors.Join(c.run(ctx, r.Sessions), closing()); end != nil {
					_ = p.Notify(failedNote, end.Error()) // the exit status says so too
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

// Messages between a consumer's process and its parent.
const (
	failedNote   = "failed"
	applyRequest = "apply"
)

// parentDatabase applies deliveries in the parent process, so that a process
// paused or killed mid-transaction holds no database lock.
type parentDatabase struct{ parent *process.Parent }

type applyParams struct {
	Delivery business.Delivery
	Log      bool
}

func (d parentDatabase) Apply(ctx context.Context, m business.Delivery, log bool) (outcome business.Outcome, err error) {
	if err := d.parent.Ask(ctx, applyRequest, applyParams{m, log}, &outcome); err != nil {
		return business.Uncertain, err
	}
	return outcome, nil
}

func (r *run) answerChild(ctx context.Context, question string, params json.RawMessage) (any, error) {
	var a applyParams
	if err := json.Unmarshal(params, &a); question != applyRequest || err != nil {
		return nil, fmt.Errorf("runner: a consumer's process requested %q: %w", question, err)
	}
	return r.db.Apply(ctx, a.Delivery, a.Log)
}

// consumerActor controls a consumer, in this process or in a child.
type consumerActor struct {
	spec script.Consumer
	run  *run

	mu       sync.Mutex
	sessions int // an upper bound on the sessions opened
	running  bool
	seat     int                // valid while it runs
	cancel   context.CancelFunc // of the current task, in this process
	over     *atomic.Bool
	process  process.Process // the current child
}

// start does nothing if the consumer runs.
func (a *consumerActor) start(ctx context.Context) error {
	if a.isRunning() {
		return nil
	}
	a.seat = a.run.freeSeat(a)
	if !a.spec.Child {
		a.startTask()
		return nil
	}
	// Sessions of a killed process are not counted here; session numbers may
	// have gaps but must not repeat.
	a.sessions += 1000
	connector, ok := a.run.o.System.(systems.Connector)
	if !ok {
		return errors.New("runner: this system does not support consumers in child processes")
	}
	spawn := a.startChild
	if a.run.sim != nil {
		spawn = a.startSimulated
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

// freeSeat is the lowest seat not taken by a running consumer of the same
// logical subscriber.
func (r *run) freeSeat(of *consumerActor) int {
	taken := map[int]bool{}
	for _, other := range r.actors {
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

// startTask runs the consumer in this process.
func (a *consumerActor) startTask() {
	running, cancel := context.WithCancel(a.run.lifetime)
	c := a.consumer(a.run.clients)
	over := new(atomic.Bool)
	a.mu.Lock()
	a.cancel, a.over, a.running = cancel, over, true
	first := a.sessions
	a.mu.Unlock()
	a.run.rt.Go(func() {
		defer a.run.rt.Wake()
		defer over.Store(true)
		if err := c.run(running, first); err != nil {
			a.run.fail(err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sessions = c.sessions
	})
}

func (a *consumerActor) consumer(clients systems.Clients) *consumer {
	b := a.run
	c := newConsumer(a.spec, clients, b.addressOf(a.spec.Name), b.db, b.rec, b.rt, b.bounds.call, b.desc, b.o.Defect)
	c.seat = a.seat
	return c
}

// startChild runs the consumer in a process of its own.
func (a *consumerActor) startChild(ctx context.Context, connector systems.Connector) (process.Process, error) {
	log, err := a.run.files.Log(a.spec.Name)
	if err != nil {
		return nil, err
	}
	child, err := process.StartChild(ctx, process.ChildOptions{Role: ConsumerRole, Log: log, Family: true, // an adapter's process is the consumer's
		Config: consumerConfig{System: a.run.o.Spec, Credentials: connector.Credentials(a.run.instance), Scale: a.run.o.Scale, Spec: a.spec,
			Address: a.run.addressOf(a.spec.Name), Base: a.run.files.Base(), Sessions: a.sessions, Call: a.run.bounds.call, Defect: a.run.o.Defect, Seat: a.seat},
		Events: func(r io.Reader) { a.run.recordChild(r, a.spec.Name) },
		Answer: a.run.answerChild,
		Exited: func(x process.Exit) {
			log.Close() // it may be restarted
			a.exited(x)
		},
	}, func(note string, value json.RawMessage) {
		if note == failedNote {
			a.run.fail(fmt.Errorf("consumer %s: %s", a.spec.Name, value))
		}
	})
	if err != nil {
		return nil, err
	}
	a.run.rec.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: a.spec.Name})
	return child, nil
}

func (a *consumerActor) exited(x process.Exit) {
	a.run.rec.Record(evidence.Event{Kind: evidence.ProcessExited, Actor: a.spec.Name,
		Exit: &evidence.ExitInfo{Code: x.Code, Signal: x.Signal, Ordered: x.Ordered, Waited: x.Waited}})
	if !x.Ordered {
		a.run.fail(fmt.Errorf("the process of consumer %s exited unexpectedly (exit code %d %s): see its log", a.spec.Name, x.Code, x.Signal))
	}
}

// stop shuts the consumer down; it does nothing if it does not run.
func (a *consumerActor) stop(ctx context.Context) error {
	_, err := a.terminate(ctx, process.Process.Stop)
	return err
}

// terminate ends the consumer by order, and reports which incarnation ended.
func (a *consumerActor) terminate(ctx context.Context, order func(process.Process, context.Context) error) (faults.Outcome, error) {
	a.mu.Lock()
	running, cancel, over := a.running, a.cancel, a.over
	a.running = false
	a.mu.Unlock()
	s := faults.Outcome{Incarnation: a.run.watch.starts(a.spec.Name)}
	if !running {
		return notRunning(s, a.spec.Name), nil
	}
	if a.spec.Child {
		return a.signal(ctx, order)
	}
	cancel()
	if err := a.run.rt.Wait(ctx, over.Load); err != nil {
		return s, fmt.Errorf("runner: consumer %s did not stop: %w", a.spec.Name, err)
	}
	return s, nil
}

// signal applies order to the current child.
func (a *consumerActor) signal(ctx context.Context, order func(process.Process, context.Context) error) (faults.Outcome, error) {
	a.mu.Lock()
	current := a.process
	a.mu.Unlock()
	s := faults.Outcome{Incarnation: a.run.watch.starts(a.spec.Name)}
	err := process.Strike(ctx, current, order)
	if errors.Is(err, process.ErrNotRunning) {
		return notRunning(s, a.spec.Name), nil
	}
	return s, err
}

func (a *consumerActor) isRunning() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running
}

func (a *consumerActor) Kill(ctx context.Context) (faults.Outcome, error) {
	return a.terminate(ctx, process.Process.Kill)
}

func (a *consumerActor) Shutdown(ctx context.Context) (faults.Outcome, error) {
	return a.terminate(ctx, process.Process.Stop)
}

func (a *consumerActor) Pause(ctx context.Context) (faults.Outcome, error) {
	return a.signal(ctx, process.Process.Pause)
}

func (a *consumerActor) Continue(ctx context.Context, paused faults.Outcome) (faults.Outcome, error) {
	if a.run.watch.starts(a.spec.Name) != paused.Incarnation {
		return exitedMeanwhile(paused), nil
	}
	s, err := a.signal(ctx, process.Process.Continue)
	if s.Missed != "" {
		s = exitedMeanwhile(paused)
	}
	return s, err
}

// FailOver: nothing stands by for a consumer.
func (a *consumerActor) FailOver(context.Context) (faults.Outcome, error) {
	return faults.Outcome{}, fmt.Errorf("runner: %s has no standby", a.spec.Name)
}

// Revive does nothing: the script decides whether a consumer comes back.
func (a *consumerActor) Revive(context.Context) (faults.Outcome, error) {
	return faults.Outcome{Incarnation: a.run.watch.starts(a.spec.Name)}, nil
}
