package runner

import (
	"context"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// In a simulated run the business database is in memory, with transactions that
// take virtual time, and the processes of consumers and relays are tasks.

type delayedMemory struct {
	*business.Memory
	world *tasks.Simulated
}

func (d delayedMemory) Apply(ctx context.Context, m business.Delivery, ops []business.Op) (business.Outcome, error) {
	if err := d.world.Sleep(ctx, d.world.Jitter()); err != nil {
		return business.Failed, err
	}
	return d.Memory.Apply(ctx, m, ops)
}

// simulatedProcess is an actor's process in virtual time.
type simulatedProcess struct {
	world  *tasks.Simulated
	task   *tasks.Task
	cancel context.CancelFunc
	gone   chan struct{}
	exit   process.Exit
	ended  func(process.Exit)
}

// startSimulated runs the actor in a simulated process.
func (a *actor) startSimulated(context.Context, systems.Connector) (process.Process, error) {
	w, err := a.work()
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(by(a.run.lifetime, a.name()))
	p := &simulatedProcess{world: a.run.sim, cancel: cancel, gone: make(chan struct{}), ended: a.exited}
	a.run.rec.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: a.name()})
	p.task = p.world.Spawn(func() {
		if err := w.run(running, a.sessions); err != nil {
			a.run.fail(err)
		}
	})
	return p, nil
}

func (p *simulatedProcess) end(x process.Exit) {
	p.exit = x
	close(p.gone)
	p.ended(x)
}

func (p *simulatedProcess) Kill(context.Context) error {
	p.task.Kill()
	p.end(process.Exit{Code: -1, Signal: "killed", Ordered: true})
	return nil
}

func (p *simulatedProcess) Stop(ctx context.Context) error {
	p.cancel()
	p.task.Thaw() // a paused process cannot shut down
	if err := p.world.Wait(ctx, p.task.Over); err != nil {
		return err
	}
	p.end(process.Exit{Ordered: true})
	return nil
}

func (p *simulatedProcess) Pause(context.Context) error {
	p.task.Freeze()
	return nil
}

func (p *simulatedProcess) Continue(context.Context) error {
	p.task.Thaw()
	return nil
}

func (p *simulatedProcess) Exited() <-chan struct{} { return p.gone }
func (p *simulatedProcess) Exit() process.Exit      { return p.exit }
