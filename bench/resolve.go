package bench

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// UsageError is a script that asks for what does not exist: nothing was
// started.
type UsageError struct{ Text string }

func (e *UsageError) Error() string { return e.Text }

// Check says what a script asks for that does not exist.
func Check(s script.Scenario) error {
	_, err := resolve(s)
	return err
}

// Faults of a script, as a run's manifest lists them. An error is Check's.
func Faults(s script.Scenario) ([]evidence.FaultLabel, error) { return resolve(s) }

// resolve looks up every fault and actor that the script names, before anything
// starts, and gives its faults as data.
func resolve(s script.Scenario) ([]evidence.FaultLabel, error) {
	if !isFolderName(s.Name) {
		return nil, &UsageError{fmt.Sprintf("scenario %q: its name is that of its run's folder: leave out slashes and a leading dot, and use at most %d bytes", s.Name, maxFolderName)}
	}
	var found []evidence.FaultLabel
	actors := map[string]string{faults.Broker: "broker", "store": "store"}
	labels := map[string]bool{}
	checkpoints := map[string]int{} // snapshots of each name, in the whole script
	for _, step := range s.Steps {
		if snapshot, ok := bare(step).(script.Snapshot); ok {
			checkpoints[snapshot.Checkpoint]++
		}
	}
	above := map[string]bool{}
	for _, step := range s.Steps {
		line := script.Line(step)
		usage := func(format string, args ...any) error {
			return &UsageError{fmt.Sprintf("scenario %s: %q: %s", s.Name, line, fmt.Sprintf(format, args...))}
		}
		need := func(name, kind string) error {
			if actors[name] != kind {
				return usage("%s is no %s declared above this line", name, kind)
			}
			return nil
		}
		taken := func(checkpoint string) error {
			switch {
			case !above[checkpoint]:
				return usage("no \"snapshot %s\" stands above this line", checkpoint)
			case checkpoints[checkpoint] > 1, checkpoint == awaited:
				return usage("several snapshots are called %s; give the one that is meant a name of its own", checkpoint)
			}
			return nil
		}
		var err error
		switch step := bare(step).(type) {
		case script.Producer:
			if actors[step.Name] != "" {
				err = usage("the name %s is taken", step.Name)
			}
			actors[step.Name] = "producer"
		case script.Consumer:
			if actors[step.Name] != "" {
				err = usage("the name %s is taken", step.Name)
			}
			actors[step.Name] = "consumer"
		case script.Publish:
			err = need(step.By, "producer")
		case script.Retry:
			err = need(step.By, "producer")
		case script.Resolve:
			err = need(step.By, "producer")
		case script.Settle:
			if step.By != "" {
				err = need(step.By, "producer")
			}
		case script.Start:
			if step.Actor != faults.Broker {
				err = need(step.Actor, "consumer")
			}
		case script.Stop:
			err = need(step.Actor, "consumer")
		case script.Restart:
			err = need(step.Actor, "broker")
		case script.Snapshot:
			above[step.Checkpoint] = true
		case script.Restore:
			err = taken(step.Checkpoint)
		case script.Rewind:
			if err = need(step.Consumer, "consumer"); err == nil {
				err = taken(step.Checkpoint)
			}
		case script.Heal:
			if !labels[step.Label] {
				err = usage("no fault %s stands above this line", step.Label)
			}
		case script.Fault:
			f, ok := faults.Find(step.Verb)
			if !ok {
				return nil, usage("word 3: %q is no fault%s", step.Verb, script.Suggest(step.Verb, verbs()))
			}
			spec := specOf(step)
			if err := f.Check(spec); err != nil {
				return nil, usage("%v", err)
			}
			for _, name := range []string{step.On, step.Target} {
				if name != "" && actors[name] == "" {
					return nil, usage("%s is not declared above this line", name)
				}
			}
			labels[step.Label] = true
			found = append(found, evidence.FaultLabel{Label: step.Label, Class: f.ClassOf(spec), Verb: step.Verb, Line: line})
		}
		if err != nil {
			return nil, err
		}
	}
	for _, c := range s.Reached {
		if (c.Verb == evidence.CondFired || c.Verb == evidence.CondInFlight) && !labels[c.Subject] {
			return nil, &UsageError{fmt.Sprintf("scenario %s: \"reached %s\": there is no fault %s", s.Name, c.Line, c.Subject)}
		}
	}
	return found, nil
}

// maxFolderName leaves room for what is appended to a scenario's name.
const maxFolderName = 200

// isFolderName keeps a script that somebody else has written from choosing
// where files are made.
func isFolderName(name string) bool {
	return name != "" && len(name) <= maxFolderName && name[0] != '.' && !strings.ContainsFunc(name, func(r rune) bool {
		return r == '/' || r == '\\' || unicode.IsControl(r)
	})
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

// Needs of a scenario: what it says, and what its steps imply.
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
	for _, step := range s.Steps {
		switch step := bare(step).(type) {
		case script.Consumer:
			if step.Child {
				add(systems.NeedConnector)
			}
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
		case script.Restart:
			add(systems.NeedProcess)
		case script.Set:
			add(systems.NeedIdentity)
		case script.Plant:
			add(systems.NeedPlanting)
		case script.Redrive, script.Discard:
			add(systems.NeedDeadLetters)
		case script.Rewind:
			add(systems.NeedRewind)
		case script.Provoke:
			add(systems.NeedRedelivery)
		case script.Fault:
			f, _ := faults.Find(step.Verb)
			spec := specOf(step)
			if spec.Frame != "" {
				add(systems.NeedFrames)
			}
			switch spec.Frame {
			case links.FrameAck, links.FrameAckConfirm:
				add(systems.NeedAcks)
			case links.FrameAccept:
				add(systems.NeedAnswer)
			}
			if spec.Operation != "" {
				add(systems.NeedStoreFaults)
			}
			switch f.Strikes {
			case faults.StrikesLink:
				add(systems.NeedLinks)
			case faults.StrikesStore:
				add(systems.NeedStoreFaults)
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

// needed gives why a scenario does not apply, as far as a description tells.
func needed(s script.Scenario, desc systems.Description) string {
	for _, n := range Needs(s) {
		if why, lacks := desc.Lacks[n]; lacks {
			return why
		}
	}
	return ""
}

// abilities are found on the running instance by type assertion.
var abilities = map[systems.Need]func(systems.System, systems.Instance) bool{
	systems.NeedLinks: has[systems.Networked],
	systems.NeedFrames: func(_ systems.System, i systems.Instance) bool {
		n, ok := i.(systems.Networked)
		return ok && n.Protocol() != nil
	},
	systems.NeedProcess:     has[systems.Process],
	systems.NeedRows:        has[systems.Inspector],
	systems.NeedDeadLetters: has[systems.Administrator],
	systems.NeedStoreFaults: has[systems.StoreFaulter],
	systems.NeedClock:       has[systems.Clocked],
	systems.NeedIdentity:    has[systems.Configurable],
	systems.NeedPlanting:    has[systems.Planter],
	systems.NeedRewind:      has[systems.Rewinder],
	systems.NeedConnector: func(s systems.System, _ systems.Instance) bool {
		_, ok := s.(systems.Connector)
		return ok
	},
}

func has[T any](_ systems.System, i systems.Instance) bool {
	_, ok := i.(T)
	return ok
}

// lacking gives why the scenario does not apply to the instance that was
// started: an ability that is not there, a frame that its protocol has not.
func (b *Bench) lacking() string {
	for _, n := range Needs(b.o.Scenario) {
		if found, ok := abilities[n]; ok && !found(b.o.System, b.instance) {
			return fmt.Sprintf("%s has no %s", b.desc.System, n)
		}
	}
	network, ok := b.instance.(systems.Networked)
	if !ok || network.Protocol() == nil {
		return ""
	}
	protocol := network.Protocol()
	kinds := map[string]bool{}
	for _, k := range protocol.Kinds() {
		kinds[k.Name] = true
	}
	for _, step := range b.o.Scenario.Steps {
		if f, ok := bare(step).(script.Fault); ok {
			spec := specOf(f)
			if spec.Frame == "" {
				continue
			}
			if !kinds[spec.Frame] {
				return fmt.Sprintf("%s has no %q frame", protocol.Name(), spec.Frame)
			}
			fault, _ := faults.Find(f.Verb)
			var illegal *links.ErrIllegal
			if _, err := links.Done(protocol, spec.Frame, fault.Action(spec)); errors.As(err, &illegal) {
				return fmt.Sprintf("%s does not apply to %q frames of %s: %s", f.Verb, spec.Frame, protocol.Name(), illegal.Why)
			}
		}
	}
	return ""
}
