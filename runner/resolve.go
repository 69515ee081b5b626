package runner

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// UsageError is a script that refers to something that does not exist, with
// file, line and word. Nothing was started.
type UsageError struct{ At *script.Error }

func (e *UsageError) Error() string { return e.At.Error() }

func (e *UsageError) Unwrap() error { return e.At }

// Check reports references to things that exist on no system.
func Check(s script.Scenario) error {
	if _, err := resolve(s); err != nil {
		return err
	}
	return frames(s)
}

// Faults lists a script's faults for the manifest.
func Faults(s script.Scenario) ([]evidence.FaultLabel, error) { return resolve(s) }

// Kinds of actors, as used in errors.
const (
	kindProducer = "producer"
	kindConsumer = "consumer"
	kindRelay    = "relay"
)

// resolver checks every name in a script, in order, before anything starts.
type resolver struct {
	s           script.Scenario
	actors      map[string]string // name → kind
	children    map[string]bool   // actors with a process of their own
	labels      map[string]bool   // faults declared above
	checkpoints map[string]int    // snapshots in the whole script, by name
	above       map[string]bool   // snapshots taken above
	faults      []evidence.FaultLabel
}

// settings checks what the script sets against what the system can be set to. A
// system without settings does not apply, which its needs say.
func settings(s script.Scenario, desc systems.Description) error {
	if len(desc.Settings) == 0 {
		return nil
	}
	r := resolver{s: s}
	for i, step := range s.Steps {
		set, ok := bare(step).(script.Set)
		if !ok {
			continue
		}
		values, known := desc.Settings[set.Setting]
		if names := slices.Sorted(maps.Keys(desc.Settings)); !known {
			return r.wrong(script.PartStep, i, set.Setting, "%s has no setting %q; it has %s%s", desc.System, set.Setting,
				strings.Join(names, ", "), script.Suggest(set.Setting, names))
		}
		if len(values) > 0 && !slices.Contains(values, set.Value) {
			return r.wrong(script.PartStep, i, set.Value, "the setting %s is one of %s, and not %q%s", set.Setting,
				strings.Join(values, ", "), set.Value, script.Suggest(set.Value, values))
		}
	}
	return nil
}

// resolve returns the script's faults. Its error is a *UsageError.
func resolve(s script.Scenario) ([]evidence.FaultLabel, error) {
	if err := evidence.FileName(s.Name); err != nil {
		return nil, &UsageError{&script.Error{File: fmt.Sprintf("scenario %q", s.Name), Line: 1, Text: fmt.Sprintf("the name becomes a directory's: %v", err)}}
	}
	r := &resolver{s: s, actors: map[string]string{faults.Broker: faults.Broker, faults.Store: faults.Store, faults.Standby: faults.Standby, faults.Business: faults.Business},
		children: map[string]bool{}, labels: map[string]bool{}, checkpoints: map[string]int{}, above: map[string]bool{}}
	for _, step := range s.Steps {
		if snapshot, ok := bare(step).(script.Snapshot); ok {
			r.checkpoints[snapshot.Checkpoint]++
		}
	}
	for i, n := range s.Needs {
		if !slices.Contains(systems.Needs(), systems.Need(n)) {
			return nil, r.wrong(script.PartNeeds, i, n, "%q is not a need%s", n, script.Suggest(n, needNames()))
		}
	}
	for i, step := range s.Steps {
		if err := r.step(i, bare(step)); err != nil {
			return nil, err
		}
	}
	for i, c := range s.Reached {
		if err := r.condition(script.PartReached, i, c); err != nil {
			return nil, err
		}
	}
	return r.faults, nil
}

func (r *resolver) wrong(part script.Part, i int, word, format string, args ...any) error {
	return &UsageError{r.s.ErrorAt(part, i, word, format, args...)}
}

// step resolves the i-th step's names.
func (r *resolver) step(i int, step script.Step) error {
	need := func(name, kind string) error { return r.actor(script.PartStep, i, name, kind) }
	switch step := step.(type) {
	case script.Producer:
		return r.declare(i, step.Name, kindProducer)
	case script.Consumer:
		r.children[step.Name] = step.Child
		if names := namesOf(business.Patterns(), func(p business.Pattern) string { return p.Name }); step.Handler != "" && !slices.Contains(names, step.Handler) {
			return r.wrong(script.PartStep, i, step.Handler, "%q is no way to handle deliveries%s", step.Handler, script.Suggest(step.Handler, names))
		}
		return r.declare(i, step.Name, kindConsumer)
	case script.Relay:
		r.children[step.Name] = step.Child
		if names := namesOf(business.Policies(), func(p business.Policy) string { return p.Name }); step.Policy != "" && !slices.Contains(names, step.Policy) {
			return r.wrong(script.PartStep, i, step.Policy, "%q is no policy of a relay%s", step.Policy, script.Suggest(step.Policy, names))
		}
		return r.declare(i, step.Name, kindRelay)
	case script.Publish:
		return need(step.By, kindProducer)
	case script.Retry:
		return need(step.By, kindProducer)
	case script.Resolve:
		return need(step.By, kindProducer)
	case script.Settle:
		if step.By != "" {
			return need(step.By, kindProducer)
		}
	case script.Start:
		if step.Actor != faults.Broker && step.Actor != faults.Store {
			return need(step.Actor, r.oneThatRuns(step.Actor))
		}
	case script.Stop:
		return need(step.Actor, r.oneThatRuns(step.Actor))
	case script.Restart:
		return need(step.Actor, faults.Broker)
	case script.Snapshot:
		r.above[step.Checkpoint] = true
	case script.Restore:
		if step.Broker {
			r.faults = append(r.faults, evidence.FaultLabel{Label: step.Fault().Label, Class: evidence.Rollback, Verb: step.Fault().Verb, Line: script.Line(step)})
		}
		return r.uniqueCheckpoint(i, step.Checkpoint)
	case script.Rewind:
		if err := need(step.Consumer, kindConsumer); err != nil {
			return err
		}
		return r.uniqueCheckpoint(i, step.Checkpoint)
	case script.Await:
		return r.condition(script.PartStep, i, step.Condition)
	case script.Heal:
		return r.label(script.PartStep, i, step.Label)
	case script.Fault:
		return r.fault(i, step)
	}
	return nil
}

// oneThatRuns is the kind of an actor that is started and stopped.
func (r *resolver) oneThatRuns(name string) string {
	if r.actors[name] == kindRelay {
		return kindRelay
	}
	return kindConsumer
}

func namesOf[T any](list []T, name func(T) string) (names []string) {
	for _, one := range list {
		names = append(names, name(one))
	}
	return names
}

func (r *resolver) declare(i int, name, kind string) error {
	if r.actors[name] != "" {
		return r.wrong(script.PartStep, i, name, "the name %s is taken", name)
	}
	if err := evidence.FileName(name); err != nil { // an actor in a process of its own has a log
		return r.wrong(script.PartStep, i, name, "%v", err)
	}
	r.actors[name] = kind
	return nil
}

// actor requires an actor of this kind, or of any if kind is empty, declared
// above.
func (r *resolver) actor(part script.Part, i int, name, kind string) error {
	found := r.actors[name]
	if found != "" && (kind == "" || found == kind) {
		return nil
	}
	var names []string
	for _, other := range slices.Sorted(maps.Keys(r.actors)) {
		if kind == "" || r.actors[other] == kind {
			names = append(names, other)
		}
	}
	return r.wrong(part, i, name, "%s is no %s declared above this line%s", name, cmp.Or(kind, "actor"), script.Suggest(name, names))
}

func (r *resolver) label(part script.Part, i int, label string) error {
	if r.labels[label] {
		return nil
	}
	if len(r.labels) == 0 {
		return r.wrong(part, i, label, "there is no fault %s: no fault is declared above this line", label)
	}
	return r.wrong(part, i, label, "there is no fault %s above this line%s", label, script.Suggest(label, slices.Sorted(maps.Keys(r.labels))))
}

// uniqueCheckpoint requires exactly one snapshot of this name, taken above.
func (r *resolver) uniqueCheckpoint(i int, checkpoint string) error {
	switch {
	case !r.above[checkpoint]:
		return r.wrong(script.PartStep, i, checkpoint, "there is no \"snapshot %s\" above this line", checkpoint)
	case r.checkpoints[checkpoint] > 1, checkpoint == awaitCheckpoint:
		return r.wrong(script.PartStep, i, checkpoint, "several snapshots are called %s; give this one a unique name", checkpoint)
	}
	return nil
}

// condition resolves a condition's names. Messages need not exist: a condition
// may wait for one that never arrives.
func (r *resolver) condition(part script.Part, i int, c evidence.Condition) error {
	switch c.Verb {
	case evidence.CondFired, evidence.CondInFlight:
		return r.label(part, i, c.Subject)
	case evidence.CondConnected, evidence.CondCarried:
		return r.actor(part, i, c.Subject, "")
	case evidence.CondAcceptance:
		if answers := acceptances(); !slices.Contains(answers, c.Word) {
			return r.wrong(part, i, c.Word, "%q is not an acceptance%s", c.Word, script.Suggest(c.Word, answers))
		}
	case evidence.CondStored:
		if c.Word != "" && r.checkpoints[c.Word] == 0 && c.Word != endOfRun {
			names := append(slices.Sorted(maps.Keys(r.checkpoints)), endOfRun)
			return r.wrong(part, i, c.Word, "no snapshot is called %s%s", c.Word, script.Suggest(c.Word, names))
		}
	}
	return nil
}

func acceptances() []string {
	var all []string
	for _, a := range []evidence.Acceptance{evidence.Accepted, evidence.Declined, evidence.Rejected, evidence.Unknown} {
		all = append(all, a.String())
	}
	return all
}

func (r *resolver) fault(i int, step script.Fault) error {
	f, ok := faults.Find(step.Verb)
	if !ok {
		return r.wrong(script.PartStep, i, step.Verb, "%q is no fault%s", step.Verb, script.Suggest(step.Verb, verbs()))
	}
	spec := specOf(step)
	if ops := namesOf(business.Ops(), func(op business.Op) string { return string(op) }); spec.Operation != "" && ofBusiness(spec) && !slices.Contains(ops, spec.Operation) {
		return r.wrong(script.PartStep, i, spec.Operation, "the business database has no operation %q%s", spec.Operation, script.Suggest(spec.Operation, ops))
	}
	if err := f.Check(spec); err != nil {
		return r.wrong(script.PartStep, i, step.Verb, "%v", err)
	}
	for _, name := range []string{step.On, step.Target} {
		if name != "" {
			if err := r.actor(script.PartStep, i, name, ""); err != nil {
				return err
			}
		}
	}
	if f.Strikes == faults.StrikesProcess && step.Target != faults.Broker && step.Target != faults.Store && !r.children[step.Target] {
		return r.wrong(script.PartStep, i, step.Target, "%s has no process of its own to %s: only %s, %s and consumers and relays declared with \"child\" have one", step.Target, step.Verb, faults.Broker, faults.Store)
	}
	r.labels[step.Label] = true
	r.faults = append(r.faults, evidence.FaultLabel{Label: step.Label, Class: f.ClassOf(spec), Verb: step.Verb, Line: script.Line(step)})
	return nil
}

// frames checks frame kinds. A kind of another protocol is not an error: the
// scenario does not apply there.
func frames(s script.Scenario) error {
	check := func(part script.Part, i int, kind string) error {
		if known := links.FrameKinds(); kind != "" && !slices.Contains(known, kind) {
			return &UsageError{s.ErrorAt(part, i, kind, "no protocol has a frame %q%s", kind, script.Suggest(kind, known))}
		}
		return nil
	}
	carried := func(part script.Part, i int, c evidence.Condition) error {
		if c.Verb != evidence.CondCarried {
			return nil
		}
		return check(part, i, c.Word)
	}
	for i, step := range s.Steps {
		var err error
		switch step := bare(step).(type) {
		case script.Fault:
			err = check(script.PartStep, i, specOf(step).Frame)
		case script.Await:
			err = carried(script.PartStep, i, step.Condition)
		}
		if err != nil {
			return err
		}
	}
	for i, c := range s.Reached {
		if err := carried(script.PartReached, i, c); err != nil {
			return err
		}
	}
	return nil
}

func needNames() []string {
	var names []string
	for _, n := range systems.Needs() {
		names = append(names, string(n))
	}
	return names
}

func verbs() []string {
	var names []string
	for _, f := range faults.All() {
		names = append(names, f.Verb)
	}
	return names
}

func specOf(f script.Fault) faults.Spec {
	s := faults.Spec{Label: f.Label, Target: f.Target, Repeat: links.Repeat(f.Repeat), After: f.When == script.After,
		N: f.N, Of: f.Of, On: f.On, By: f.By, Rate: f.Rate}
	if kind, ok := strings.CutPrefix(f.Event, "frame "); ok {
		s.Frame = kind
	}
	if op, ok := strings.CutPrefix(f.Event, "operation "); ok {
		s.Operation = op
	}
	return s
}

// ofBusiness reports whether a fault strikes at an operation of the business
// database.
func ofBusiness(s faults.Spec) bool { return s.Target == faults.Business || s.On == faults.Business }

// Needs lists what a scenario requires, declared and implied by its steps.
func Needs(s script.Scenario) []systems.Need {
	var all []systems.Need
	seen := map[systems.Need]bool{}
	add := func(n systems.Need) {
		if !seen[n] {
			seen[n] = true
			all = append(all, n)
		}
	}
	for _, n := range s.Needs {
		add(systems.Need(n))
	}
	subscribers := map[string]string{} // one per destination
	for _, step := range s.Steps {
		switch step := bare(step).(type) {
		case script.Consumer:
			if step.Child {
				add(systems.NeedConnector)
			}
			if other, had := subscribers[step.Destination]; had && other != subscription(step) {
				add(systems.NeedFanOut)
			}
			subscribers[step.Destination] = subscription(step)
			if strings.ContainsAny(step.Destination, "+#") {
				add(systems.NeedWildcards)
			}
		case script.Relay:
			if step.Child {
				add(systems.NeedConnector)
			}
			add(systems.NeedAnswer)
		case script.Publish:
			if step.Cancel {
				add(systems.NeedFrames)
			}
			if step.Until != "" {
				add(systems.NeedAnswer)
			}
			if step.TTL > 0 {
				add(systems.NeedTTL)
			}
			if step.Headers > 0 || step.Key != "" || step.Keys > 0 {
				add(systems.NeedHeaders)
			}
		case script.Restart:
			add(systems.NeedProcess)
		case script.Start:
			if step.Actor == faults.Store {
				add(systems.NeedStoreLink)
			}
		case script.Set:
			add(systems.NeedIdentity)
		case script.Plant:
			add(systems.NeedPlanting)
			if step.What != script.Old {
				add(systems.NeedDamage)
			}
		case script.Swap, script.Migrate:
			add(systems.NeedMoves)
		case script.Restore:
			if step.Broker {
				add(systems.NeedStoreBackup)
			}
		case script.Redrive, script.Discard:
			add(systems.NeedDeadLetters)
		case script.Probe:
			add(systems.NeedProbes)
		case script.Rewind:
			add(systems.NeedRewind)
		case script.Provoke:
			add(systems.NeedRedelivery)
		case script.Fault:
			f, _ := faults.Find(step.Verb)
			spec := specOf(step)
			if spec.On == faults.Store || f.Strikes == faults.StrikesProcess && spec.Target == faults.Store {
				add(systems.NeedStoreLink)
			}
			if spec.On == faults.Standby || f.Class == evidence.NodeLoss {
				add(systems.NeedStandby)
			}
			if f.Verb == faults.Fill {
				add(systems.NeedVolume)
			}
			if spec.On != faults.Store && spec.Frame != "" {
				add(systems.NeedFrames)
			}
			switch spec.Frame {
			case links.FrameAck, links.FrameAckConfirm:
				add(systems.NeedAcks)
			case links.FrameAccept:
				add(systems.NeedAnswer)
			}
			if spec.Operation != "" && !ofBusiness(spec) {
				add(systems.NeedStoreFaults)
			}
			switch f.Strikes {
			case faults.StrikesLink:
				add(systems.NeedLinks)
				if f.Bytes {
					add(systems.NeedBytes)
				}
			case faults.StrikesStore:
				if !ofBusiness(spec) {
					add(systems.NeedStoreFaults)
				}
			case faults.StrikesClock:
				add(systems.NeedClock)
			case faults.StrikesProcess:
				if spec.Target == faults.Broker {
					add(systems.NeedProcess)
					if f.Class == evidence.BrokerPause {
						add(systems.NeedPause)
					}
				}
			}
		}
	}
	return all
}

// unsupported says why a scenario does not apply, from the description alone;
// empty if it does.
func unsupported(s script.Scenario, desc systems.Description) string {
	for _, n := range Needs(s) {
		if why, lacks := desc.Lacks[n]; lacks {
			return why
		}
		if n == systems.NeedTimeout && !redeliversWithinSession[desc.Profile.Redelivers] {
			return "an unsettled message is not redelivered while its session lives"
		}
		if n == systems.NeedRelease && !releasesAtOnce[desc.Profile.Redelivers] {
			return "what a lost connection held is not given to another consumer at once"
		}
	}
	for _, step := range s.Steps {
		if f, ok := bare(step).(script.Fault); ok {
			if why := unsupportedStoreFault(f, desc); why != "" {
				return why
			}
		}
	}
	return ""
}

// redeliversWithinSession lists the redelivery modes that do not wait for a
// session to end.
var redeliversWithinSession = map[evidence.Redelivery]bool{evidence.RedeliverTimeout: true, evidence.RedeliverClaim: true, evidence.RedeliverRebalance: true}

// releasesAtOnce lists the redelivery modes in which the end of a session releases
// what it held.
var releasesAtOnce = map[evidence.Redelivery]bool{evidence.RedeliverTimeout: true, evidence.RedeliverReconnect: true}

// unsupportedStoreFault says why a store fault does not apply, as far as the
// description lists them; empty if it does.
func unsupportedStoreFault(f script.Fault, desc systems.Description) string {
	spec := specOf(f)
	if ofBusiness(spec) {
		return ""
	}
	verb := f.Verb
	if fault, _ := faults.Find(verb); fault.Strikes != faults.StrikesStore {
		if spec.Operation == "" {
			return ""
		}
		verb = faults.Block // the process is struck while the operation is blocked
	}
	operations, can := desc.StoreFaults[verb]
	switch {
	case desc.StoreFaults == nil:
	case !can:
		return fmt.Sprintf("the store of %s has no fault %q", desc.System, verb)
	case spec.Operation != "" && len(operations) > 0 && !slices.Contains(operations, spec.Operation):
		return fmt.Sprintf("the store of %s has no operation %q that %q could strike", desc.System, spec.Operation, verb)
	}
	return ""
}

// part returns the optional interface T of the instance, which unsupportedByInstance
// has found there.
func part[T any](r *run) T {
	t, ok := systems.As[T](r.instance)
	if !ok {
		panic(fmt.Sprintf("runner: %s has no %v, and its scenario was run", r.desc.System, reflect.TypeFor[T]()))
	}
	return t
}

// unsupportedByInstance says why the scenario does not apply to the started
// instance: a missing interface or frame kind; empty if it does.
func (r *run) unsupportedByInstance() string {
	for _, n := range Needs(r.o.Scenario) {
		if !systems.Meets(n, r.o.System, r.instance) {
			return fmt.Sprintf("%s has no %s", r.desc.System, n)
		}
	}
	for _, step := range r.o.Scenario.Steps {
		if p, ok := bare(step).(script.Probe); ok && len(r.probes(p.Kind)) == 0 {
			why := fmt.Sprintf("%s has no probes of the kind %q", r.desc.System, p.Kind)
			if slices.Contains(r.desc.VirtualProbes, p.Kind) {
				why += " but in virtual time (--simulated)"
			}
			return why
		}
	}
	for _, step := range r.o.Scenario.Steps {
		if f, ok := bare(step).(script.Fault); ok {
			spec := specOf(f)
			if spec.Frame == "" {
				continue
			}
			protocol := r.protocolOf(spec.On)
			if protocol == nil {
				continue // the needs say so
			}
			if !slices.ContainsFunc(protocol.Kinds(), func(k links.KindInfo) bool { return k.Name == spec.Frame }) {
				return fmt.Sprintf("%s has no %q frame", protocol.Name(), spec.Frame)
			}
			fault, _ := faults.Find(f.Verb)
			var illegal *links.ErrIllegal
			if _, err := links.EffectiveAction(protocol, spec.Frame, fault.Action(spec)); errors.As(err, &illegal) {
				return fmt.Sprintf("%s does not apply to %q frames of %s: %s", f.Verb, spec.Frame, protocol.Name(), illegal.Why)
			}
		}
	}
	return ""
}

// protocolOf returns the protocol of the actor's link, or nil.
func (r *run) protocolOf(actor string) links.Protocol {
	if s, ok := systems.As[systems.StoreLinked](r.instance); ok && actor == faults.Store {
		return s.StoreProtocol()
	}
	if n, ok := systems.As[systems.Networked](r.instance); ok && actor != faults.Store {
		return n.Protocol()
	}
	return nil
}
