// Package runner connects a system, links, faults and actors, runs a script,
// drains, watches, and records evidence. It judges nothing.
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
	"strings"
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

// Options configures one run.
type Options struct {
	System   systems.System
	Spec     string // as given to --system: "zeromq:at-least-once"
	Scenario script.Scenario
	Dir      string // of the evidence; must not exist, or be empty
	Seed     uint64
	Scale    float64 // factor on deadlines, bounds and periods; 0 means DefaultScale
	Defect   string  // a seeded defect
	// Postgres keeps the business database in the PostgreSQL server that the
	// environment names, instead of in a SQLite file: see business.CreatePostgres.
	Postgres bool
	// Complete is the scenario with all of its mechanisms, by whose claims an
	// ablation is judged; nil for Scenario itself.
	Complete *script.Scenario
	Servers  *process.Pool // servers to reuse; nil for none
	// Record overrides where the evidence goes; nil writes files to Dir.
	// Simulated runs only: the others have child processes.
	Record func(m evidence.Manifest, now func() time.Duration) (Recording, error)
}

// Recording receives a run's evidence.
type Recording interface {
	evidence.Sink
	Observe(func(evidence.Event)) (stop func())
	WriteSnapshot(evidence.Snapshot) error
	UpdateManifest(func(*evidence.Manifest)) error
	Close(evidence.End) error
}

// run is one run in progress.
type run struct {
	o              Options
	rec            Recording
	files          *evidence.Recorder // rec, if it writes files
	rt             tasks.Runtime
	sim            *tasks.Simulated // rt, if simulated
	watch          *watch
	work           string // private directory, removed at the end
	desc           systems.Description
	instance       systems.Instance
	clients        systems.Clients // of the instance, wrapped if the defect is one of clients
	db             business.Store
	businessFaults *businessFaults
	index          *links.Index
	bounds         bounds

	lifetime context.Context // of everything that runs besides the script
	cancel   context.CancelCauseFunc

	links      map[string]links.Interruptible
	producers  map[string]*producer
	named      map[string]*actor
	actors     []*actor // the same in script order
	publishers []*producer
	marks      map[string]mark      // checkpoints taken, by name
	background []*backgroundPublish // not awaited by the script
	injections []labelled
	reviving   atomic.Bool  // serialises restarts of the broker
	active     atomic.Int32 // tasks that run until lifetime ends
	broken     atomic.Pointer[error]
}

type labelled struct {
	label string
	faults.Injection
}

// ErrNoEvidence: the run directory could not be created, so nothing was
// started, and anything in it belongs to another run.
var ErrNoEvidence = errors.New("no evidence can be kept")

// Run performs one run. Dir has the evidence whatever happens. An error is a
// failure of the harness or the machine, which the manifest states too.
func Run(ctx context.Context, o Options) (err error) {
	if _, simulated := o.System.(systems.Simulated); !simulated {
		return runIn(ctx, o, nil, nil)
	}
	world := tasks.NewSimulated(o.Seed)
	return errors.Join(world.Run(func() { err = runIn(ctx, o, world, world) }), err)
}

// runIn runs in a runtime; nil means real time.
func runIn(ctx context.Context, o Options, rt tasks.Runtime, sim *tasks.Simulated) (err error) {
	if o.Scale == 0 {
		o.Scale = DefaultScale
	}
	r := &run{o: o, rt: rt, sim: sim, desc: o.System.Describe(), index: links.NewIndex(),
		bounds: bounds{call: scaled(callBound, o.Scale), publish: scaled(publishBound, o.Scale)},
		links:  map[string]links.Interruptible{}, producers: map[string]*producer{}, named: map[string]*actor{}, marks: map[string]mark{}}
	if err := r.record(); err != nil {
		return err
	}
	r.watch = newWatch(o.Scenario, r.rt)
	defer r.rec.Observe(r.watch.observe)()
	r.lifetime, r.cancel = context.WithCancelCause(ctx)
	defer tasks.OnPanic(r.fail)() // including panics during release
	defer func() {
		p := recover()
		if tasks.Killed(p) { // the simulation gave up
			_ = r.rec.Close(evidence.End{How: evidence.EndFailed, Reason: "the simulation came to no end"})
			panic(p)
		}
		if p != nil {
			err = fmt.Errorf("runner: %w", tasks.Panic(p))
		}
		err = errors.Join(err, r.close(ctx, err))
	}()
	if r.files != nil {
		r.goUntilEnd(r.watchRecorder)
	}
	if r.sim == nil {
		limits := r.desc.Profile.Limits // before the started system reports its own
		r.goUntilEnd(func(ctx context.Context) { r.watchClock(ctx, limits) })
	}
	return r.phases(r.lifetime)
}

// record starts the recording.
func (r *run) record() error {
	labels, err := resolve(r.o.Scenario)
	if err != nil {
		return err
	}
	if err := settings(r.o.Scenario, r.desc); err != nil {
		return err
	}
	manifest := Manifest(r.o, r.desc, labels)
	if r.o.Record != nil {
		r.rec, err = r.o.Record(manifest, r.rt.Now)
		return err
	}
	if r.files, err = evidence.Create(r.o.Dir, manifest, []byte(script.Print(r.o.Scenario))); err != nil {
		return fmt.Errorf("%w: %w", ErrNoEvidence, err)
	}
	r.rec = r.files
	if r.sim != nil {
		r.rec = virtualRecorder{r.files, r.sim}
	}
	if r.rt == nil {
		base := r.files.Base()
		r.rt = tasks.NewReal(func() time.Duration { return evidence.Now(base) })
	}
	return nil
}

// virtualRecorder writes files with virtual timestamps.
type virtualRecorder struct {
	*evidence.Recorder
	world *tasks.Simulated
}

func (t virtualRecorder) Record(e evidence.Event) uint64 {
	if e.At == 0 {
		e.At = t.world.Now()
	}
	return t.Recorder.Record(e)
}

func (t virtualRecorder) Close(end evidence.End) error {
	end.After = t.world.Now()
	return t.Recorder.Close(end)
}

// goUntilEnd runs a task that ends with the run.
func (r *run) goUntilEnd(task func(context.Context)) {
	r.active.Add(1)
	r.rt.Go(func() {
		defer r.rt.Wake()
		defer r.active.Add(-1)
		task(r.lifetime)
	})
}

// The runner's own bounds, before scaling.
const (
	callBound    = time.Second
	publishBound = 10 * time.Second
	startBound   = 30 * time.Second
	stopBound    = 10 * time.Second
)

func scaled(d time.Duration, by float64) time.Duration { return time.Duration(float64(d) * by) }

// Manifest returns the manifest of a run that starts.
func Manifest(o Options, desc systems.Description, labels []evidence.FaultLabel) evidence.Manifest {
	complete := o.Scenario
	if o.Complete != nil {
		complete = *o.Complete
	}
	m := evidence.Manifest{Run: filepath.Base(o.Dir), System: desc.System, Spec: o.Spec, Profile: desc.Profile, Claims: Claims(desc, complete),
		Scenario: o.Scenario.Name, Why: o.Scenario.Why, Expect: o.Scenario.Expect, Reached: o.Scenario.Reached, Faults: slices.Clone(labels),
		Known: desc.Known, Seed: o.Seed, Scale: o.Scale, Versions: map[string]string{"go": runtime.Version(), "custody": evidence.Version()}, Defect: o.Defect,
		Machine: evidence.Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU()}}
	for name, version := range desc.Versions {
		m.Versions[name] = version
	}
	for i := range m.Faults {
		if desc.CutsPower && m.Faults[i].Class == evidence.BrokerCrash {
			m.Faults[i].Class = evidence.PowerLoss
		}
	}
	return m
}

// Claims returns the claims that a run is judged by: the system's and the
// application's.
func Claims(desc systems.Description, s script.Scenario) []evidence.Claim {
	return append(append([]evidence.Claim(nil), desc.Claims...), applicationClaims(desc, s)...)
}

// applicationClaims returns the application's own claims: of its consumers, if
// every one has a pattern that absorbs repeats, and of its outbox, if every
// producer has one and every relay keeps to it. A wrong clock is not their
// business, and what makes the system forget message IDs takes a log of those its
// ground.
func applicationClaims(desc systems.Description, s script.Scenario) (claims []evidence.Claim) {
	patterns, policies := []string{}, []string{}
	consumersWhole, outboxWhole := true, true
	for _, step := range s.Steps {
		switch step := bare(step).(type) {
		case script.Consumer:
			p, err := business.FindPattern(patternOf(step))
			consumersWhole = consumersWhole && err == nil && (p.Whole || step.Silent)
			patterns = append(patterns, p.Name)
		case script.Producer:
			outboxWhole = outboxWhole && step.Outbox
		case script.Relay:
			p, err := business.FindPolicy(step.Policy)
			outboxWhole = outboxWhole && err == nil && p.Whole
			policies = append(policies, p.Name)
		}
	}
	under := slices.DeleteFunc(evidence.Classes(), func(c evidence.Class) bool { return c == evidence.Clock })
	if consumersWhole && len(patterns) > 0 {
		remembered := slices.DeleteFunc(slices.Clone(under), func(c evidence.Class) bool { return slices.Contains(desc.Forgets, c) })
		claims = append(claims, evidence.Claim{Guarantee: evidence.SingleEffect, Under: remembered, Owner: evidence.OwnerApplication,
			Source: "its consumers' patterns: " + strings.Join(slices.Compact(slices.Sorted(slices.Values(patterns))), ", ")})
	}
	if outboxWhole && len(policies) > 0 {
		claims = append(claims, evidence.Claim{Guarantee: evidence.OutboxAtomicity, Under: under, Owner: evidence.OwnerApplication,
			Source: "its outbox: the row and its message are one transaction, and the relay marks a message once it is accepted"})
	}
	return claims
}

// watchRecorder fails the run as soon as evidence can no longer be written.
func (r *run) watchRecorder(ctx context.Context) {
	if r.sim != nil {
		if r.rt.Wait(ctx, func() bool { return r.files.Err() != nil }) == nil {
			r.fail(r.files.Err())
		}
		return
	}
	select {
	case <-r.files.Failed():
		r.fail(r.files.Err())
	case <-ctx.Done():
	}
}

// fail ends the run as not measurable.
func (r *run) fail(err error) {
	err = fmt.Errorf("could not measure: %w", err)
	r.broken.CompareAndSwap(nil, &err)
	r.cancel(err)
}

// maxRestarts bounds how often a crashing broker is restarted.
const maxRestarts = 3

// superviseBroker restarts a broker that exited unexpectedly, so that the run
// shows what it kept. The crash itself is in the evidence.
func (r *run) superviseBroker(ctx context.Context) {
	p, ok := systems.As[systems.Process](r.instance)
	if !ok {
		return
	}
	for seen := 1; r.rt.Wait(ctx, func() bool { return r.watch.crashes() >= seen }) == nil; seen++ {
		if seen > maxRestarts {
			r.note("the broker exited unexpectedly %d times and is not restarted any more", seen)
			return
		}
		r.note("the broker exited unexpectedly and is restarted")
		if err := r.revive(ctx, server{faults.Broker, p, r}); err != nil && ctx.Err() == nil {
			r.note("the broker does not start: %v", err)
			return
		}
	}
}

func (r *run) phase(p evidence.Phase) {
	r.rec.Record(evidence.Event{Kind: evidence.PhaseBegan, Actor: "harness", Phase: p})
}

func (r *run) note(format string, args ...any) {
	r.rec.Record(evidence.Event{Kind: evidence.Noted, Actor: "harness", Reason: fmt.Sprintf(format, args...)})
}

// phases runs the phases of a run, in their fixed order.
func (r *run) phases(ctx context.Context) error {
	r.phase(evidence.Prepare)
	if why, err := r.prepare(ctx); err != nil {
		return err
	} else if why != "" {
		return r.rec.UpdateManifest(func(m *evidence.Manifest) { m.Inapplicable = why })
	}
	r.phase(evidence.Act)
	if err := r.act(ctx); err != nil {
		return err
	}
	r.phase(evidence.Heal)
	if err := r.heal(ctx); err != nil {
		return err
	}
	r.phase(evidence.Drain)
	if err := r.drain(ctx); err != nil {
		return err
	}
	r.phase(evidence.Watch)
	if err := r.observeAfterDrain(ctx); err != nil {
		return err
	}
	if err := r.checkLinkLag(); err != nil {
		return err
	}
	r.phase(evidence.Ended)
	return context.Cause(ctx)
}

// prepare starts the system. If the scenario does not apply, it returns why.
func (r *run) prepare(ctx context.Context) (inapplicable string, err error) {
	if why := unsupported(r.o.Scenario, r.desc); why != "" {
		return why, nil
	}
	data := ""
	r.businessFaults = &businessFaults{rt: r.rt}
	if r.sim != nil {
		r.db = delayedMemory{business.NewMemory(r.businessFaults.pass), r.sim}
	} else {
		if r.work, err = process.Folder(); err != nil {
			return "", err
		}
		db, err := r.openBusiness(ctx)
		if err != nil {
			return "", err
		}
		r.db = db
		data = filepath.Join(r.work, "system")
		if err := os.Mkdir(data, 0o700); err != nil {
			return "", fmt.Errorf("runner: create the system's directory: %w", err)
		}
	}
	starting, cancel := r.rt.Timeout(ctx, scaled(startBound, r.o.Scale))
	defer cancel()
	clientDefect, seeded := defects.Find(r.o.Defect)
	systemDefect := r.o.Defect
	if seeded {
		systemDefect = ""
	}
	env := systems.Env{Dir: data, Sink: r.rec, Scale: r.o.Scale, Seed: r.o.Seed, Defect: systemDefect, Adopt: r.recordChild, Servers: r.o.Servers, Runtime: r.rt, Link: r.storeLink,
		Volume: slices.Contains(Needs(r.o.Scenario), systems.NeedVolume)}
	if r.files != nil {
		env.Log, env.Base = r.files.Log, r.files.Base()
	}
	r.instance, err = r.o.System.Start(starting, env)
	if err != nil {
		return "", fmt.Errorf("runner: start %s: %w", r.desc.System, err)
	}
	if _, reports := systems.As[systems.Reporter](r.instance); reports {
		r.desc = systems.Describe(r.o.System, r.instance)
		reported := Manifest(r.o, r.desc, nil)
		if err := r.rec.UpdateManifest(func(m *evidence.Manifest) {
			m.Profile, m.Claims, m.Versions = reported.Profile, reported.Claims, reported.Versions
		}); err != nil {
			return "", err
		}
		if why := unsupported(r.o.Scenario, r.desc); why != "" {
			return why, nil
		}
	}
	r.clients = r.instance
	if seeded {
		r.clients = clientDefect.Clients(r.instance)
	}
	if why := r.unsupportedByInstance(); why != "" {
		return why, nil
	}
	r.goUntilEnd(r.superviseBroker)
	return "", r.health(ctx)
}

func (r *run) openBusiness(ctx context.Context) (*business.Database, error) {
	if r.o.Postgres {
		return business.CreatePostgres(ctx, r.businessFaults.pass)
	}
	return business.Open(ctx, filepath.Join(r.work, "business.db"), r.businessFaults.pass)
}

// recordChild records a child's event pipe until it ends, even if the run ends
// first: what a dead child wrote is evidence.
func (r *run) recordChild(events io.Reader, actor string) {
	if err := r.files.Adopt(context.Background(), events, actor); err != nil {
		r.fail(err)
	}
}

// health checks that a session can be opened, bypassing all links.
func (r *run) health(ctx context.Context) error {
	o := systems.ProducerOptions{Name: "health", Session: "health"}
	if n, ok := systems.As[systems.Networked](r.instance); ok {
		o.Address = n.Address() // bypasses all links
	}
	bounded, cancel := r.rt.Timeout(ctx, r.bounds.call)
	defer cancel()
	p, err := r.instance.Producer(bounded, o)
	if err == nil {
		err = p.Close(bounded)
	}
	e := evidence.Event{Kind: evidence.HealthChecked, Actor: "harness", OK: err == nil}
	if err != nil {
		e.Reason = err.Error()
	}
	r.rec.Record(e)
	return nil
}

// close releases everything, in any state, and closes the evidence.
func (r *run) close(ctx context.Context, failed error) error {
	end := evidence.End{How: evidence.EndCompleted}
	switch {
	case ctx.Err() != nil:
		end = evidence.End{How: evidence.EndCancelled, Reason: context.Cause(ctx).Error()}
	case failed != nil:
		end = evidence.End{How: evidence.EndFailed, Reason: failed.Error()}
	}
	bounded, cancel := r.rt.Timeout(context.WithoutCancel(ctx), scaled(stopBound, r.o.Scale))
	defer cancel()
	var errs []error
	for _, in := range r.injections {
		errs = append(errs, in.Heal(bounded))
	}
	for _, c := range r.actors {
		errs = append(errs, c.stop(bounded))
	}
	r.cancel(context.Canceled)
	_ = r.rt.Wait(context.Background(), func() bool { // each ends with lifetime, or by its own deadline
		return r.active.Load() == 0 && !slices.ContainsFunc(r.background, func(p *backgroundPublish) bool { return !p.over.Load() })
	})
	for _, p := range r.publishers {
		p.endSession(bounded, "the run is over")
	}
	if r.instance != nil {
		err := r.instance.Stop(bounded)
		if p, ok := systems.As[systems.Process](r.instance); ok && errors.Is(err, process.ErrNoOrderlyEnd) && !p.Running() {
			err = nil // as in server.order, the evidence says so
		}
		errs = append(errs, err)
	}
	for _, l := range r.links {
		errs = append(errs, l.Close())
	}
	if r.db != nil {
		errs = append(errs, r.db.Close())
	}
	if r.work != "" {
		errs = append(errs, os.RemoveAll(r.work))
	}
	err := errors.Join(errs...)
	if broken := r.broken.Load(); broken != nil && failed == nil { // failed during release
		err = errors.Join(err, *broken)
	}
	if err != nil && end.How == evidence.EndCompleted {
		end = evidence.End{How: evidence.EndFailed, Reason: "release: " + err.Error()}
	}
	return errors.Join(err, r.rec.Close(end))
}
