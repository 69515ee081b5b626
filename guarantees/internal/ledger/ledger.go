// Package ledger reads the events of a run once and keeps what the guarantees
// need: store holds the messages in bounded memory, Ledger interprets events,
// and View is what checkers may query.
//
// The order in which events of different processes are recorded proves
// nothing, so a delivery may be recorded before its publish.
package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Ledger is updated by Apply, event by event, and by ReadRows after the last.
// Only the judge holds it; checkers get its View.
type Ledger struct {
	View
	over        bool // the run's last phase has begun
	deadlines   deadlines
	checkpoints map[string]Stamp // the first snapshot of each name
	observes    map[Symbol]bool  // links that showed a publish frame of their actor
	timelines   int              // number of timelines kept
	heldPublish map[Symbol]Ref   // by link: the publish that a fault held last
}

// View is what checkers may query about a run. It is read-only, and checkers
// must not modify what it returns.
type View struct {
	Run
	store
	sessions    map[Symbol]*Session
	actors      map[Symbol]*Actor
	bySymbol    map[Symbol]*Subscriber
	matching    map[Symbol][]*Subscriber // by destination; reset by each new subscription
	clock       time.Duration            // the broker's clock offset
	clockWas    time.Duration            // … before the latest change
	clockSetAt  time.Duration
	active      map[string]bool
	class       map[string]evidence.Class
	held        map[Symbol]windows // by link: when a fault held or delayed its frames
	pauses      windows            // of the broker
	troubles    windows            // active faults, orders, starts and ends of processes
	failures    []failure
	brokerEnded Stamp // when its process last ended
}

// Run is what is known about the run as a whole, up to the current event.
type Run struct {
	Profile   *evidence.Profile
	Limits    *evidence.Limits
	Snapshots []evidence.Snapshot // in order of Seq

	Now         Stamp // the current event
	Healed      Stamp // the latest heal or broker start
	Fired       Stamp // the latest fault to fire
	ClockSet    bool  // the broker's clock was changed
	Drain       Stamp // the end of the drain
	DrainReason evidence.DrainReason
	Partitions  []PartitionStart
	Subscribers []*Subscriber

	DeliverFrames bool // links show deliver frames
	HasEffects    bool
	Redelivered   int    // by the broker
	Absorbed      int    // by the consumption log
	Retried       int    // by clients
	Restarted     bool   // a script step restarted the broker
	Escaped       string // the first publish that bypassed its link

	// Set once rows are read.
	BrokerEnd   *evidence.Snapshot // the broker's newest snapshot after the watch, or nil
	BusinessEnd *evidence.Snapshot // the business database's newest snapshot, or nil
	Effects     map[EffectKey][]*evidence.StoredRow
	Strays      []Stray // rows that belong to no publish
}

// EffectKey is the hash of a business ID and a logical subscriber, which is 0
// if the row names none.
type EffectKey struct {
	Business uint64
	Sub      Symbol
}

// Stray is a stored row that belongs to no publish.
type Stray struct {
	Snapshot *evidence.Snapshot
	Row      *evidence.StoredRow
}

// Actor is a producer or consumer over all its sessions.
type Actor struct {
	Name     Symbol
	sub      *Subscriber
	sessions []*Session
}

type Session struct {
	Actor       *Actor
	Sub         *Subscriber
	OpenCalled  Stamp // Seq 0: unknown, so nothing is proven about the session
	Ended       Stamp
	Live, heard bool
}

// Subscriber is a logical subscriber: a competing set, a group or a durable
// identity. It is live while one of its sessions is.
type Subscriber struct {
	Name         Symbol
	destinations []Symbol
	Durable      bool // exists from its confirmed declaration on, with or without sessions
	declared     Stamp
	Live         int
	LiveSince    Stamp
	Died         Stamp // when it last lost its only remaining session
	Ended        Stamp // when it last lost a session that its broker outlived
	InFlight     int
	AckWithheld  Stamp // when a fault withheld one of its acknowledgements
	freeSince    time.Duration
}

// PartitionStart is a broker start under a storage identity.
type PartitionStart struct {
	Stamp
	Names []string // its own, then those taken over by migration
}

// Frame kinds and the actor that the ledger interprets.
const (
	FrameDeliver    = "deliver"
	FramePublish    = "publish"
	FrameAccept     = "accept"
	FrameAck        = "ack"
	FrameAckConfirm = "ack-confirm"
	Broker          = "broker"
)

// New returns the ledger of a run before its first event.
func New(h *evidence.History) *Ledger {
	p := &h.Manifest.Profile
	l := &Ledger{View: View{
		Run:      Run{Profile: p, Limits: &p.Limits, Snapshots: slices.Clone(h.Snapshots)},
		store:    newStore(p.AckCounting == "automatic"),
		sessions: make(map[Symbol]*Session), actors: make(map[Symbol]*Actor), bySymbol: make(map[Symbol]*Subscriber),
		matching: make(map[Symbol][]*Subscriber),
		active:   make(map[string]bool), class: make(map[string]evidence.Class), held: make(map[Symbol]windows),
	}, observes: make(map[Symbol]bool), heldPublish: make(map[Symbol]Ref), checkpoints: make(map[string]Stamp)}
	slices.SortStableFunc(l.Snapshots, func(a, b evidence.Snapshot) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, f := range h.Manifest.Faults {
		l.class[f.Label] = f.Class
	}
	l.HasEffects = slices.ContainsFunc(l.Snapshots, func(s evidence.Snapshot) bool { return s.Source == evidence.SourceBusiness })
	return l
}

// Label describes a publish within a sentence.
func (v *View) Label(m *Message) string {
	if m.BusinessID != "" {
		return fmt.Sprintf("%s (%s)", m.BusinessID, v.PublishID(m))
	}
	return v.PublishID(m)
}

// Session returns a session by name, or nil.
func (v *View) Session(name Symbol) *Session { return v.sessions[name] }

// Subscriber returns a logical subscriber by name, or nil.
func (v *View) Subscriber(name Symbol) *Subscriber { return v.bySymbol[name] }

// SessionOf returns the session that an event is about.
func (v *View) SessionOf(e *evidence.Event) *Session {
	id := v.Symbol(cmp.Or(e.Session, e.Actor))
	s := v.sessions[id]
	if s == nil {
		a := v.actorOf(e.Actor)
		s = &Session{Actor: a}
		v.sessions[id] = s
		a.sessions = append(a.sessions, s)
	}
	return s
}

func (v *View) actorOf(name string) *Actor {
	id := v.Symbol(name)
	a := v.actors[id]
	if a == nil {
		a = &Actor{Name: id}
		v.actors[id] = a
	}
	return a
}

// Matching returns the logical subscribers of a destination.
func (v *View) Matching(destination Symbol) []*Subscriber {
	subs, known := v.matching[destination]
	if !known {
		for _, s := range v.Subscribers {
			if slices.ContainsFunc(s.destinations, func(d Symbol) bool {
				return evidence.Filter(v.Name(d)).Matches(v.Name(destination))
			}) {
				subs = append(subs, s)
			}
		}
		v.matching[destination] = subs
	}
	return subs
}

// Ready reports whether a logical subscriber has a consumer now. If sub is 0,
// it reports whether any subscriber of m's destination has one.
func (v *View) Ready(m *Message, sub Symbol) bool {
	if s := v.bySymbol[sub]; s != nil {
		return s.Live > 0
	}
	return slices.ContainsFunc(v.matching[m.Destination], func(s *Subscriber) bool { return s.Live > 0 })
}

// Lingers reports whether the system may not have noticed yet that a session
// has ended, so that it still competes with its successor. A broker that has
// ended since knows no earlier session.
func (v *View) Lingers(s *Subscriber) bool {
	return s.Ended.Seq > v.brokerEnded.Seq && v.Now.At-s.Ended.At <= v.Limits.InFlightBound
}

// ClockRecently returns the earliest clock offset that the broker can have had
// when it sent a frame that passes a link now.
func (v *View) ClockRecently() time.Duration {
	if v.Now.At-v.clockSetAt <= v.Limits.InFlightBound {
		return min(v.clock, v.clockWas)
	}
	return v.clock
}

// Moved reports whether the broker ran under more than one storage identity.
func (v *View) Moved() bool {
	return slices.ContainsFunc(v.Partitions, func(p PartitionStart) bool { return p.Names[0] != v.Partitions[0].Names[0] })
}
