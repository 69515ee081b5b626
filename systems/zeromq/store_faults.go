package zeromq

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// storeFaults is the one hook of the broker's store and files: it reports every
// operation of the store, and lets the faults that are armed strike.
type storeFaults struct {
	sink   evidence.Sink
	parent *process.Parent

	mu     sync.Mutex
	faults []*armedFault
}

// armedFault is one fault with its trigger.
type armedFault struct {
	*Trigger
	hook faulty.Hook
	free func()
}

// Trigger counts the operations of a store that a fault waits for. It knows no
// lock: whoever has armed it guards it.
type Trigger struct {
	systems.StoreFault
	layer faulty.Layer
	seen  int
}

// NewTrigger of a fault; where it names no operation, it strikes the one that
// its verb is about. files says that there are some below the database.
func NewTrigger(f systems.StoreFault, files bool) (*Trigger, error) {
	if f.Operation == "" {
		f.Operation = natural[f.Verb]
		if f.Verb == "full" && !files {
			f.Operation = "insert"
		}
	}
	t := &Trigger{StoreFault: f, layer: faulty.Contract}
	if OfFiles(f.Operation) {
		if t.layer = faulty.Files; !files {
			return nil, fmt.Errorf("zeromq: the store has no files: no %q to strike", f.Operation)
		}
	}
	return t, nil
}

// Counts says whether op is an operation that the fault waits for.
func (t *Trigger) Counts(op faulty.Op) bool {
	return op.Layer == t.layer && named(op, t.Operation) && (t.layer == faulty.Contract || op.File == faulty.WAL)
}

// Due counts an operation and says whether it is struck.
func (t *Trigger) Due() bool {
	t.seen++
	nth := max(t.N, 1)
	return t.seen == nth || t.Every && t.seen > nth
}

// Fired is what the fault tells of a stroke.
func (t *Trigger) Fired(op faulty.Op) systems.StoreFired {
	return systems.StoreFired{Operation: t.Operation, Items: ItemsOf(op, t.Operation)}
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

// storeVerbs are the verbs of striking, as a script has them, with the
// operations that each can strike: of the store's contract, and of its files.
func storeVerbs() map[string][]string {
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

// OfFiles says whether an operation is one below the database.
func OfFiles(operation string) bool { return slices.Contains(fileOperations, operation) }

// natural is the operation that a verb strikes where the script names none.
var natural = map[string]string{"unreachable": "apply", "full": "write", "fsync-error": "sync", "lose-reply": "apply", "slow": "apply", "hold": "apply"}

// fileOperations are those below the database; all others are the store's.
var fileOperations = []string{"open", "read", "write", "sync", "truncate"}

func newArmory(sink evidence.Sink, p *process.Parent) *storeFaults {
	return &storeFaults{sink: sink, parent: p}
}

func (a *storeFaults) arm(f systems.StoreFault) error {
	strike, ok := striking[f.Verb]
	if !ok {
		return fmt.Errorf("zeromq: the store has no fault %q", f.Verb)
	}
	t, err := NewTrigger(f, true)
	if err != nil {
		return err
	}
	armed := &armedFault{Trigger: t}
	armed.hook, armed.free = strike(f, func(op faulty.Op) bool { return armed.Counts(op) && a.due(armed, op) })
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
func (a *storeFaults) due(f *armedFault, op faulty.Op) bool {
	a.mu.Lock()
	strikes := f.Due()
	a.mu.Unlock()
	if strikes {
		// A parent that is gone hears nothing, and this process ends with it.
		_ = a.parent.Notify("fired", storeFired{f.Label, f.Fired(op)})
	}
	return strikes
}

type storeFired struct {
	Label string
	Fired systems.StoreFired
}

func (a *storeFaults) heal(label string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = slices.DeleteFunc(a.faults, func(f *armedFault) bool {
		if f.Label == label {
			f.free()
			return true
		}
		return false
	})
}

func (a *storeFaults) healAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.faults {
		f.free()
	}
	a.faults = nil
}

func (a *storeFaults) armed() []*armedFault {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.faults)
}

// Before an operation.
func (a *storeFaults) Before(op faulty.Op) error {
	a.report(evidence.StoreCalled, op, nil)
	for _, f := range a.armed() {
		if err := f.hook.Before(op); err != nil {
			return err
		}
	}
	return nil
}

// After it.
func (a *storeFaults) After(op faulty.Op, err error) error {
	for _, f := range a.armed() {
		err = f.hook.After(op, err)
	}
	a.report(evidence.StoreReturned, op, err)
	return err
}

func (a *storeFaults) report(kind evidence.Kind, op faulty.Op, err error) {
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
