package runner

import (
	"context"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// What a simulated run has in place of the machine's: a business database in
// memory whose transactions take their time, and consumers' processes that are
// tasks.

type slowMemory struct {
	*business.Memory
	world *tasks.Simulated
}

func (d slowMemory) Apply(ctx context.Context, m business.Delivery, log bool) (business.Outcome, error) {
	if err := d.world.Sleep(ctx, d.world.Jitter()); err != nil {
		return business.Failed, err
	}
	return d.Memory.Apply(ctx, m, log)
}

// simulated is a consumer's process in virtual time.
type simulated struct {
	world  *tasks.Simulated
	task   *tasks.Task
	cancel context.CancelFunc
	gone   chan struct{}
	exit   process.Exit
	ended  func(process.Exit)
}

// simulate a process of its own.
func (a *consumerActor) simulate(context.Context, systems.Connector) (process.Process, error) {
	running, cancel := context.WithCancel(a.b.life)
	p := &simulated{world: a.b.sim, cancel: cancel, gone: make(chan struct{}), ended: a.exited}
	a.b.rec.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: a.spec.Name})
	c := a.consumer(a.b.clients)
	p.task = p.world.Spawn(func() {
		if err := c.run(running, a.sessions); err != nil {
			a.b.fail(err)
		}
	})
	return p, nil
}

func (p *simulated) end(x process.Exit) {
	p.exit = x
	close(p.gone)
	p.ended(x)
}

func (p *simulated) Kill(context.Context) error {
	p.task.Kill()
	p.end(process.Exit{Code: -1, Signal: "killed", Ordered: true})
	return nil
}

func (p *simulated) Stop(ctx context.Context) error {
	p.cancel()
	p.task.Thaw() // a stopped process cannot end in order
	if err := p.world.Wait(ctx, p.task.Over); err != nil {
		return err
	}
	p.end(process.Exit{Ordered: true})
	return nil
}

func (p *simulated) Pause(context.Context) error {
	p.task.Freeze()
	return nil
}

func (p *simulated) Continue(context.Context) error {
	p.task.Thaw()
	return nil
}

func (p *simulated) Exited() <-chan struct{} { return p.gone }
func (p *simulated) Exit() process.Exit      { return p.exit }
