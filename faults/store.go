package faults

import (
	"context"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/systems"
)

// Verbs that other packages have to know.
const (
	Full       = "full"
	FsyncError = "fsync-error"
	Block      = "block"
	Fill       = "fill"
)

// struck is whom a fault on a store is recorded of.
var struck = map[string]string{Store: Broker, Business: Business}

// storeFaults strike the broker's storage, below the database (the file system)
// or above it (operations of the store contract).
func storeFaults() []Fault {
	fault := func(verb, does, text string) Fault {
		return Fault{Verb: verb, Class: evidence.Store, Strikes: StrikesStore, Text: text, Lasts: true,
			Example: "fault it: " + verb + " store every before operation insert",
			arm: func(ctx context.Context, s Spec, t Targets) (Injection, error) {
				store, err := t.Store(s.Target)
				if err != nil {
					return nil, err
				}
				in := newSignal(nil)
				in.heal, err = store.ArmStore(ctx, systems.StoreFault{Label: s.Label, Verb: does, Operation: s.Operation, After: s.After,
					Of: s.Of, By: s.On, N: s.N, Every: s.Repeat != links.Once, Delay: s.By},
					func(x systems.StoreFired) {
						t.Sink().Record(evidence.Event{Kind: evidence.FaultFired, Actor: struck[s.Target], Fault: s.Label, Frame: x.Operation, Items: x.Items, Struck: does})
						in.fire()
					})
				if err != nil {
					return nil, err
				}
				return in, nil
			}}
	}
	whole := func(verb, text string) Fault {
		f := fault(verb, verb, text)
		f.Whole, f.Example = true, "fault it: "+verb+" store"
		return f
	}
	slow := fault("slow", "slow", "Every operation takes this much longer.")
	slow.Timed = true
	slow.Example = "fault slow: slow store every before operation insert by 2s"
	return []Fault{
		fault("unreachable", "unreachable", "The store is unreachable: the operation fails before it starts, or during it."),
		slow,
		fault(Full, "full", "No space left on device: writes fail."),
		fault(FsyncError, "fsync-error", "fsync of the log fails with EIO: what was written may or may not survive."),
		fault("lose-reply", "lose-reply", "The operation is performed, and its reply is lost."),
		fault(Block, "hold", "The operation blocks until the fault is healed."),
		whole(Fill, "The store's file system, which has a bounded size for it, is filled to the last byte."),
		whole("exhaust", "Others take every connection that the store's server gives."),
		whole("read-only", "The store's server takes no writes, as one that a fail-over has left behind."),
	}
}
