package explore

import (
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/zmtp"
	"github.com/custodymq/custody/script"
)

// arm readies a fault; it is in force, or has struck, when arm returns. What is
// recorded, and when, is as faults and links do it.
func (w *world) arm(t *task, s script.Fault) error {
	f, _ := faults.Find(s.Verb)
	frame, _ := eventOf(s)
	w.record(evidence.Event{Kind: evidence.FaultArmed, Actor: "harness", Fault: s.Label, Link: s.On, Frame: frame})
	undo, err := w.strikes(t, f, s, frame)
	if err != nil {
		return err
	}
	w.injections = append(w.injections, &injection{s.Label, undo})
	return nil
}

func (w *world) healOne(t *task, label string) error {
	for i, in := range w.injections {
		if in.label == label {
			w.injections = append(w.injections[:i:i], w.injections[i+1:]...)
			if err := in.undo(t); err != nil {
				return err
			}
			w.record(evidence.Event{Kind: evidence.FaultHealed, Actor: "harness", Fault: label})
			return nil
		}
	}
	return nil // healed before
}

// strikes gives how a fault is undone.
func (w *world) strikes(t *task, f faults.Fault, s script.Fault, frame string) (func(*task) error, error) {
	switch f.Strikes {
	case faults.StrikesFrame:
		a, err := w.aimAt(s, actionOf(s), frame, links.Repeat(s.Repeat), nil)
		if err != nil {
			return nil, err
		}
		return func(*task) error { a.heal(); return nil }, nil
	case faults.StrikesLink:
		return w.strikeLink(s)
	case faults.StrikesProcess:
		return w.strikeProcess(t, s, frame)
	case faults.StrikesStore:
		return w.strikeStore(s)
	case faults.StrikesClock:
		set := func(d time.Duration) {
			w.clock = d
			w.record(evidence.Event{Kind: evidence.ClockSet, Actor: s.Target, Fault: s.Label, Offset: d})
		}
		set(s.By)
		w.record(evidence.Event{Kind: evidence.FaultFired, Actor: s.Target, Fault: s.Label, Struck: "clock"})
		return func(*task) error { set(0); return nil }, nil
	}
	return nil, &UnsupportedError{"strike with " + s.Verb}
}

// actionOf a fault on a frame.
func actionOf(s script.Fault) links.Action {
	switch {
	case s.Verb == "cut" && s.When == script.After:
		return links.CutAfter
	case s.Verb == "cut":
		return links.CutBefore
	case s.Verb == "hold" && s.When == script.After:
		return links.HoldAfter
	}
	return links.Action(s.Verb)
}

// aimAt arms a strike at a frame of an actor's link.
func (w *world) aimAt(s script.Fault, action links.Action, frame string, repeat links.Repeat, onHit func(*strike, links.Frame)) (*strike, error) {
	known := false
	for _, k := range (zmtp.Protocol{}).Kinds() {
		known = known || k.Name == frame
	}
	if !known {
		return nil, fmt.Errorf("explore: no %q frame to strike", frame)
	}
	if err := (zmtp.Protocol{}).Legal(frame, action); err != nil {
		return nil, err
	}
	if action == links.Delay && s.By <= 0 {
		return nil, errors.New("explore: a delay needs a positive duration")
	}
	l := w.links[s.On]
	a := &strike{Strike: links.Strike{Label: s.Label, Action: action, Kind: frame, N: max(s.N, 1), Of: s.Of, Repeat: repeat, Delay: s.By}, link: l, onHit: onHit}
	a.at = a.N
	l.armed = append(l.armed, a)
	return a, nil
}

func (w *world) strikeLink(s script.Fault) (func(*task) error, error) {
	l := w.links[s.On]
	a := &strike{Strike: links.Strike{Label: s.Label, Action: links.Action(s.Verb)}, link: l}
	switch s.Verb {
	case "black-hole":
		l.blackHole(a)
	case "down":
		l.down = true
		l.cutAll("link down")
		a.fire(nil, evidence.NoDirection, links.Frame{})
	case "reset":
		for _, n := range l.cutAll("reset") {
			a.fire(n, evidence.NoDirection, links.Frame{})
		}
	default:
		return nil, &UnsupportedError{"strike a link with " + s.Verb}
	}
	return func(*task) error { a.heal(); return nil }, nil
}

// strikeProcess kills, shuts down or pauses a process: at once, or at a hand-over
// that is held while it does.
func (w *world) strikeProcess(t *task, s script.Fault, frame string) (func(*task) error, error) {
	if s.Target != faults.Broker && (w.consumers[s.Target] == nil || !w.consumers[s.Target].spec.Child || s.Verb == "pause") {
		return nil, &UnsupportedError{fmt.Sprintf("%s %s", s.Verb, s.Target)}
	}
	p := &processStroke{w: w, spec: s}
	switch _, operation := eventOf(s); {
	case frame != "":
		action := links.Hold
		if s.When == script.After {
			action = links.HoldAfter
		}
		gate, err := w.aimAt(s, action, frame, links.Once, func(gate *strike, _ links.Frame) {
			p.soon(nil, func() { gate.release(s.Verb == "pause") })
		})
		if err != nil {
			return nil, err
		}
		p.ungate = gate.heal
	case operation != "":
		if w.broker == nil {
			return nil, errors.New("explore: the broker is down")
		}
		armory := w.broker.armory
		gate, err := armory.arm(faults.StoreFault{Verb: "hold", Operation: operation, After: s.When == script.After, N: s.N},
			func(_ string, items []evidence.FrameItem) {
				if !p.begun { // one stroke only
					p.soon(items, func() {})
				}
			})
		if err != nil {
			return nil, err
		}
		p.ungate = func() { armory.heal(gate) }
	default:
		p.ungate = func() {}
		if err := p.strike(t, nil); err != nil {
			return nil, err
		}
	}
	return p.heal, nil
}

// processStroke is one fault on a process.
type processStroke struct {
	w      *world
	spec   script.Fault
	ungate func()
	begun  bool
	fired  bool
	ended  bool
	err    error
	struck *process
}

// soon strikes beside whatever has come to the hand-over.
func (p *processStroke) soon(items []evidence.FrameItem, release func()) {
	p.begun = true
	p.w.start(func(t *task) {
		p.err = p.strike(t, items)
		release()
		p.ended = true
	})
}

func (p *processStroke) strike(t *task, items []evidence.FrameItem) error {
	w, s := p.w, p.spec
	p.struck = w.broker
	switch {
	case s.Target != faults.Broker && s.Verb == "kill":
		w.consumers[s.Target].kill()
	case s.Target != faults.Broker:
		if err := w.consumers[s.Target].stop(t); err != nil {
			return err
		}
	case w.broker == nil:
		return fmt.Errorf("explore: %s: the broker is down", s.Label)
	case s.Verb == "kill":
		w.broker.kill()
	case s.Verb == "shutdown":
		w.broker.shutdown(t)
	default:
		w.broker.pause()
		w.record(evidence.Event{Kind: evidence.ProcessPaused, Actor: faults.Broker, OK: true})
	}
	frame, operation := eventOf(s)
	w.record(evidence.Event{Kind: evidence.FaultFired, Actor: s.Target, Fault: s.Label, Link: s.On, Frame: frame + operation, Items: items, Struck: s.Verb})
	p.fired = true
	return nil
}

func (p *processStroke) heal(t *task) error {
	w := p.w
	if p.begun && !t.wait(w.now+startBound, func() bool { return p.ended }) {
		return fmt.Errorf("explore: %s is still being made", p.spec.Label)
	}
	if !p.fired || p.spec.Verb == "pause" {
		defer p.ungate()
	}
	switch {
	case p.err != nil || !p.fired || p.spec.Target != faults.Broker:
		return p.err
	case p.spec.Verb == "pause":
		w.record(evidence.Event{Kind: evidence.ProcessContinued, Actor: faults.Broker})
		p.struck.resume()
		return nil
	}
	return w.revive(t)
}

// doing is what a verb on the store asks of it.
var doing = map[string]string{"unreachable": "unreachable", "slow": "slow", "full": "full", "lose-reply": "lose-reply", "block": "hold"}

func (w *world) strikeStore(s script.Fault) (func(*task) error, error) {
	does := doing[s.Verb]
	if does == "" {
		return nil, errFiles
	}
	if w.broker == nil {
		return nil, errors.New("explore: the broker is down")
	}
	armory := w.broker.armory
	_, operation := eventOf(s)
	f, err := armory.arm(faults.StoreFault{Verb: does, Operation: operation, After: s.When == script.After, N: s.N, Every: s.Repeat != script.Once, Delay: s.By},
		func(operation string, items []evidence.FrameItem) {
			w.record(evidence.Event{Kind: evidence.FaultFired, Actor: faults.Broker, Fault: s.Label, Frame: operation, Items: items, Struck: does})
		})
	if err != nil {
		return nil, err
	}
	return func(*task) error { armory.heal(f); return nil }, nil
}
