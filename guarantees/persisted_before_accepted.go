package guarantees

import (
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var persistedBeforeAccepted = Guarantee{
	Name: evidence.PersistedBeforeAccepted, Usual: "write-ahead",
	Text: "Accepted is never answered before the message is persisted.",
	Rule: "A publish whose write the store was made to fail is not answered Accepted, unless a later write of it was done. While the store's insert, commit or sync is held, no answer Accepted passes the link for a publish whose write is held or whose frame came during the hold. Never judged from a snapshot: the row may be gone already.",
	new: func() checker {
		return &ahead{held: make(map[string]map[ref]bool), failed: make(map[ref]uint64), told: make(map[ref]bool), done: make(map[uint64]time.Duration)}
	},
}

// persisting lists the operations required for persistence: of the store, its
// database and the underlying file.
var persisting = map[string]bool{"insert": true, "commit": true, "sync": true}

// failingWrites are the store faults that prevent a write altogether.
var failingWrites = map[string]bool{"unreachable": true, "full": true}

// ahead tracks holds and failures of the store.
type ahead struct {
	held     map[string]map[ref]bool // by fault: the publishes that cannot be persisted yet
	failed   map[ref]uint64          // publishes whose insert failed by a fault and has not succeeded since, with the fault's event
	answered []answer
	told     map[ref]bool
	done     map[uint64]time.Duration // by hash of the message ID: when its write first completed
}

// answer is an Accepted that may have been sent too early.
type answer struct {
	ref ref
	stamp
	failed uint64 // the event that made its write fail; 0: the write was held
}

func (c *ahead) on() []evidence.Kind {
	return []evidence.Kind{evidence.FaultFired, evidence.FaultHealed, evidence.FrameCarried, evidence.PublishReturned, evidence.StoreReturned, evidence.ProcessExited}
}

func (c *ahead) observe(v view, e *evidence.Event, m *message, _ *receipt, out *ruling) {
	switch e.Kind {
	case evidence.FaultFired:
		if e.Struck == "hold" && persisting[e.Frame] && (e.Link == "" || v.ClassOf(e.Fault) == evidence.Store) {
			if c.held[e.Fault] == nil {
				c.held[e.Fault] = make(map[ref]bool)
			}
			for _, it := range e.Items {
				if m := v.Resolve(it.PublishID, it.MessageID, it.BusinessID); m != nil {
					c.hold(e.Fault, m.Ref, out)
					// The store has not answered yet, so an earlier Accepted
					// was premature, unless another try was stored before.
					if m.Accepted() && m.Sole() {
						c.answer(m, m.Returned)
					}
				}
			}
		}
		if failingWrites[e.Struck] && e.Frame == "insert" {
			for _, it := range e.Items {
				if m := v.Resolve(it.PublishID, it.MessageID, it.BusinessID); m != nil && m.Sole() && c.failed[m.Ref] == 0 {
					c.failed[m.Ref] = e.Seq
					out.instances++
				}
			}
		}
	case evidence.StoreReturned:
		if e.OK && persisting[e.Frame] {
			for _, it := range e.Items {
				if m := v.Resolve(it.PublishID, it.MessageID, it.BusinessID); m != nil {
					delete(c.failed, m.Ref)
				}
				if k := ledger.Hash(it.MessageID); k != 0 && len(c.held)+len(c.answered) > 0 {
					if at, known := c.done[k]; !known || e.At < at {
						c.done[k] = e.At
					}
				}
			}
		}
	case evidence.FaultHealed:
		delete(c.held, e.Fault)
	case evidence.ProcessExited:
		if e.Actor == ledger.Broker {
			clear(c.held) // a hold on the broker's store ends with the broker
		}
	case evidence.PublishReturned:
		if e.Acceptance == evidence.Accepted {
			c.answer(m, ledger.StampOf(e))
		}
	case evidence.FrameCarried:
		if m == nil || e.Struck != "" {
			return
		}
		switch e.Frame {
		case ledger.FramePublish:
			for label := range c.held {
				c.hold(label, m.Ref, out)
			}
		case ledger.FrameAccept:
			if !e.Negative {
				c.answer(m, ledger.StampOf(e))
			}
		}
	}
}

func (c *ahead) hold(label string, r ref, out *ruling) {
	if !c.held[label][r] {
		c.held[label][r] = true
		out.instances++
	}
}

// answer records an answer during a hold; whether it is Accepted is known
// later.
func (c *ahead) answer(m *message, at stamp) {
	if m == nil || c.told[m.Ref] {
		return
	}
	failed := c.failed[m.Ref]
	held := false
	for _, refs := range c.held {
		held = held || refs[m.Ref]
	}
	if held || failed != 0 {
		c.told[m.Ref] = true
		c.answered = append(c.answered, answer{m.Ref, at, failed})
	}
}

// repeats reports whether the answer may be that of an earlier try that was
// not held.
func (c *ahead) repeats(v view, m *message, a answer) bool {
	return slices.ContainsFunc(v.Aliases(m), func(o *message) bool {
		return o != m && o.Accepted() && o.Returned.Seq < a.Seq && !c.told[o.Ref]
	})
}

// persisted reports whether the write had completed by the time of the answer.
// A hold ends before its end is recorded, and events from the broker's process
// may be recorded after those from its links.
func (c *ahead) persisted(m *message, a answer) bool {
	at, done := c.done[m.MessageKey]
	return done && at <= a.At
}

func (c *ahead) conclude(v view, out *ruling) {
	for _, a := range c.answered {
		m := v.Message(a.ref)
		if !m.Accepted() || c.repeats(v, m, a) || a.failed == 0 && c.persisted(m, a) {
			continue
		}
		f := v.finding(m, nil, "accepted-before-persisted", BrokerToStore, a.failed, a.Seq, m.Returned.Seq)
		f.Text = fmt.Sprintf("%s was accepted while its write was held", v.Label(m))
		if a.failed != 0 {
			f.Kind, f.Text = "accepted-though-failed", fmt.Sprintf("%s was accepted though its write had failed", v.Label(m))
		}
		f.Follows = []string{evidence.NoAcceptedLoss}
		out.violate(byEvents, f)
	}
}
