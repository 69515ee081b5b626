// Package explore looks for schedules that nobody thought of: it draws small
// scenarios by chance, runs each, judges it, and shrinks one that breaks a
// promise to the fewest steps that still do.
//
// The reference broker is simulated: its own engine, state machine, codec and
// seeded defects, in virtual time, with a network, a store and clients in
// memory. What happens is recorded as the bench records it, and judged by the
// same judge. The same seed gives the same history, byte for byte.
package explore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/bench"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/zeromq"
)

// Simulation of one scenario on the reference broker.
type Simulation struct {
	Profile  zeromq.Profile
	Scenario script.Scenario
	Seed     uint64 // of every delay
	Defect   string // a seeded defect; empty is none
}

// UnsupportedError: a scenario asks for what the simulation does not have.
type UnsupportedError struct{ Text string }

func (e *UnsupportedError) Error() string { return "explore: the simulation has no way to " + e.Text }

// Run gives the history of the scenario. Its events are the Simulator's and valid
// until its next Run. An error is a failure to measure; the history says so too.
func (s *Simulator) Run(o Simulation) (*evidence.History, error) {
	w := &world{o: o, profile: o.Profile, desc: o.Profile.Describe(), chance: rand.New(rand.NewPCG(o.Seed, 0x6375737461)),
		history: s.events[:0], index: links.NewIndex(), heartbeat: o.Profile.Broker().Heartbeat,
		brokerName: brokerName, identity: "identity-1", hostname: "host-1",
		links: map[string]*link{}, producers: map[string]*producer{}, consumers: map[string]*consumer{}, background: map[string]int{}}
	w.now = time.Millisecond
	w.database = &database{w: w}
	w.business = &application{seen: map[[2]string]bool{}}
	h, err := w.simulate()
	s.events = w.history
	return h, err
}

// Simulator keeps what one simulation leaves for the next to use. Not safe for
// concurrent use.
type Simulator struct {
	events []evidence.Event
	line   []byte
}

// world is one simulation.
type world struct {
	kernel
	o          Simulation
	profile    zeromq.Profile
	desc       systems.Description
	chance     *rand.Rand
	heartbeat  time.Duration
	history    []evidence.Event
	snapshots  []evidence.Snapshot
	conditions *evidence.Conditions
	places     map[string]int // of a condition's line

	index                          *links.Index
	database                       *database
	changed                        bool // the stored rows, since they were read last
	business                       *application
	broker                         *process // nil while it is down
	boots                          int
	clock                          time.Duration // the broker's offset
	brokerName, identity, hostname string

	links      map[string]*link
	producers  map[string]*producer
	consumers  map[string]*consumer
	actors     []*consumer // in the order of the script
	publishers []*producer
	background map[string]int // publishes that the script did not wait for, by producer
	injections []*injection
	failed     error
}

// injection is an armed fault.
type injection struct {
	label string
	undo  func(*task) error
}

func (w *world) record(e evidence.Event) uint64 {
	e.Seq, e.At = uint64(len(w.history)+1), w.now
	w.history = append(w.history, e)
	w.conditions.Observe(&w.history[len(w.history)-1])
	return e.Seq
}

func (w *world) note(format string, args ...any) {
	w.record(evidence.Event{Kind: evidence.Noted, Actor: "harness", Reason: fmt.Sprintf(format, args...)})
}

func (w *world) simulate() (*evidence.History, error) {
	sc := w.o.Scenario
	labels, err := bench.Faults(sc)
	if err != nil {
		return nil, err
	}
	w.follow(sc)
	over := false
	w.start(func(t *task) {
		err = w.phases(t)
		over = true
	})
	if stuck := w.run(func() bool { return over }); stuck != nil {
		err = stuck
	}
	w.end()
	end := evidence.End{How: evidence.EndCompleted, Events: uint64(len(w.history))}
	if err = errors.Join(err, w.failed); err != nil {
		end.How, end.Reason = evidence.EndFailed, err.Error()
	}
	m := bench.Manifest(bench.Options{Spec: "zeromq", Scenario: sc, Seed: w.o.Seed, Scale: 1, Defect: w.o.Defect}, w.desc, labels)
	m.Format, m.End = evidence.FormatVersion, &end
	return &evidence.History{Manifest: m, Snapshots: w.snapshots, Events: func(yield func(*evidence.Event, error) bool) {
		for i := range w.history {
			if !yield(&w.history[i], nil) {
				return
			}
		}
	}}, err
}

// follow every condition that the script awaits or must reach.
func (w *world) follow(sc script.Scenario) {
	w.places = map[string]int{}
	all := slices.Clone(sc.Reached)
	for _, step := range sc.Steps {
		if a, ok := bare(step).(script.Await); ok {
			all = append(all, a.Condition)
		}
	}
	for i, c := range all {
		w.places[c.Line] = i
	}
	w.conditions = evidence.NewConditions(all)
}

func (w *world) phase(p evidence.Phase) {
	w.record(evidence.Event{Kind: evidence.PhaseBegan, Actor: "harness", Phase: p})
}

// phases of a run, as the bench goes through them.
func (w *world) phases(t *task) error {
	w.phase(evidence.Prepare)
	if err := w.boot(); err != nil {
		return err
	}
	w.health(t)
	w.phase(evidence.Act)
	if err := w.act(t); err != nil {
		return err
	}
	w.phase(evidence.Heal)
	for len(w.injections) > 0 {
		if err := w.healOne(t, w.injections[len(w.injections)-1].label); err != nil {
			return err
		}
	}
	if err := w.settled(t, script.Settle{}); err != nil {
		return err
	}
	w.health(t)
	w.phase(evidence.Drain)
	reason, err := w.drained(t)
	if err != nil {
		return err
	}
	w.record(evidence.Event{Kind: evidence.DrainEnded, Actor: "harness", Drain: reason})
	w.phase(evidence.Watch)
	period := w.desc.Profile.Limits.RedeliveryPeriod
	t.pause(period + period/4)
	w.record(evidence.Event{Kind: evidence.WatchEnded, Actor: "harness", Reason: period.String()})
	for _, c := range w.actors {
		if err := c.stop(t); err != nil {
			return err
		}
	}
	if err := w.snapshot("end"); err != nil {
		return err
	}
	w.phase(evidence.Ended)
	for _, p := range w.publishers {
		p.endSession("the run is over")
	}
	for _, c := range w.actors {
		w.failed = errors.Join(w.failed, c.failed)
	}
	return nil
}

// health opens a session past all links.
func (w *world) health(t *task) {
	c, err := w.dial(t, "health", nil, never)
	e := evidence.Event{Kind: evidence.HealthChecked, Actor: "harness", OK: err == nil}
	if err != nil {
		e.Reason = err.Error()
	} else {
		c.close()
	}
	w.record(e)
}

// pollInterval is how often the stored rows are read while something of them is
// waited for.
const pollInterval = 20 * time.Millisecond

// drained waits until nothing is unsettled, or the deadline.
func (w *world) drained(t *task) (evidence.DrainReason, error) {
	if !slices.ContainsFunc(w.actors, func(c *consumer) bool { return c.running }) {
		return evidence.DrainNoConsumer, nil
	}
	deadline := w.now + w.desc.Profile.Limits.DrainDeadline
	w.changed = true
	for looks := 0; w.now < deadline; looks++ {
		if w.changed || looks%25 == 0 { // time alone changes them too: they expire
			w.changed = false
			s, err := w.database.rows()
			if err != nil {
				return evidence.NoDrainReason, err
			}
			if !slices.ContainsFunc(s.Rows, func(r evidence.StoredRow) bool {
				return r.State == evidence.RowPending && !r.Expired && r.Partition == s.Partition
			}) {
				return evidence.DrainSettled, nil
			}
		}
		t.pause(pollInterval)
	}
	return evidence.DrainDeadline, nil
}

// snapshot reads the stored rows, the application's and the broker's.
func (w *world) snapshot(checkpoint string) error {
	rows, err := w.database.rows()
	if err != nil {
		return err
	}
	for _, s := range []evidence.Snapshot{w.business.rows(), rows} {
		s.Checkpoint, s.At = checkpoint, w.now
		s.Seq = w.record(evidence.Event{Kind: evidence.SnapshotTaken, Actor: s.Source, Checkpoint: checkpoint})
		w.snapshots = append(w.snapshots, s)
		w.conditions.ObserveSnapshot(s)
	}
	return nil
}

var errActOver = errors.New("explore: the act phase is over")

// act runs the script's steps in order.
func (w *world) act(t *task) error {
	for _, step := range w.o.Scenario.Steps {
		err := w.step(t, bare(step))
		if errors.Is(err, errActOver) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%q: %w", script.Line(step), err)
		}
	}
	return nil
}

func bare(s script.Step) script.Step {
	if c, ok := s.(script.Comment); ok {
		return c.Step
	}
	return s
}

func (w *world) step(t *task, step script.Step) error {
	switch s := step.(type) {
	case script.Producer:
		p := &producer{w: w, spec: s, link: w.linkOf(s.Name), tries: map[string]*tries{}}
		w.producers[s.Name] = p
		w.publishers = append(w.publishers, p)
		return p.open(t)
	case script.Consumer:
		c := &consumer{w: w, spec: s, link: w.linkOf(s.Name)}
		w.consumers[s.Name] = c
		w.actors = append(w.actors, c)
		if s.Offline {
			return nil
		}
		return w.startConsumer(t, s.Name)
	case script.Publish:
		if s.Headers > 0 {
			return &UnsupportedError{"publish headers"}
		}
		return w.publish(t, s)
	case script.Retry:
		if err := w.settled(t, script.Settle{By: s.By}); err != nil {
			return err
		}
		return w.producers[s.By].retry(t, s)
	case script.Resolve:
		if err := w.settled(t, script.Settle{By: s.By}); err != nil {
			return err
		}
		return w.producers[s.By].resolve(t, s)
	case script.Settle:
		return w.settled(t, s)
	case script.Fault:
		return w.arm(t, s)
	case script.Heal:
		return w.healOne(t, s.Label)
	case script.Await:
		return w.await(t, s)
	case script.Provoke:
		w.record(evidence.Event{Kind: evidence.Commanded, Actor: "harness", BusinessID: s.BusinessID,
			Command: evidence.CommandProvoke, Reason: "by " + string(w.desc.Profile.Redelivers)})
		return nil
	case script.Start:
		if s.Actor == faults.Broker {
			return w.revive(t)
		}
		return w.startConsumer(t, s.Actor)
	case script.Stop:
		return w.consumers[s.Actor].stop(t)
	case script.Restart:
		w.record(evidence.Event{Kind: evidence.Commanded, Actor: faults.Broker, Command: evidence.CommandRestart})
		if w.broker == nil {
			return errors.New("explore: the broker is down")
		}
		w.broker.shutdown(t)
		return w.revive(t)
	case script.Snapshot:
		return w.snapshot(s.Checkpoint)
	case script.Set:
		return w.set(s)
	case script.Redrive:
		return w.administer(t, evidence.CommandRedrive, s.BusinessID)
	case script.Discard:
		return w.administer(t, evidence.CommandDiscard, s.BusinessID)
	case script.Elapse:
		return w.elapse(t, s)
	}
	return &UnsupportedError{fmt.Sprintf("do %q", script.Line(step))}
}

func (w *world) linkOf(actor string) *link {
	l := &link{w: w, name: actor}
	w.links[actor] = l
	return l
}

func (w *world) startConsumer(t *task, actor string) error {
	c := w.consumers[actor]
	if c.running {
		return nil
	}
	from := len(w.history)
	c.begin()
	opened := func() bool {
		for ; from < len(w.history); from++ {
			if e := &w.history[from]; e.Kind == evidence.SessionOpened && e.Actor == actor {
				return true
			}
		}
		return false
	}
	if !t.wait(w.now+startBound, func() bool { return opened() || c.failed != nil }) || c.failed != nil {
		return errors.Join(fmt.Errorf("explore: consumer %s was not subscribed", actor), c.failed)
	}
	return nil
}

// revive starts the broker unless it runs.
func (w *world) revive(t *task) error {
	if w.broker != nil {
		return nil
	}
	t.pause(time.Millisecond + w.hop())
	return w.boot()
}

func (w *world) publish(t *task, s script.Publish) error {
	if err := w.settled(t, script.Settle{By: s.By}); err != nil {
		return err
	}
	p := w.producers[s.By]
	if !s.Background {
		p.publish(t, s)
		return nil
	}
	w.background[s.By]++
	w.start(func(t *task) {
		p.publish(t, s)
		w.background[s.By]--
	})
	return nil
}

// settled waits for background publishes.
func (w *world) settled(t *task, s script.Settle) error {
	within := s.Within
	if within == 0 {
		within = 2 * publishBound
	}
	ok := t.wait(w.now+within, func() bool {
		for name, n := range w.background {
			if n > 0 && (s.By == "" || s.By == name) {
				return false
			}
		}
		return true
	})
	if !ok {
		return fmt.Errorf("explore: the publishes of %s had no answer", s.By)
	}
	return nil
}

func (w *world) await(t *task, s script.Await) error {
	within := s.Within
	if within == 0 {
		within = script.DefaultWithin
	}
	w.record(evidence.Event{Kind: evidence.AwaitBegan, Actor: "harness", Reason: s.Condition.Line})
	place, limit := w.places[s.Condition.Line], w.now+within
	met := func() bool { return w.conditions.Met(place) }
	ok := false
	if ofRows[s.Condition.Verb] {
		var err error
		if ok, err = w.awaitRows(t, limit, met); err != nil {
			return err
		}
	} else {
		ok = t.wait(limit, met)
	}
	e := evidence.Event{Kind: evidence.AwaitEnded, Actor: "harness", OK: ok, Reason: s.Condition.Line}
	if !ok {
		e.Reason = fmt.Sprintf("%q did not come about: %s", s.Condition.Line, w.conditions.Missing(place))
	}
	w.record(e)
	if !ok {
		return errActOver
	}
	return nil
}

// ofRows are the conditions that stored rows decide.
var ofRows = map[string]bool{evidence.CondStored: true, evidence.CondDead: true, evidence.CondGone: true}

func (w *world) awaitRows(t *task, limit time.Duration, met func() bool) (bool, error) {
	for {
		s, err := w.database.rows()
		if err != nil {
			return false, err
		}
		w.conditions.ObserveSnapshot(s)
		if met() {
			return true, w.snapshot("await")
		}
		if w.now >= limit {
			return false, nil
		}
		t.pause(pollInterval)
	}
}

func (w *world) set(s script.Set) error {
	switch s.Setting {
	case "identity":
		w.identity = s.Value
		if s.Value == "unset" {
			w.identity = ""
		}
	case "hostname":
		w.hostname = s.Value
	case "name":
		w.brokerName = s.Value
	case "identity-now": // the variable is read once, at the start
	default:
		return fmt.Errorf("explore: no setting %q", s.Setting)
	}
	return nil
}

// administer redrives or discards a dead letter.
func (w *world) administer(t *task, command evidence.Command, businessID string) error {
	s, err := w.database.rows()
	if err != nil {
		return err
	}
	for _, row := range s.Rows {
		if row.State != evidence.RowDead || row.Partition != s.Partition || row.BusinessID != businessID {
			continue
		}
		w.record(evidence.Event{Kind: evidence.DeadLettered, Actor: faults.Broker, BusinessID: businessID, PublishID: row.PublishID,
			MessageID: row.MessageID, Cause: row.Cause, Reason: row.Reason})
		kind := evidence.Commanded
		if command == evidence.CommandDiscard {
			kind = evidence.Purged
		}
		w.record(evidence.Event{Kind: kind, Actor: faults.Broker, BusinessID: businessID, PublishID: row.PublishID, MessageID: row.MessageID, Command: command})
		return w.admin(t, "dlq."+command.String(), row.MessageID)
	}
	w.note("%s %s: it is not in the dead-letter queue", command, businessID)
	return nil
}

func (w *world) admin(t *task, command, messageID string) error {
	c, err := w.dial(t, "administrator", nil, never)
	if err != nil {
		return err
	}
	defer c.close()
	asked, err := c.ask(wire.Message{Kind: wire.Admin, Topic: command, MessageID: messageID})
	if err != nil {
		return err
	}
	m, err := asked.answer(t, w.now+callBound, never)
	if err == nil && m.Answer != wire.Accepted {
		err = errors.Join(errRefused, errors.New(m.Reason))
	}
	return err
}

func (w *world) elapse(t *task, s script.Elapse) error {
	for _, p := range w.publishers {
		if try, ok := p.tries[s.BusinessID]; ok {
			ttl := try.step.TTL
			if ttl == 0 {
				ttl = p.spec.TTL
			}
			margin := w.desc.Profile.Limits.ExpiryTolerance + s.Margin
			w.note("waiting until the time to live of %s (%s) is over by %s", s.BusinessID, ttl, margin)
			t.pause(ttl + margin)
			return nil
		}
	}
	return fmt.Errorf("explore: %s was never published", s.BusinessID)
}

// Judge runs a simulation and judges it.
func (s *Simulator) Judge(o Simulation) (guarantees.Judgement, error) {
	h, err := s.Run(o)
	if err != nil {
		return guarantees.Judgement{}, err
	}
	return guarantees.Judge(h)
}

// Bytes of a history, as a saved run holds its events: valid until the next call.
func (s *Simulator) Bytes(h *evidence.History) []byte {
	s.line = s.line[:0]
	for e, err := range h.Events {
		if err != nil {
			break // those of a simulation have none
		}
		s.line = append(evidence.AppendJSON(s.line, e), '\n')
	}
	return s.line
}

// brokenOf are the guarantees of which a claim that covers the run was broken.
func brokenOf(j guarantees.Judgement) []string {
	var names []string
	for _, f := range j.Broken {
		if !slices.Contains(names, f.Guarantee) {
			names = append(names, f.Guarantee)
		}
	}
	return names
}

// eventOf is the frame or the operation of the store that a fault waits for.
func eventOf(f script.Fault) (frame, operation string) {
	if name, ok := strings.CutPrefix(f.Event, "frame "); ok {
		return name, ""
	}
	name, _ := strings.CutPrefix(f.Event, "operation ")
	return "", name
}
