// Package runner puts a system, links, faults and actors together, runs a
// script, drains, watches, and leaves evidence. It judges nothing.
package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/defects"
	"github.com/custodymq/custody/tasks"
)

// Options of one run.
type Options struct {
	System   systems.System
	Spec     string // how `--system` names it: "zeromq:at-least-once"
	Scenario script.Scenario
	Dir      string // of the evidence; must not exist or be empty
	Seed     uint64
	Scale    float64       // factor on deadlines, bounds and periods; 0 is DefaultScale
	Defect   string        // a seeded defect to switch on
	Servers  *process.Pool // servers that earlier runs have left as they were; nil keeps none
	// Record begins the recording; nil keeps files in Dir. Only a simulated run
	// may be recorded in another way, since others have child processes.
	Record func(m evidence.Manifest, now func() time.Duration) (Recording, error)
}

// Recording is where a run leaves its evidence.
type Recording interface {
	evidence.Sink
	Observe(func(evidence.Event)) (stop func())
	WriteSnapshot(evidence.Snapshot) error
	UpdateManifest(func(*evidence.Manifest)) error
	Close(evidence.End) error
}

// run is one run in progress.
type run struct {
	o        Options
	rec      Recording
	files    *evidence.Recorder // the same, where it keeps files
	rt       tasks.Runtime
	sim      *tasks.Simulated // the same, where the world is simulated
	watch    *watch
	work     string // private folder, removed at the end
	desc     systems.Description
	instance systems.Instance
	clients  systems.Clients // of the instance, with the seeded defect if it is one of clients
	db       business.Store
	index    *links.Index
	bounds   bounds

	life   context.Context // of everything that runs beside the script
	cancel context.CancelCauseFunc

	links      map[string]links.Interruptible
	producers  map[string]*producer
	consumers  map[string]*consumerActor
	actors     []*consumerActor // in the order of the script
	publishers []*producer
	marks      map[string]mark // checkpoints so far, by name
	background []*publishing   // that the script did not wait for
	injections []labelled
	reviving   atomic.Bool  // one start of the broker at a time
	beside     atomic.Int32 // tasks that run until the run's life ends
	broken     atomic.Pointer[error]
}

type labelled struct {
	label string
	faults.Injection
}

// ErrNoEvidence: the run directory could not be created, so nothing was started
// and what lies there, if anything, is another run's.
var ErrNoEvidence = errors.New("no evidence can be kept")

// Run makes one run. Its folder holds the evidence, whatever happens; an error
// is a failure of the harness or the machine, and the manifest says so too.
func Run(ctx context.Context, o Options) (err error) {
	if _, simulated := o.System.(systems.Simulated); !simulated {
		return runIn(ctx, o, nil, nil)
	}
	world := tasks.NewSimulated(o.Seed)
	return errors.Join(world.Run(func() { err = runIn(ctx, o, world, world) }), err)
}

// runIn in a world; nil is the machine's.
func runIn(ctx context.Context, o Options, rt tasks.Runtime, sim *tasks.Simulated) (err error) {
	if o.Scale == 0 {
		o.Scale = DefaultScale
	}
	b := &run{o: o, rt: rt, sim: sim, desc: o.System.Describe(), index: links.NewIndex(),
		bounds: bounds{call: scaled(callBound, o.Scale), publish: scaled(publishBound, o.Scale)},
		links:  map[string]links.Interruptible{}, producers: map[string]*producer{}, consumers: map[string]*consumerActor{}, marks: map[string]mark{}}
	if err := b.record(); err != nil {
		return err
	}
	b.watch = newWatch(o.Scenario, b.rt)
	defer b.rec.Observe(b.watch.observe)()
	b.life, b.cancel = context.WithCancelCause(ctx)
	defer tasks.OnPanic(b.fail)() // also of what panics while all is released
	defer func() {
		p := recover()
		if tasks.Killed(p) { // the simulation has come to an end of its own
			_ = b.rec.Close(evidence.End{How: evidence.EndFailed, Reason: "the simulation came to no end"})
			panic(p)
		}
		if p != nil {
			err = fmt.Errorf("runner: %w", tasks.Panic(p))
		}
		err = errors.Join(err, b.close(ctx, err))
	}()
	if b.files != nil {
		b.keep(b.failWithRecorder)
	}
	if b.sim == nil {
		b.keep(b.keepTime)
	}
	return b.phases(b.life)
}

// record begins the recording.
func (b *run) record() error {
	labels, err := resolve(b.o.Scenario)
	if err != nil {
		return err
	}
	manifest := Manifest(b.o, b.desc, labels)
	if b.o.Record != nil {
		b.rec, err = b.o.Record(manifest, b.rt.Now)
		return err
	}
	if b.files, err = evidence.Create(b.o.Dir, manifest, []byte(script.Print(b.o.Scenario))); err != nil {
		return fmt.Errorf("%w: %w", ErrNoEvidence, err)
	}
	b.rec = b.files
	if b.sim != nil {
		b.rec = timed{b.files, b.sim}
	}
	if b.rt == nil {
		base := b.files.Base()
		b.rt = tasks.NewReal(func() time.Duration { return evidence.Now(base) })
	}
	return nil
}

// timed keeps files in virtual time.
type timed struct {
	*evidence.Recorder
	world *tasks.Simulated
}

func (t timed) Record(e evidence.Event) uint64 {
	if e.At == 0 {
		e.At = t.world.Now()
	}
	return t.Recorder.Record(e)
}

func (t timed) Close(end evidence.End) error {
	end.After = t.world.Now()
	return t.Recorder.Close(end)
}

// keep runs a task until the run's life ends.
func (b *run) keep(task func(context.Context)) {
	b.beside.Add(1)
	b.rt.Go(func() {
		defer b.rt.Wake()
		defer b.beside.Add(-1)
		task(b.life)
	})
}

// The bench's own bounds, before scaling.
const (
	callBound    = time.Second
	publishBound = 10 * time.Second
	startBound   = 30 * time.Second
	stopBound    = 10 * time.Second
)

func scaled(d time.Duration, by float64) time.Duration { return time.Duration(float64(d) * by) }

// Manifest of a run as it begins.
func Manifest(o Options, desc systems.Description, labels []evidence.FaultLabel) evidence.Manifest {
	m := evidence.Manifest{Run: filepath.Base(o.Dir), System: desc.System, Spec: o.Spec, Profile: desc.Profile, Claims: Claims(desc, o.Scenario),
		Scenario: o.Scenario.Name, Why: o.Scenario.Why, Expect: o.Scenario.Expect, Reached: o.Scenario.Reached, Faults: labels,
		Known: desc.Known, Seed: o.Seed, Scale: o.Scale, Versions: map[string]string{"go": runtime.Version(), "custody": evidence.Version()}, Defect: o.Defect,
		Machine: evidence.Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU()}}
	for name, version := range desc.Versions {
		m.Versions[name] = version
	}
	return m
}

// Claims that a run of a scenario is judged by: the system's, and the application's.
func Claims(desc systems.Description, s script.Scenario) []evidence.Claim {
	return append(append([]evidence.Claim(nil), desc.Claims...), applicationClaims(desc, s)...)
}

// applicationClaims are those of the application's own mechanisms: a
// consumption log absorbs repeats under every fault but a wrong clock and those
// over which the system forgets message IDs, and only where every consumer
// keeps it.
func applicationClaims(desc systems.Description, s script.Scenario) []evidence.Claim {
	consumers := 0
	for _, step := range s.Steps {
		if c, ok := bare(step).(script.Consumer); ok {
			if !c.Idempotent && !c.Silent {
				return nil
			}
			consumers++
		}
	}
	if consumers == 0 {
		return nil
	}
	var under []evidence.Class
	for _, c := range evidence.Classes() {
		if c != evidence.Clock && !slices.Contains(desc.Forgets, c) {
			under = append(under, c)
		}
	}
	return []evidence.Claim{{Guarantee: evidence.SingleEffect, Under: under, Owner: evidence.OwnerApplication,
		Source: "the consumption log: unique on subscriber and message ID, written in the business transaction"}}
}

// failWithRecorder ends the run as soon as evidence can no longer be written.
func (b *run) failWithRecorder(ctx context.Context) {
	if b.sim != nil {
		if b.rt.Wait(ctx, func() bool { return b.files.Err() != nil }) == nil {
			b.fail(b.files.Err())
		}
		return
	}
	select {
	case <-b.files.Failed():
		b.fail(b.files.Err())
	case <-ctx.Done():
	}
}

// fail ends the run: the harness cannot measure any more.
func (b *run) fail(err error) {
	err = fmt.Errorf("could not measure: %w", err)
	b.broken.CompareAndSwap(nil, &err)
	b.cancel(err)
}

// maxRevived bounds how often a broker that ends by itself is started again.
const maxRevived = 3

// keepBroker starts the broker again when it has ended by itself, so that the
// run goes on and what the broker has kept is seen: that it ended is what is
// broken.
func (b *run) keepBroker(ctx context.Context) {
	if _, ok := b.instance.(systems.Process); !ok {
		return
	}
	for seen := 1; b.rt.Wait(ctx, func() bool { return b.watch.crashes() >= seen }) == nil; seen++ {
		if seen > maxRevived {
			b.note("the broker has ended by itself %d times and is left alone now", seen)
			return
		}
		b.note("the broker has ended by itself and is started again")
		if err := b.revive(ctx); err != nil && ctx.Err() == nil {
			b.note("it does not start: %v", err)
			return
		}
	}
}

func (b *run) phase(p evidence.Phase) {
	b.rec.Record(evidence.Event{Kind: evidence.PhaseBegan, Actor: "harness", Phase: p})
}

func (b *run) note(format string, args ...any) {
	b.rec.Record(evidence.Event{Kind: evidence.Noted, Actor: "harness", Reason: fmt.Sprintf(format, args...)})
}

// phases of a run, in the order that never changes.
func (b *run) phases(ctx context.Context) error {
	b.phase(evidence.Prepare)
	if why, err := b.prepare(ctx); err != nil {
		return err
	} else if why != "" {
		return b.rec.UpdateManifest(func(m *evidence.Manifest) { m.Inapplicable = why })
	}
	b.phase(evidence.Act)
	if err := b.act(ctx); err != nil {
		return err
	}
	b.phase(evidence.Heal)
	if err := b.heal(ctx); err != nil {
		return err
	}
	b.phase(evidence.Drain)
	if err := b.drain(ctx); err != nil {
		return err
	}
	b.phase(evidence.Watch)
	if err := b.watchOn(ctx); err != nil {
		return err
	}
	if err := b.linksKeptUp(); err != nil {
		return err
	}
	b.phase(evidence.Ended)
	return context.Cause(ctx)
}

// prepare starts the system. The answer is why the scenario does not apply, if
// it does not.
func (b *run) prepare(ctx context.Context) (inapplicable string, err error) {
	if why := needed(b.o.Scenario, b.desc); why != "" {
		return why, nil
	}
	data := ""
	if b.sim != nil {
		b.db = slowMemory{business.NewMemory(), b.sim}
	} else {
		if b.work, err = process.Folder(); err != nil {
			return "", err
		}
		if b.db, err = business.Open(ctx, filepath.Join(b.work, "business.db")); err != nil {
			b.db = nil // and no nil *Database in an interface that is not
			return "", err
		}
		data = filepath.Join(b.work, "system")
		if err := os.Mkdir(data, 0o700); err != nil {
			return "", fmt.Errorf("runner: the system's folder: %w", err)
		}
	}
	starting, cancel := b.rt.Timeout(ctx, scaled(startBound, b.o.Scale))
	defer cancel()
	ofClients, seeded := defects.Find(b.o.Defect)
	ofSystem := b.o.Defect
	if seeded {
		ofSystem = ""
	}
	env := systems.Env{Dir: data, Sink: b.rec, Scale: b.o.Scale, Seed: b.o.Seed, Defect: ofSystem, Adopt: b.adopt, Servers: b.o.Servers, Runtime: b.rt}
	if b.files != nil {
		env.Log, env.Base = b.files.Log, b.files.Base()
	}
	b.instance, err = b.o.System.Start(starting, env)
	if err != nil {
		return "", fmt.Errorf("runner: start %s: %w", b.desc.System, err)
	}
	if _, reports := b.instance.(systems.Reporter); reports {
		b.desc = systems.Describe(b.o.System, b.instance)
		told := Manifest(b.o, b.desc, nil)
		if err := b.rec.UpdateManifest(func(m *evidence.Manifest) {
			m.Profile, m.Claims, m.Versions = told.Profile, told.Claims, told.Versions
		}); err != nil {
			return "", err
		}
		if why := needed(b.o.Scenario, b.desc); why != "" {
			return why, nil
		}
	}
	b.clients = b.instance
	if seeded {
		b.clients = ofClients.Clients(b.instance)
	}
	if why := b.lacking(); why != "" {
		return why, nil
	}
	b.keep(b.keepBroker)
	return "", b.health(ctx)
}

// adopt records what a child process reports, until its pipe ends: whatever
// becomes of the run, what a dead child has written is evidence.
func (b *run) adopt(events io.Reader, actor string) {
	if err := b.files.Adopt(context.Background(), events, actor); err != nil {
		b.fail(err)
	}
}

// health opens a session past all links: a run that begins or ends with a
// system that cannot be reached says so.
func (b *run) health(ctx context.Context) error {
	o := systems.ProducerOptions{Name: "health", Session: "health"}
	if n, ok := b.instance.(systems.Networked); ok {
		o.Address = n.Address() // past all links
	}
	bounded, cancel := b.rt.Timeout(ctx, b.bounds.call)
	defer cancel()
	p, err := b.instance.Producer(bounded, o)
	if err == nil {
		err = p.Close(bounded)
	}
	e := evidence.Event{Kind: evidence.HealthChecked, Actor: "harness", OK: err == nil}
	if err != nil {
		e.Reason = err.Error()
	}
	b.rec.Record(e)
	return nil
}

// close releases everything, whatever the state, and ends the evidence.
func (b *run) close(ctx context.Context, failed error) error {
	end := evidence.End{How: evidence.EndCompleted}
	switch {
	case ctx.Err() != nil:
		end = evidence.End{How: evidence.EndCancelled, Reason: context.Cause(ctx).Error()}
	case failed != nil:
		end = evidence.End{How: evidence.EndFailed, Reason: failed.Error()}
	}
	bounded, cancel := b.rt.Timeout(context.WithoutCancel(ctx), scaled(stopBound, b.o.Scale))
	defer cancel()
	var errs []error
	for _, in := range b.injections {
		errs = append(errs, in.Heal(bounded))
	}
	for _, c := range b.actors {
		errs = append(errs, c.stop(bounded))
	}
	b.cancel(context.Canceled)
	_ = b.rt.Wait(context.Background(), func() bool { // each ends with the run's life, or by its own deadline
		return b.beside.Load() == 0 && !slices.ContainsFunc(b.background, func(p *publishing) bool { return !p.over.Load() })
	})
	for _, p := range b.publishers {
		p.endSession(bounded, "the run is over")
	}
	if b.instance != nil {
		errs = append(errs, b.instance.Stop(bounded))
	}
	for _, l := range b.links {
		errs = append(errs, l.Close())
	}
	if b.db != nil {
		errs = append(errs, b.db.Close())
	}
	if b.work != "" {
		errs = append(errs, os.RemoveAll(b.work))
	}
	err := errors.Join(errs...)
	if broken := b.broken.Load(); broken != nil && failed == nil { // while all was released
		err = errors.Join(err, *broken)
	}
	if err != nil && end.How == evidence.EndCompleted {
		end = evidence.End{How: evidence.EndFailed, Reason: "release: " + err.Error()}
	}
	return errors.Join(err, b.rec.Close(end))
}
