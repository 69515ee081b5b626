package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/defects"
	"github.com/custodymq/custody/tasks"
)

// actor controls a consumer or a relay, in this process or in a child.
type actor struct {
	role
	run *run

	mu       sync.Mutex
	sessions int // an upper bound on the sessions opened
	running  bool
	seat     int                // valid while it runs
	cancel   context.CancelFunc // of the current task, in this process
	over     *atomic.Bool
	process  process.Process // the current child
}

// role is what an actor plays: one of the two.
type role struct {
	Consumer *script.Consumer `json:",omitempty"`
	Relay    *script.Relay    `json:",omitempty"`
}

func (p role) name() string {
	if p.Relay != nil {
		return p.Relay.Name
	}
	return p.Consumer.Name
}

func (p role) child() bool {
	if p.Relay != nil {
		return p.Relay.Child
	}
	return p.Consumer.Child
}

// competes reports whether both consume for the same logical subscriber.
func (p role) competes(other role) bool {
	return p.Consumer != nil && other.Consumer != nil &&
		other.Consumer.Destination == p.Consumer.Destination && subscription(*other.Consumer) == subscription(*p.Consumer)
}

// worker does what an actor does, in one goroutine, until ctx ends. first is the
// number of sessions the actor has had.
type worker interface {
	run(ctx context.Context, first int) error
	opened() int // sessions, earlier ones included; valid once run has returned
}

// surroundings are what a worker works with.
type surroundings struct {
	clients systems.Clients
	address string
	db      database
	sink    evidence.Sink
	rt      tasks.Runtime
	bounds  bounds
	desc    systems.Description
	scale   float64
	seed    uint64
	defect  string
	seat    int
}

func (p role) worker(s surroundings) (worker, error) {
	if p.Relay != nil {
		return newRelay(*p.Relay, s)
	}
	return newConsumer(*p.Consumer, s)
}

// ActorRole is the role of a child process that runs one consumer or relay.
const ActorRole = "actor"

// actorConfig is the configuration of such a process.
type actorConfig struct {
	role
	System        string // as `--system` names it
	Credentials   string
	Scale         float64
	Seed          uint64
	Address       string
	Base          int64
	Sessions      int
	Call, Publish time.Duration // bounds
	Defect        string
	Seat          int
}

// NewActorRole makes the role; find looks up a system by name.
func NewActorRole(find func(spec string, scale float64) (systems.System, error)) process.Role {
	var (
		cancel context.CancelFunc = func() {}
		done                      = make(chan struct{})
		end    error
	)
	return process.Role{
		Start: func(ctx context.Context, config json.RawMessage, p *process.Parent) error {
			var r actorConfig
			if err := json.Unmarshal(config, &r); err != nil {
				return fmt.Errorf("runner: configuration of a child process: %w", err)
			}
			s, err := find(r.System, r.Scale)
			if err != nil {
				return err
			}
			connector, ok := s.(systems.Connector)
			if !ok {
				return noChildren(r.System)
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
			w, err := r.worker(surroundings{clients: clients, address: r.Address, db: parentDatabase{p}, sink: evidence.NewPipeSink(p.Events, r.Base),
				rt: tasks.NewReal(func() time.Duration { return evidence.Now(r.Base) }), bounds: bounds{r.Call, r.Publish},
				desc: s.Describe(), scale: r.Scale, seed: r.Seed, defect: r.Defect, seat: r.Seat})
			if err != nil {
				return err
			}
			ctx, cancel = context.WithCancel(ctx)
			tasks.Go(func() {
				defer close(done)
				if end = errors.Join(w.run(ctx, r.Sessions), closing()); end != nil {
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

// failedNote is what a child tells before it ends.
const failedNote = "failed"

func noChildren(system string) error {
	return fmt.Errorf("runner: %s does not support consumers or relays in child processes", cmp.Or(system, "this system"))
}

// start does nothing if the actor runs.
func (a *actor) start(ctx context.Context) error {
	if a.isRunning() {
		return nil
	}
	a.seat = a.run.freeSeat(a)
	if !a.child() {
		return a.startTask()
	}
	// Sessions of a killed process are not counted here; session numbers may
	// have gaps but must not repeat.
	a.sessions += 1000
	connector, ok := a.run.o.System.(systems.Connector)
	if !ok {
		return noChildren("")
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
func (r *run) freeSeat(of *actor) int {
	taken := map[int]bool{}
	for _, other := range r.actors {
		if other != of && other.isRunning() && other.competes(of.role) {
			taken[other.seat] = true
		}
	}
	seat := 0
	for taken[seat] {
		seat++
	}
	return seat
}

// startTask runs the actor in this process.
func (a *actor) startTask() error {
	w, err := a.work()
	if err != nil {
		return err
	}
	running, cancel := context.WithCancel(by(a.run.lifetime, a.name()))
	over := new(atomic.Bool)
	a.mu.Lock()
	a.cancel, a.over, a.running = cancel, over, true
	first := a.sessions
	a.mu.Unlock()
	a.run.rt.Go(func() {
		defer a.run.rt.Wake()
		defer over.Store(true)
		if err := w.run(running, first); err != nil {
			a.run.fail(err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sessions = w.opened()
	})
	return nil
}

// work returns the actor's worker in this process.
func (a *actor) work() (worker, error) {
	b := a.run
	return a.worker(surroundings{clients: b.clients, address: b.addressOf(a.name()), db: b.db, sink: b.rec, rt: b.rt, bounds: b.bounds, desc: b.desc,
		scale: b.o.Scale, seed: b.o.Seed, defect: b.o.Defect, seat: a.seat})
}

// startChild runs the actor in a process of its own.
func (a *actor) startChild(ctx context.Context, connector systems.Connector) (process.Process, error) {
	log, err := a.run.files.Log(a.name())
	if err != nil {
		return nil, err
	}
	o := a.run.o
	child, err := process.StartChild(ctx, process.ChildOptions{Role: ActorRole, Log: log, Family: true, // an adapter's process is the actor's
		Config: actorConfig{role: a.role, System: o.Spec, Credentials: connector.Credentials(a.run.instance), Scale: o.Scale, Seed: o.Seed,
			Address: a.run.addressOf(a.name()), Base: a.run.files.Base(), Sessions: a.sessions,
			Call: a.run.bounds.call, Publish: a.run.bounds.publish, Defect: o.Defect, Seat: a.seat},
		Events: func(r io.Reader) { a.run.recordChild(r, a.name()) },
		Answer: a.answerChild,
		Exited: func(x process.Exit) {
			log.Close() // it may be restarted
			a.exited(x)
		},
	}, func(note string, value json.RawMessage) {
		if note == failedNote {
			a.run.fail(fmt.Errorf("%s: %s", a.name(), value))
		}
	})
	if err != nil {
		return nil, err
	}
	a.run.rec.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: a.name()})
	return child, nil
}

func (a *actor) exited(x process.Exit) {
	a.run.rec.Record(evidence.Event{Kind: evidence.ProcessExited, Actor: a.name(),
		Exit: &evidence.ExitInfo{Code: x.Code, Signal: x.Signal, Ordered: x.Ordered, Waited: x.Waited}})
	if !x.Ordered {
		a.run.fail(fmt.Errorf("the process of %s exited unexpectedly (exit code %d %s): see its log", a.name(), x.Code, x.Signal))
	}
}

// stop shuts the actor down; it does nothing if it does not run.
func (a *actor) stop(ctx context.Context) error {
	_, err := a.terminate(ctx, process.Process.Stop)
	return err
}

// terminate ends the actor by order, and reports which incarnation ended.
func (a *actor) terminate(ctx context.Context, order func(process.Process, context.Context) error) (faults.Outcome, error) {
	a.mu.Lock()
	running, cancel, over := a.running, a.cancel, a.over
	a.running = false
	a.mu.Unlock()
	s := faults.Outcome{Incarnation: a.run.watch.starts(a.name())}
	if !running {
		return notRunning(s, a.name()), nil
	}
	if a.child() {
		return a.signal(ctx, order)
	}
	cancel()
	if err := a.run.rt.Wait(ctx, over.Load); err != nil {
		return s, fmt.Errorf("runner: %s did not stop: %w", a.name(), err)
	}
	return s, nil
}

// signal applies order to the current child.
func (a *actor) signal(ctx context.Context, order func(process.Process, context.Context) error) (faults.Outcome, error) {
	a.mu.Lock()
	current := a.process
	a.mu.Unlock()
	s := faults.Outcome{Incarnation: a.run.watch.starts(a.name())}
	err := process.Strike(ctx, current, order)
	if errors.Is(err, process.ErrNotRunning) {
		return notRunning(s, a.name()), nil
	}
	return s, err
}

func (a *actor) isRunning() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running
}

func (a *actor) Kill(ctx context.Context) (faults.Outcome, error) {
	return a.terminate(ctx, process.Process.Kill)
}

func (a *actor) Shutdown(ctx context.Context) (faults.Outcome, error) {
	return a.terminate(ctx, process.Process.Stop)
}

func (a *actor) Pause(ctx context.Context) (faults.Outcome, error) {
	return a.signal(ctx, process.Process.Pause)
}

func (a *actor) Continue(ctx context.Context, paused faults.Outcome) (faults.Outcome, error) {
	if a.run.watch.starts(a.name()) != paused.Incarnation {
		return exitedMeanwhile(paused), nil
	}
	s, err := a.signal(ctx, process.Process.Continue)
	if s.Missed != "" {
		s = exitedMeanwhile(paused)
	}
	return s, err
}

// FailOver: nothing stands by for an actor.
func (a *actor) FailOver(context.Context) (faults.Outcome, error) {
	return faults.Outcome{}, fmt.Errorf("runner: %s has no standby", a.name())
}

// Revive does nothing: the script decides whether an actor comes back.
func (a *actor) Revive(context.Context) (faults.Outcome, error) {
	return faults.Outcome{Incarnation: a.run.watch.starts(a.name())}, nil
}
