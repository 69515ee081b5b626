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

// storeFaults hooks into the broker's store and files. It reports every store
// operation and applies the armed faults.
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

// Trigger counts matching store operations until a fault is due. The caller
// must serialize its use.
type Trigger struct {
	systems.StoreFault
	layer faulty.Layer
	seen  int
}

// NewTrigger makes the trigger of a fault. Without an operation it matches the
// verb's default. files reports whether there are file operations below the
// database.
func NewTrigger(f systems.StoreFault, files bool) (*Trigger, error) {
	if f.Operation == "" {
		f.Operation = defaultOperation[f.Verb]
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

// Counts reports whether op matches.
func (t *Trigger) Counts(op faulty.Op) bool {
	return op.Layer == t.layer && named(op, t.Operation) && (t.layer == faulty.Contract || op.File == faulty.WAL)
}

// Due counts an operation and reports whether the fault applies to it.
func (t *Trigger) Due() bool {
	t.seen++
	nth := max(t.N, 1)
	return t.seen == nth || t.Every && t.seen > nth
}

// Fired describes one application of the fault.
func (t *Trigger) Fired(op faulty.Op) systems.StoreFired {
	return systems.StoreFired{Operation: t.Operation, Items: ItemsOf(op, t.Operation)}
}

// holdBound ends a hold that nobody heals.
const holdBound = 60 * time.Second

// striking makes each verb's hook.
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

// storeVerbs lists the verbs of striking with the operations to which each
// applies, of the store's contract and of its files.
func storeVerbs(files bool) map[string][]string {
	all := []string{"apply", "load", "content", "rows", "expire", "reestablish"}
	if files {
		all = append(all, fileOperations...)
	}
	for kind := store.Insert; kind <= store.Discard; kind++ {
		all = append(all, kind.String())
	}
	verbs := map[string][]string{"unreachable": all, "lose-reply": all, "slow": all, "block": all, "full": {store.Insert.String()}}
	if files {
		verbs["full"], verbs["fsync-error"] = append(verbs["full"], "write"), []string{"sync"}
	}
	return verbs
}

// OfFiles reports whether an operation is on files, below the database.
func OfFiles(operation string) bool { return slices.Contains(fileOperations, operation) }

// defaultOperation is the operation that a verb applies to by default.
var defaultOperation = map[string]string{"unreachable": "apply", "full": "write", "fsync-error": "sync", "lose-reply": "apply", "slow": "apply", "hold": "apply"}

// fileOperations are below the database; all others are the store's.
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

// named reports whether op is the operation that a script names. With history
// kept, a row is marked instead of deleted; scripts say "delete" for both.
func named(op faulty.Op, operation string) bool {
	return op.Named(operation) || operation == "delete" && op.Named("settle")
}

// due counts the operation and, before it is struck, notifies the parent.
func (a *storeFaults) due(f *armedFault, op faulty.Op) bool {
	a.mu.Lock()
	strikes := f.Due()
	a.mu.Unlock()
	if strikes {
		// If the parent is gone, this process ends too.
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

// Before runs ahead of an operation.
func (a *storeFaults) Before(op faulty.Op) error {
	a.report(evidence.StoreCalled, op, nil)
	for _, f := range a.armed() {
		if err := f.hook.Before(op); err != nil {
			return err
		}
	}
	return nil
}

// After runs behind an operation.
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

// holdAfter withholds an operation's result until it is released.
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
