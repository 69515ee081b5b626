// Package bench puts a system, links, faults and actors together, runs a
// script, drains, watches, and leaves evidence. It judges nothing.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/defects"
)

// Options of one run.
type Options struct {
	System   systems.System
	Spec     string // how `--system` names it: "zeromq:at-least-once"
	Scenario script.Scenario
	Dir      string // of the evidence; must not exist or be empty
	Seed     uint64
	Scale    float64          // factor on deadlines, bounds and periods; 0 is DefaultScale
	Defect   string           // a seeded defect to switch on
	Wall     func() time.Time // the machine's clock; nil is time.Now
	Servers  *containers.Pool // servers that earlier runs have left as they were; nil keeps none
}

// Bench is one run in progress.
type Bench struct {
	o        Options
	rec      *evidence.Recorder
	watch    *watch
	work     string // private folder, removed at the end
	desc     systems.Description
	instance systems.Instance
	clients  systems.Clients // of the instance, with the seeded defect if it is one of clients
	db       *business.Database
	index    *links.Index
	bounds   bounds

	life   context.Context // of everything that runs beside the script
	cancel context.CancelCauseFunc

	links      map[string]*links.Link
	producers  map[string]*producer
	consumers  map[string]*consumerActor
	marks      map[string]mark         // checkpoints so far, by name
	background map[string][]chan error // publishes that the script did not wait for, by producer
	injections []labelled
}

type labelled struct {
	label string
	faults.Injection
}

// ErrNoEvidence: the run's folder could not be begun, so nothing was started
// and what lies there, if anything, is another run's.
var ErrNoEvidence = errors.New("no evidence can be kept")

// Run makes one run. Its folder holds the evidence, whatever happens; an error
// is a failure of the harness or the machine, and the manifest says so too.
func Run(ctx context.Context, o Options) (err error) {
	if o.Scale == 0 {
		o.Scale = DefaultScale
	}
	desc := o.System.Describe()
	labels, err := resolve(o.Scenario)
	if err != nil {
		return err
	}
	rec, err := evidence.Create(o.Dir, Manifest(o, desc, labels), []byte(script.Print(o.Scenario)))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoEvidence, err)
	}
	b := &Bench{o: o, rec: rec, watch: newWatch(o.Scenario), desc: desc, index: links.NewIndex(),
		bounds: bounds{call: scaled(callBound, o.Scale), publish: scaled(publishBound, o.Scale)},
		links:  map[string]*links.Link{}, producers: map[string]*producer{}, consumers: map[string]*consumerActor{}, marks: map[string]mark{}, background: map[string][]chan error{}}
	defer rec.Observe(b.watch.observe)()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("bench: panic: %v\n%s", p, debug.Stack())
		}
		err = errors.Join(err, b.close(ctx, err))
	}()
	b.life, b.cancel = context.WithCancelCause(ctx)
	go b.failWithRecorder()
	go b.keepTime(b.life)
	return b.phases(b.life)
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
func (b *Bench) failWithRecorder() {
	select {
	case <-b.rec.Failed():
		b.fail(b.rec.Err())
	case <-b.life.Done():
	}
}

// fail ends the run: the harness cannot measure any more.
func (b *Bench) fail(err error) { b.cancel(fmt.Errorf("could not measure: %w", err)) }

func (b *Bench) phase(p evidence.Phase) {
	b.rec.Record(evidence.Event{Kind: evidence.PhaseBegan, Actor: "harness", Phase: p})
}

func (b *Bench) note(format string, args ...any) {
	b.rec.Record(evidence.Event{Kind: evidence.Noted, Actor: "harness", Reason: fmt.Sprintf(format, args...)})
}

// phases of a run, in the order that never changes.
func (b *Bench) phases(ctx context.Context) error {
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
func (b *Bench) prepare(ctx context.Context) (inapplicable string, err error) {
	if why := needed(b.o.Scenario, b.desc); why != "" {
		return why, nil
	}
	if b.work, err = os.MkdirTemp("", "custody-run-"); err != nil {
		return "", fmt.Errorf("bench: a private folder for the run: %w", err)
	}
	if b.db, err = business.Open(ctx, filepath.Join(b.work, databaseFile)); err != nil {
		return "", err
	}
	data := filepath.Join(b.work, "system")
	if err := os.Mkdir(data, 0o755); err != nil {
		return "", fmt.Errorf("bench: the system's folder: %w", err)
	}
	starting, cancel := context.WithTimeout(ctx, scaled(startBound, b.o.Scale))
	defer cancel()
	ofClients, seeded := defects.Find(b.o.Defect)
	ofSystem := b.o.Defect
	if seeded {
		ofSystem = ""
	}
	b.instance, err = b.o.System.Start(starting, systems.Env{Dir: data, Log: b.rec.Log, Sink: b.rec, Scale: b.o.Scale, Seed: b.o.Seed, Base: b.rec.Base(), Defect: ofSystem,
		Adopt: b.adopt, Servers: b.o.Servers})
	if err != nil {
		return "", fmt.Errorf("bench: start %s: %w", b.desc.System, err)
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
	return "", b.health(ctx)
}

// adopt records what a child process reports, until its pipe ends: whatever
// becomes of the run, what a dead child has written is evidence.
func (b *Bench) adopt(events io.Reader, actor string) {
	if err := b.rec.Adopt(context.Background(), events, actor); err != nil {
		b.fail(err)
	}
}

// health opens a session past all links: a run that begins or ends with a
// system that cannot be reached says so.
func (b *Bench) health(ctx context.Context) error {
	o := systems.ProducerOptions{Name: "health", Session: "health"}
	if n, ok := b.instance.(systems.Networked); ok {
		o.Address = n.Address()
	}
	bounded, cancel := context.WithTimeout(ctx, b.bounds.call)
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
func (b *Bench) close(ctx context.Context, failed error) error {
	end := evidence.End{How: evidence.EndCompleted}
	switch {
	case ctx.Err() != nil:
		end = evidence.End{How: evidence.EndCancelled, Reason: context.Cause(ctx).Error()}
	case failed != nil:
		end = evidence.End{How: evidence.EndFailed, Reason: failed.Error()}
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), scaled(stopBound, b.o.Scale))
	defer cancel()
	var errs []error
	for _, in := range b.injections {
		errs = append(errs, in.Heal(bounded))
	}
	for _, c := range b.consumers {
		errs = append(errs, c.stop(bounded))
	}
	b.cancel(context.Canceled)
	for _, waiting := range b.background {
		for _, done := range waiting {
			<-done // each is bounded by its own deadline
		}
	}
	for _, p := range b.producers {
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
	if err != nil && end.How == evidence.EndCompleted {
		end = evidence.End{How: evidence.EndFailed, Reason: "release: " + err.Error()}
	}
	return errors.Join(err, b.rec.Close(end))
}
