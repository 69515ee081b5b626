package zeromq

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// armory is the one hook of the broker's store and files: it reports every
// operation of the store, and lets the faults that are armed strike.
type armory struct {
	sink   evidence.Sink
	parent *containers.Parent

	mu     sync.Mutex
	faults []*armedFault
}

// armedFault is one fault with its trigger.
type armedFault struct {
	spec systems.StoreFault
	hook faulty.Hook
	free func()
	seen int
}

// holdBound ends a hold that nobody heals, so that no store hangs for ever.
const holdBound = 60 * time.Second

// striking makes the hook of each verb.
var striking = map[string]func(f systems.StoreFault, when func(faulty.Op) bool) (faulty.Hook, func()){
	"unreachable": func(_ systems.StoreFault, when func(faulty.Op) bool) (faulty.Hook, func()) {
		return released(faulty.Unreachable(when))
	},
	"full": func(_ systems.StoreFault, when func(faulty.Op) bool) (faulty.Hook, func()) {
		return released(faulty.Full(when))
	},
	"fsync-error": func(_ systems.StoreFault, when func(faulty.Op) bool) (faulty.Hook, func()) {
		return released(faulty.FsyncError(when))
	},
	"lose-reply": func(_ systems.StoreFault, when func(faulty.Op) bool) (faulty.Hook, func()) {
		return released(faulty.ReplyLost(when))
	},
	"slow": func(f systems.StoreFault, when func(faulty.Op) bool) (faulty.Hook, func()) {
		return released(faulty.Hold(when, f.Delay))
	},
	"hold": func(f systems.StoreFault, when func(faulty.Op) bool) (faulty.Hook, func()) {
		if f.After {
			h := &holdAfter{when: when, free: make(chan struct{})}
			return h, h.release
		}
		return released(faulty.Hold(when, holdBound))
	},
}

func released(f *faulty.Fault) (faulty.Hook, func()) { return f, f.Release }

// storeFaults are the verbs of striking, as a script has them, with the
// operations that each can strike: of the store's contract, and of its files.
func storeFaults() map[string][]string {
	all := append([]string{"apply", "load", "rows", "expire", "reestablish"}, fileOperations...)
	for kind := store.Insert; kind <= store.Discard; kind++ {
		all = append(all, kind.String())
	}
	return map[string][]string{
		"unreachable": all, "lose-reply": all, "slow": all, "block": all,
		"full":        {"write", store.Insert.String()},
		"fsync-error": {"sync"},
	}
}

// natural is the operation that a verb strikes where the script names none.
var natural = map[string]string{"unreachable": "apply", "full": "write", "fsync-error": "sync", "lose-reply": "apply", "slow": "apply", "hold": "apply"}

// fileOperations are those below the database; all others are the store's.
var fileOperations = []string{"open", "read", "write", "sync", "truncate"}

func newArmory(sink evidence.Sink, p *containers.Parent) *armory {
	return &armory{sink: sink, parent: p}
}

func (a *armory) arm(f systems.StoreFault) error {
	strike, ok := striking[f.Verb]
	if !ok {
		return fmt.Errorf("zeromq: the store has no fault %q", f.Verb)
	}
	if f.Operation == "" {
		f.Operation = natural[f.Verb]
	}
	layer := faulty.Contract
	if slices.Contains(fileOperations, f.Operation) {
		layer = faulty.Files
	}
	armed := &armedFault{spec: f}
	armed.hook, armed.free = strike(f, func(op faulty.Op) bool {
		if op.Layer != layer || !named(op, f.Operation) || layer == faulty.Files && op.File != faulty.WAL {
			return false
		}
		return a.due(armed, op)
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = append(a.faults, armed)
	return nil
}

// named says whether op is the operation that a script means. Where history is
// kept, the end of a row is a mark and not a delete; a script says "delete" for
// both.
func named(op faulty.Op, operation string) bool {
	return op.Named(operation) || operation == "delete" && op.Named("settle")
}

// due counts the operation and tells the parent when it is struck, before it is.
func (a *armory) due(f *armedFault, op faulty.Op) bool {
	a.mu.Lock()
	f.seen++
	nth := max(f.spec.N, 1)
	strikes := f.seen == nth || f.spec.Every && f.seen > nth
	a.mu.Unlock()
	if strikes {
		// A parent that is gone hears nothing, and this process ends with it.
		_ = a.parent.Notify("fired", storeFired{f.spec.Label, systems.StoreFired{Operation: f.spec.Operation, Items: ItemsOf(op, f.spec.Operation)}})
	}
	return strikes
}

type storeFired struct {
	Label string
	Fired systems.StoreFired
}

func (a *armory) heal(label string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = slices.DeleteFunc(a.faults, func(f *armedFault) bool {
		if f.spec.Label == label {
			f.free()
			return true
		}
		return false
	})
}

func (a *armory) healAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.faults {
		f.free()
	}
	a.faults = nil
}

func (a *armory) armed() []*armedFault {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.faults)
}

// Before an operation.
func (a *armory) Before(op faulty.Op) error {
	a.report(evidence.StoreCalled, op, nil)
	for _, f := range a.armed() {
		if err := f.hook.Before(op); err != nil {
			return err
		}
	}
	return nil
}

// After it.
func (a *armory) After(op faulty.Op, err error) error {
	for _, f := range a.armed() {
		err = f.hook.After(op, err)
	}
	a.report(evidence.StoreReturned, op, err)
	return err
}

func (a *armory) report(kind evidence.Kind, op faulty.Op, err error) {
	for _, e := range StoreEvents(kind, op, err) {
		a.sink.Record(e)
	}
}

// holdAfter keeps the answer of an operation that is done until it is released.
type holdAfter struct {
	when func(faulty.Op) bool
	once sync.Once
	free chan struct{}
}

func (h *holdAfter) Before(faulty.Op) error { return nil }

func (h *holdAfter) After(op faulty.Op, err error) error {
	if !h.when(op) {
		return err
	}
	t := time.NewTimer(holdBound)
	defer t.Stop()
	select {
	case <-h.free:
	case <-t.C:
	}
	return err
}

func (h *holdAfter) release() { h.once.Do(func() { close(h.free) }) }
