package runner

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// act runs the script's steps in order.
func (b *run) act(ctx context.Context) error {
	for i, step := range b.o.Scenario.Steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := b.step(ctx, bare(step))
		var over *overdue
		if errors.As(err, &over) {
			b.cutShort(i, over)
			return nil
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return fmt.Errorf("%q: %w", script.Line(step), err)
		}
	}
	return nil
}

func (b *run) step(ctx context.Context, step script.Step) error {
	switch s := step.(type) {
	case script.Producer:
		return b.addProducer(ctx, s)
	case script.Consumer:
		return b.addConsumer(ctx, s)
	case script.Publish:
		return b.publish(ctx, s)
	case script.Retry:
		if err := b.settle(ctx, script.Settle{By: s.By}); err != nil {
			return err
		}
		return b.producers[s.By].retry(ctx, s)
	case script.Resolve:
		if err := b.settle(ctx, script.Settle{By: s.By}); err != nil {
			return err
		}
		return b.producers[s.By].resolve(ctx, s)
	case script.Settle:
		return b.settle(ctx, s)
	case script.Fault:
		return b.arm(ctx, s)
	case script.Heal:
		return b.healOne(ctx, s.Label)
	case script.Await:
		return b.await(ctx, s)
	case script.Wait:
		return b.waitQuiet(ctx, s)
	case script.Provoke:
		return b.provoke(ctx, s)
	case script.Start:
		return b.start(ctx, s.Actor)
	case script.Stop:
		return b.consumers[s.Actor].stop(ctx)
	case script.Restart:
		return b.restart(ctx)
	case script.Snapshot:
		return b.checkpoint(ctx, s.Checkpoint)
	case script.Set:
		return b.instance.(systems.Configurable).Configure(ctx, s.Setting, s.Value)
	case script.Plant:
		return b.instance.(systems.Planter).PlantOld(ctx, s.BusinessID, s.Destination)
	case script.Probe:
		return b.probe(ctx, s)
	case script.Redrive:
		return b.administer(ctx, evidence.CommandRedrive, s.BusinessID, systems.Administrator.Redrive)
	case script.Discard:
		return b.administer(ctx, evidence.CommandDiscard, s.BusinessID, systems.Administrator.Discard)
	case script.Restore:
		return b.restore(ctx, s)
	case script.Rewind:
		return b.rewind(ctx, s)
	case script.Elapse:
		return b.elapse(ctx, s)
	}
	return fmt.Errorf("runner: no way to run a %T", step)
}

// link gives the actor's own link, if the system is reached over a network.
func (b *run) link(ctx context.Context, actor string) error {
	network, ok := b.instance.(systems.Networked)
	if !ok {
		return nil
	}
	o := links.Options{Name: actor, Upstream: network.Address(), Protocol: network.Protocol(), Index: b.index, Sink: b.rec}
	for _, step := range b.o.Scenario.Steps {
		if s, ok := bare(step).(script.Fault); ok && s.On == actor {
			f, _ := faults.Find(s.Verb)
			o.Toxics = o.Toxics || f.Bytes
		}
	}
	l, err := open(ctx, b.instance, o)
	if err != nil {
		return err
	}
	b.links[actor] = l
	return nil
}

// open a link over what the instance is reached by.
func open(ctx context.Context, in systems.Instance, o links.Options) (links.Interruptible, error) {
	if l, ok := in.(systems.Linker); ok {
		return l.Link(o)
	}
	l, err := links.Open(ctx, o)
	if err != nil {
		return nil, err // and no nil *Link in an interface that is not
	}
	return l, nil
}

func (b *run) addressOf(actor string) string {
	if l, ok := b.links[actor]; ok {
		return l.Addr()
	}
	return ""
}

func (b *run) addProducer(ctx context.Context, s script.Producer) error {
	if err := b.link(ctx, s.Name); err != nil {
		return err
	}
	p := newProducer(s, b.clients, b.addressOf(s.Name), b.rec, b.rt, b.bounds, b.o.Seed, takesMessageID(b.desc))
	b.producers[s.Name] = p
	b.publishers = append(b.publishers, p)
	return p.open(ctx)
}

// addConsumer declares it and, unless it is offline, waits until its first
// subscription is confirmed.
func (b *run) addConsumer(ctx context.Context, s script.Consumer) error {
	if err := b.link(ctx, s.Name); err != nil {
		return err
	}
	c := &consumerActor{spec: s, b: b}
	b.consumers[s.Name] = c
	b.actors = append(b.actors, c)
	if s.Offline {
		return nil
	}
	return b.start(ctx, s.Name)
}

// start brings up the broker, or a consumer and waits until it is subscribed.
func (b *run) start(ctx context.Context, actor string) error {
	if actor == faults.Broker {
		return b.revive(ctx)
	}
	before := b.watch.sessions(actor)
	if err := b.consumers[actor].start(ctx); err != nil {
		return err
	}
	bounded, cancel := b.rt.Timeout(ctx, scaled(startBound, b.o.Scale))
	defer cancel()
	if err := b.rt.Wait(bounded, func() bool { return b.watch.sessions(actor) > before }); err != nil {
		return fmt.Errorf("runner: consumer %s was not subscribed: %w", actor, err)
	}
	return nil
}

func (b *run) revive(ctx context.Context) error {
	bounded, cancel := b.rt.Timeout(ctx, scaled(startBound, b.o.Scale))
	defer cancel()
	_, err := broker{b.instance.(systems.Process), b}.Revive(bounded)
	return err
}

func (b *run) restart(ctx context.Context) error {
	broker := b.instance.(systems.Process)
	bounded, cancel := b.rt.Timeout(ctx, scaled(startBound, b.o.Scale))
	defer cancel()
	b.rec.Record(evidence.Event{Kind: evidence.Commanded, Actor: faults.Broker, Command: evidence.CommandRestart})
	if err := broker.Shutdown(bounded); err != nil && !errors.Is(err, process.ErrNotRunning) {
		return err
	}
	return b.revive(bounded)
}

func (b *run) publish(ctx context.Context, s script.Publish) error {
	if err := b.settle(ctx, script.Settle{By: s.By}); err != nil { // a producer does one thing at a time
		return err
	}
	p := b.producers[s.By]
	var left func(context.Context, string) error
	if s.Cancel {
		left = func(ctx context.Context, publishID string) error { return b.frameLeft(ctx, s.By, publishID) }
	}
	if !s.Background {
		return p.publish(ctx, s, left)
	}
	beside := &publishing{by: s.By}
	b.background = append(b.background, beside)
	b.rt.Go(func() {
		defer b.rt.Wake()
		defer beside.over.Store(true)
		beside.err = p.publish(b.life, s, left)
	})
	return nil
}

// publishing is a publish step that the script did not wait for.
type publishing struct {
	by   string
	over atomic.Bool
	err  error // once it is over
}

// frameLeft returns when the publish's frame has passed the link.
func (b *run) frameLeft(ctx context.Context, actor, publishID string) error {
	var passed atomic.Bool
	defer b.rec.Observe(func(e evidence.Event) {
		if e.Kind == evidence.FrameCarried && e.Link == actor && e.Frame == links.FramePublish && len(e.Items) > 0 && e.Items[0].PublishID == publishID {
			passed.Store(true)
			b.rt.Wake()
		}
	})()
	return b.rt.Wait(ctx, passed.Load)
}

// settle waits for background publishes.
func (b *run) settle(ctx context.Context, s script.Settle) error {
	within := s.Within
	if within == 0 {
		within = 2 * publishBound
	}
	ctx, cancel := b.rt.Timeout(ctx, scaled(within, b.o.Scale))
	defer cancel()
	var others []*publishing
	for i, p := range b.background {
		if s.By != "" && s.By != p.by {
			others = append(others, p)
			continue
		}
		if err := b.rt.Wait(ctx, p.over.Load); err != nil {
			return fmt.Errorf("runner: the publishes of %s had no answer: %w", p.by, err)
		}
		if p.err != nil {
			b.background = append(others, b.background[i+1:]...)
			return p.err
		}
	}
	b.background = others
	return nil
}

func (b *run) await(ctx context.Context, s script.Await) error {
	_, shows := b.instance.(systems.Inspector)
	if _, lacks := b.desc.Lacks[systems.NeedRows]; (!shows || lacks) && onlyOfRows[s.Condition.Verb] { // dead letters alone may be shown
		b.note("%s shows no rows: %q is not awaited", b.desc.System, s.Condition.Line)
		return nil
	}
	within := s.Within
	if within == 0 {
		within = script.DefaultWithin
	}
	b.rec.Record(evidence.Event{Kind: evidence.AwaitBegan, Actor: "harness", Reason: s.Condition.Line})
	bounded, cancel := b.rt.Timeout(ctx, scaled(within, b.o.Scale))
	defer cancel()
	return b.awaited(ctx, s.Condition.Line, b.awaitCondition(bounded, s.Condition))
}

// awaitedRows is the checkpoint of the rows in which a condition was found.
const awaitedRows = "await"

// awaitCondition waits on what is recorded; a condition on stored rows is
// looked for in them, and what is then found is recorded.
func (b *run) awaitCondition(ctx context.Context, c evidence.Condition) error {
	inspector, ok := b.instance.(systems.Inspector)
	if !ofRows[c.Verb] || !ok {
		return b.watch.await(ctx, c)
	}
	for {
		s, err := inspector.Rows(ctx)
		if err != nil {
			return err
		}
		s.Source = evidence.SourceBroker
		b.watch.snapshot(s)
		if ok, _ := b.watch.met(c); ok {
			return b.snapshot(ctx, awaitedRows)
		}
		if b.rt.Sleep(ctx, pollInterval) != nil {
			_, missing := b.watch.met(c)
			return fmt.Errorf("%q did not come about: %s", c.Line, missing)
		}
	}
}

// ofRows are the conditions that stored rows decide.
var ofRows = map[string]bool{evidence.CondStored: true, evidence.CondDead: true, evidence.CondGone: true}

// onlyOfRows are those of them that no event can bring about.
var onlyOfRows = map[string]bool{evidence.CondStored: true, evidence.CondGone: true}

// provoke redelivery by the profile's own means. A timeout needs nothing but
// time, and the script awaits the delivery.
func (b *run) provoke(ctx context.Context, s script.Provoke) error {
	b.rec.Record(evidence.Event{Kind: evidence.Commanded, Actor: "harness", BusinessID: s.BusinessID,
		Command: evidence.CommandProvoke, Reason: "by " + string(b.desc.Profile.Redelivers)})
	if b.desc.Profile.Redelivers != evidence.RedeliverReconnect {
		return nil
	}
	for _, c := range b.actors {
		if c.isRunning() {
			if err := c.stop(ctx); err != nil {
				return err
			}
			if err := b.start(ctx, c.spec.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *run) administer(ctx context.Context, command evidence.Command, businessID string, do func(systems.Administrator, context.Context, string) error) error {
	ctx, cancel := b.rt.Timeout(ctx, b.bounds.call)
	defer cancel()
	a := b.instance.(systems.Administrator)
	dead, err := a.DeadLetters(ctx)
	if err != nil {
		return err
	}
	for _, row := range dead {
		if row.BusinessID == businessID {
			b.rec.Record(evidence.Event{Kind: evidence.DeadLettered, Actor: faults.Broker, BusinessID: businessID, PublishID: row.PublishID,
				MessageID: row.MessageID, Cause: row.Cause, Reason: row.Reason})
			kind := evidence.Commanded
			if command == evidence.CommandDiscard {
				kind = evidence.Purged
			}
			b.rec.Record(evidence.Event{Kind: kind, Actor: faults.Broker, BusinessID: businessID, PublishID: row.PublishID, MessageID: row.MessageID, Command: command})
			return do(a, ctx, row.MessageID)
		}
	}
	b.note("%s %s: it is not in the dead-letter queue", command, businessID)
	return nil
}

func (b *run) elapse(ctx context.Context, s script.Elapse) error {
	for _, p := range b.publishers {
		if t, ok := p.tries[s.BusinessID]; ok {
			ttl := t.step.TTL
			if ttl == 0 {
				ttl = p.spec.TTL
			}
			// Within the tolerance a late delivery proves nothing.
			margin := b.desc.Profile.Limits.ExpiryTolerance + scaled(s.Margin, b.o.Scale)
			b.note("waiting until the time to live of %s (%s) is over by %s", s.BusinessID, ttl, margin)
			return b.rt.Sleep(ctx, ttl+margin)
		}
	}
	return fmt.Errorf("runner: %s was never published", s.BusinessID)
}
