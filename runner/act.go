package runner

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// act runs the script's steps in order.
func (r *run) act(ctx context.Context) error {
	for i, step := range r.o.Scenario.Steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := r.step(ctx, bare(step))
		var over *awaitTimeout
		if errors.As(err, &over) {
			r.recordTimeout(i, over)
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

func (r *run) step(ctx context.Context, step script.Step) error {
	switch s := step.(type) {
	case script.Producer:
		return r.addProducer(ctx, s)
	case script.Consumer:
		return r.addActor(ctx, role{Consumer: &s}, s.Offline)
	case script.Relay:
		return r.addActor(ctx, role{Relay: &s}, s.Offline)
	case script.Publish:
		return r.publish(ctx, s)
	case script.Retry:
		if err := r.join(ctx, script.Settle{By: s.By}); err != nil {
			return err
		}
		return r.producers[s.By].retry(ctx, s)
	case script.Resolve:
		if err := r.join(ctx, script.Settle{By: s.By}); err != nil {
			return err
		}
		return r.producers[s.By].resolve(ctx, s)
	case script.Settle:
		return r.join(ctx, s)
	case script.Fault:
		return r.arm(ctx, s)
	case script.Heal:
		return r.healOne(ctx, s.Label)
	case script.Await:
		return r.await(ctx, s)
	case script.Wait:
		return r.waitQuiet(ctx, s)
	case script.Provoke:
		return r.provoke(ctx, s)
	case script.Start:
		return r.start(ctx, s.Actor)
	case script.Stop:
		return r.named[s.Actor].stop(ctx)
	case script.Restart:
		return r.restart(ctx)
	case script.Snapshot:
		return r.checkpoint(ctx, s.Checkpoint)
	case script.Set:
		return part[systems.Configurable](r).Configure(ctx, s.Setting, s.Value)
	case script.Plant:
		return part[systems.Planter](r).Plant(ctx, s.What, s.BusinessID, s.Destination)
	case script.Swap:
		return r.move(ctx, evidence.CommandSwap, systems.StoreMover.SwapStore)
	case script.Migrate:
		return r.move(ctx, evidence.CommandMigrate, func(m systems.StoreMover, ctx context.Context) error { return m.MigrateIdentity(ctx, s.From, s.To) })
	case script.Probe:
		return r.probe(ctx, s)
	case script.Redrive:
		return r.administer(ctx, evidence.CommandRedrive, s.BusinessID, systems.Administrator.Redrive)
	case script.Discard:
		return r.administer(ctx, evidence.CommandDiscard, s.BusinessID, systems.Administrator.Discard)
	case script.Restore:
		return r.restore(ctx, s)
	case script.Rewind:
		return r.rewind(ctx, s)
	case script.Elapse:
		return r.elapse(ctx, s)
	}
	return fmt.Errorf("runner: no way to run a %T", step)
}

// link opens the actor's own link if the system is reached over a network.
func (r *run) link(ctx context.Context, actor string) error {
	network, ok := systems.As[systems.Networked](r.instance)
	if !ok {
		return nil
	}
	return r.openLink(ctx, links.Options{Name: actor, Upstream: network.Address(), Protocol: network.Protocol()})
}

// storeLink opens the link between the system and its store: see systems.Env.
func (r *run) storeLink(ctx context.Context, name, upstream string, p links.Protocol) (string, error) {
	if err := r.openLink(ctx, links.Options{Name: name, Upstream: upstream, Protocol: p}); err != nil {
		return "", err
	}
	return r.addressOf(name), nil
}

func (r *run) openLink(ctx context.Context, o links.Options) error {
	o.Index, o.Sink = r.index, r.rec
	for _, step := range r.o.Scenario.Steps {
		if s, ok := bare(step).(script.Fault); ok && s.On == o.Name {
			f, _ := faults.Find(s.Verb)
			o.Toxics = o.Toxics || f.Bytes
		}
	}
	l, err := open(ctx, r.instance, o)
	if err != nil {
		return err
	}
	r.links[o.Name] = l
	return nil
}

// open uses the instance's own links if it has any, TCP links otherwise.
func open(ctx context.Context, in systems.Instance, o links.Options) (links.Interruptible, error) {
	if l, ok := systems.As[systems.Linker](in); ok {
		return l.Link(o)
	}
	l, err := links.Open(ctx, o)
	if err != nil {
		return nil, err // not l: a nil *Link would be a non-nil interface
	}
	return l, nil
}

func (r *run) addressOf(actor string) string {
	if l, ok := r.links[actor]; ok {
		return l.Addr()
	}
	return ""
}

func (r *run) addProducer(ctx context.Context, s script.Producer) error {
	if err := r.link(ctx, s.Name); err != nil {
		return err
	}
	p := newProducer(s, r.clients, r.addressOf(s.Name), r.rec, r.rt, r.bounds, r.o.Seed, takesMessageID(r.desc))
	p.record = func(ctx context.Context, businessID string, messages ...business.Pending) {
		if err := r.commit(ctx, s.Name, businessID, messages...); err != nil {
			r.fail(err)
		}
	}
	r.producers[s.Name] = p
	r.publishers = append(r.publishers, p)
	return p.open(ctx)
}

// commit commits a producer's business row and the messages that tell of it. A
// producer whose database does not answer tries again until it does, within the
// bound of a publish.
func (r *run) commit(ctx context.Context, producer, businessID string, messages ...business.Pending) error {
	ctx, cancel := r.rt.Timeout(ctx, r.bounds.publish)
	defer cancel()
	for b := (backoff{}); ; {
		outcome, err := r.db.Record(by(ctx, producer), producer, businessID, messages...)
		switch {
		case err == nil:
			r.rec.Record(evidence.Event{Kind: evidence.RecordCommitted, Actor: producer, BusinessID: businessID})
			return nil
		case !errors.Is(err, business.ErrUnavailable):
			return err
		case outcome == business.Uncertain: // it is committed, and only its answer is lost
			r.note("the commit of %s was not answered: %v", businessID, err)
			r.rec.Record(evidence.Event{Kind: evidence.RecordCommitted, Actor: producer, BusinessID: businessID})
			return nil
		}
		if b.wait(ctx, r.rt) != nil {
			return fmt.Errorf("runner: %s was not committed: %w", businessID, err)
		}
	}
}

// addActor declares an actor and, unless it is offline, waits until it has its
// first session.
func (r *run) addActor(ctx context.Context, p role, offline bool) error {
	if err := r.link(ctx, p.name()); err != nil {
		return err
	}
	a := &actor{role: p, run: r}
	r.named[p.name()] = a
	r.actors = append(r.actors, a)
	if offline {
		return nil
	}
	return r.start(ctx, p.name())
}

// start starts the broker, its store, a consumer or a relay, which has its session
// when start returns.
func (r *run) start(ctx context.Context, actor string) error {
	switch actor {
	case faults.Broker:
		return r.revive(ctx, server{actor, part[systems.Process](r), r})
	case faults.Store:
		return r.revive(ctx, server{actor, r.storeProcess(), r})
	}
	before := r.watch.sessions(actor)
	if err := r.named[actor].start(ctx); err != nil {
		return err
	}
	bounded, cancel := r.rt.Timeout(ctx, scaled(startBound, r.o.Scale))
	defer cancel()
	if err := r.rt.Wait(bounded, func() bool { return r.watch.sessions(actor) > before }); err != nil {
		return fmt.Errorf("runner: %s did not connect: %w", actor, err)
	}
	return nil
}

func (r *run) revive(ctx context.Context, s server) error {
	bounded, cancel := r.rt.Timeout(ctx, scaled(startBound, r.o.Scale))
	defer cancel()
	_, err := s.Revive(bounded)
	return err
}

func (r *run) restart(ctx context.Context) error {
	bounded, cancel := r.rt.Timeout(ctx, scaled(startBound, r.o.Scale))
	defer cancel()
	r.rec.Record(evidence.Event{Kind: evidence.Commanded, Actor: faults.Broker, Command: evidence.CommandRestart})
	s := server{faults.Broker, part[systems.Process](r), r}
	if _, err := s.Shutdown(bounded); err != nil {
		return err
	}
	return r.revive(ctx, s)
}

// move has an administrator move the broker's rows. One that the broker refuses is a
// failure to measure; one that it did not live to answer is not.
func (r *run) move(ctx context.Context, command evidence.Command, do func(systems.StoreMover, context.Context) error) error {
	bounded, cancel := r.rt.Timeout(ctx, scaled(startBound, r.o.Scale))
	defer cancel()
	r.rec.Record(evidence.Event{Kind: evidence.Commanded, Actor: faults.Broker, Command: command})
	err := do(part[systems.StoreMover](r), bounded)
	if errors.Is(err, systems.ErrDisconnected) {
		r.note("%s: %v", command, err)
		return nil
	}
	return err
}

func (r *run) publish(ctx context.Context, s script.Publish) error {
	if err := r.join(ctx, script.Settle{By: s.By}); err != nil { // a producer runs one step at a time
		return err
	}
	p := r.producers[s.By]
	var left func(context.Context, string) error
	if s.Cancel {
		left = func(ctx context.Context, publishID string) error { return r.frameLeft(ctx, s.By, publishID) }
	}
	if !s.Background {
		return p.publish(ctx, s, left)
	}
	bg := &backgroundPublish{by: s.By}
	r.background = append(r.background, bg)
	r.rt.Go(func() {
		defer r.rt.Wake()
		defer bg.over.Store(true)
		bg.err = p.publish(r.lifetime, s, left)
	})
	return nil
}

// backgroundPublish is a publish step that the script does not wait for.
type backgroundPublish struct {
	by   string
	over atomic.Bool
	err  error // valid once over is set
}

// frameLeft returns once the link has carried the publish's frame.
func (r *run) frameLeft(ctx context.Context, actor, publishID string) error {
	var passed atomic.Bool
	defer r.rec.Observe(func(e evidence.Event) {
		if e.Kind == evidence.FrameCarried && e.Link == actor && e.Frame == links.FramePublish && len(e.Items) > 0 && e.Items[0].PublishID == publishID {
			passed.Store(true)
			r.rt.Wake()
		}
	})()
	return r.rt.Wait(ctx, passed.Load)
}

// join waits for background publishes to be answered.
func (r *run) join(ctx context.Context, s script.Settle) error {
	within := s.Within
	if within == 0 {
		within = 2 * publishBound
	}
	ctx, cancel := r.rt.Timeout(ctx, scaled(within, r.o.Scale))
	defer cancel()
	var others []*backgroundPublish
	for i, p := range r.background {
		if s.By != "" && s.By != p.by {
			others = append(others, p)
			continue
		}
		if err := r.rt.Wait(ctx, p.over.Load); err != nil {
			return fmt.Errorf("runner: the publishes of %s were not answered: %w", p.by, err)
		}
		if p.err != nil {
			r.background = append(others, r.background[i+1:]...)
			return p.err
		}
	}
	r.background = others
	return nil
}

func (r *run) await(ctx context.Context, s script.Await) error {
	_, shows := systems.As[systems.Inspector](r.instance)
	if _, lacks := r.desc.Lacks[systems.NeedRows]; (!shows || lacks) && rowOnlyConditions[s.Condition.Verb] { // some systems expose only their dead letters
		r.note("%s does not expose its rows: %q is not awaited", r.desc.System, s.Condition.Line)
		return nil
	}
	within := s.Within
	if within == 0 {
		within = script.DefaultWithin
	}
	r.rec.Record(evidence.Event{Kind: evidence.AwaitBegan, Actor: "harness", Reason: s.Condition.Line})
	bounded, cancel := r.rt.Timeout(ctx, scaled(within, r.o.Scale))
	defer cancel()
	return r.endAwait(ctx, s.Condition.Line, r.awaitCondition(bounded, s.Condition))
}

// awaitCheckpoint names the snapshot that met an awaited condition.
const awaitCheckpoint = "await"

// awaitCondition waits for a condition. Conditions on stored rows poll the
// rows; the snapshot that meets one is recorded.
func (r *run) awaitCondition(ctx context.Context, c evidence.Condition) error {
	inspector, ok := systems.As[systems.Inspector](r.instance)
	if !rowConditions[c.Verb] || !ok {
		return r.watch.await(ctx, c)
	}
	for {
		s, err := inspector.Rows(ctx)
		if err != nil {
			return err
		}
		s.Source = evidence.SourceBroker
		r.watch.snapshot(s)
		if ok, _ := r.watch.met(c); ok {
			return r.snapshot(ctx, awaitCheckpoint)
		}
		if r.rt.Sleep(ctx, pollInterval) != nil {
			_, missing := r.watch.met(c)
			return fmt.Errorf("%q was not met: %s", c.Line, missing)
		}
	}
}

// rowConditions are decided by stored rows.
var rowConditions = map[string]bool{evidence.CondStored: true, evidence.CondDead: true, evidence.CondGone: true}

// rowOnlyConditions can be met by no event.
var rowOnlyConditions = map[string]bool{evidence.CondStored: true, evidence.CondGone: true}

// provoke triggers a redelivery the way the profile does. A timeout only takes
// time, which the script's await allows for.
func (r *run) provoke(ctx context.Context, s script.Provoke) error {
	r.rec.Record(evidence.Event{Kind: evidence.Commanded, Actor: "harness", BusinessID: s.BusinessID,
		Command: evidence.CommandProvoke, Reason: "by " + string(r.desc.Profile.Redelivers)})
	if r.desc.Profile.Redelivers != evidence.RedeliverReconnect {
		return nil
	}
	for _, c := range r.actors {
		if c.Consumer != nil && c.isRunning() {
			if err := c.stop(ctx); err != nil {
				return err
			}
			if err := r.start(ctx, c.name()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) administer(ctx context.Context, command evidence.Command, businessID string, do func(systems.Administrator, context.Context, string) error) error {
	ctx, cancel := r.rt.Timeout(ctx, r.bounds.call)
	defer cancel()
	a := part[systems.Administrator](r)
	dead, err := a.DeadLetters(ctx)
	if err != nil {
		return err
	}
	for _, row := range dead {
		if row.BusinessID == businessID {
			r.rec.Record(evidence.Event{Kind: evidence.DeadLettered, Actor: faults.Broker, BusinessID: businessID, PublishID: row.PublishID,
				MessageID: row.MessageID, Cause: row.Cause, Reason: row.Reason})
			kind := evidence.Commanded
			if command == evidence.CommandDiscard {
				kind = evidence.Purged
			}
			r.rec.Record(evidence.Event{Kind: kind, Actor: faults.Broker, BusinessID: businessID, PublishID: row.PublishID, MessageID: row.MessageID, Command: command})
			return do(a, ctx, row.MessageID)
		}
	}
	r.note("%s %s: it is not in the dead-letter queue", command, businessID)
	return nil
}

func (r *run) elapse(ctx context.Context, s script.Elapse) error {
	for _, p := range r.publishers {
		if t, ok := p.tries[s.BusinessID]; ok {
			ttl := t.step.TTL
			if ttl == 0 {
				ttl = p.spec.TTL
			}
			// Within the tolerance, a late delivery proves nothing.
			margin := r.desc.Profile.Limits.ExpiryTolerance + scaled(s.Margin, r.o.Scale)
			r.note("waiting until %s has been expired (time to live %s) for %s", s.BusinessID, ttl, margin)
			return r.rt.Sleep(ctx, ttl+margin)
		}
	}
	return fmt.Errorf("runner: elapse: %s was never published", s.BusinessID)
}
