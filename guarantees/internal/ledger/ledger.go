// Package ledger reads the events of a run once and keeps what every guarantee
// needs to know of them: store holds the messages in bounded memory, Ledger
// interprets events, and View is what a checker may ask.
//
// Events of different processes are recorded in an order that proves nothing,
// so a message may be delivered in the record before it was published in it.
package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Ledger is brought up to date by Apply, event by event, and by ReadRows when
// all are read. Only the judge holds it; checkers get its View.
type Ledger struct {
	View
	over        bool // the run's last phase has begun
	deadlines   deadlines
	checkpoints map[string]Stamp // the first snapshot of each name
	observes    map[Symbol]bool  // links that have shown the publish frames of their actor
	timelines   int              // how many are kept
}

// View is what a checker may ask of a run. It changes nothing, and neither may
// a checker change what it is given.
type View struct {
	Run
	store
	sessions    map[Symbol]*Session
	actors      map[Symbol]*Actor
	bySymbol    map[Symbol]*Subscriber
	matching    map[Symbol][]*Subscriber // by destination; emptied when a subscription appears
	clock       time.Duration            // the broker's offset
	clockWas    time.Duration            // … before it was last set
	clockSetAt  time.Duration
	active      map[string]bool
	class       map[string]evidence.Class
	held        map[Symbol]windows // by link: when a fault held or delayed what passes
	pauses      windows            // of the broker
	troubles    windows            // faults at work, orders, processes begun and ended
	failures    []failure
	brokerEnded Stamp // its process
}

// Run is what is known of the run as a whole, up to the event being read.
type Run struct {
	Profile   *evidence.Profile
	Limits    *evidence.Limits
	Snapshots []evidence.Snapshot // by Seq

	Now         Stamp // the event being read
	Healed      Stamp // the latest heal or start of the broker
	Fired       Stamp // the latest fault
	ClockSet    bool  // the broker's clock was changed
	Drain       Stamp // its end
	DrainReason evidence.DrainReason
	Partitions  []PartitionStart
	Subscribers []*Subscriber

	DeliverFrames bool // links show deliveries
	HasEffects    bool
	Redelivered   int    // by the broker
	Absorbed      int    // by the consumption log
	Retried       int    // by clients
	Restarted     bool   // the script restarted the broker
	Escaped       string // the first publish that got past its link unseen

	// Known when rows are read.
	BrokerEnd   *evidence.Snapshot // the newest of the broker after the watch, or nil
	BusinessEnd *evidence.Snapshot // the newest of the business database, or nil
	Effects     map[EffectKey][]*evidence.StoredRow
	Strays      []Stray // rows of no publish
}

// EffectKey is a business ID, by its hash, at a logical subscriber; 0 where the
// row names none.
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
	OpenCalled  Stamp // Seq 0: unknown, so nothing is proven of what comes on it
	Ended       Stamp
	Live, heard bool
}

// Subscriber is a logical subscriber: a competing set, a group or a durable
// identity. It is live while one of its sessions is.
type Subscriber struct {
	Name         Symbol
	destinations []Symbol
	Durable      bool // exists from its confirmed declaration, with or without sessions
	declared     Stamp
	Live         int
	LiveSince    Stamp
	Died         Stamp // when it last lost its last session
	Ended        Stamp // when it last lost one that its broker outlived
	InFlight     int
	AckWithheld  Stamp // a fault kept an acknowledgement of its from the system
	freeSince    time.Duration
}

// PartitionStart is a start of the broker under a storage identity.
type PartitionStart struct {
	Stamp
	Names []string // its own, and those it took over by migration
}

// The frames and the actor that have a meaning here.
const (
	FrameDeliver    = "deliver"
	FramePublish    = "publish"
	FrameAccept     = "accept"
	FrameAck        = "ack"
	FrameAckConfirm = "ack-confirm"
	Broker          = "broker"
)

// New gives the ledger of a run of which nothing is read yet.
func New(h *evidence.History) *Ledger {
	p := &h.Manifest.Profile
	l := &Ledger{View: View{
		Run:      Run{Profile: p, Limits: &p.Limits, Snapshots: slices.Clone(h.Snapshots)},
		store:    newStore(p.AckCounting == "automatic"),
		sessions: make(map[Symbol]*Session), actors: make(map[Symbol]*Actor), bySymbol: make(map[Symbol]*Subscriber),
		matching: make(map[Symbol][]*Subscriber),
		active:   make(map[string]bool), class: make(map[string]evidence.Class), held: make(map[Symbol]windows),
	}, observes: make(map[Symbol]bool), checkpoints: make(map[string]Stamp)}
	slices.SortStableFunc(l.Snapshots, func(a, b evidence.Snapshot) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, f := range h.Manifest.Faults {
		l.class[f.Label] = f.Class
	}
	l.HasEffects = slices.ContainsFunc(l.Snapshots, func(s evidence.Snapshot) bool { return s.Source == evidence.SourceBusiness })
	return l
}

// Label names a publish in a sentence.
func (v *View) Label(m *Message) string {
	if m.BusinessID != "" {
		return fmt.Sprintf("%s (%s)", m.BusinessID, v.PublishID(m))
	}
	return v.PublishID(m)
}

// Session gives a session by its name, or nil.
func (v *View) Session(name Symbol) *Session { return v.sessions[name] }

// Subscriber gives a logical subscriber by its name, or nil.
func (v *View) Subscriber(name Symbol) *Subscriber { return v.bySymbol[name] }

// SessionOf gives the session that an event is about.
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

// Matching gives the logical subscribers of a destination.
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

// Ready reports whether a logical subscriber has a consumer now. If none is
// named, whether any of those has that matched the message.
func (v *View) Ready(m *Message, sub Symbol) bool {
	if s := v.bySymbol[sub]; s != nil {
		return s.Live > 0
	}
	return slices.ContainsFunc(v.matching[m.Destination], func(s *Subscriber) bool { return s.Live > 0 })
}

// Lingers reports whether the system may not have noticed yet that a session
// has ended, so that it competes with its successor. A broker that has ended
// since knows no earlier session.
func (v *View) Lingers(s *Subscriber) bool {
	return s.Ended.Seq > v.brokerEnded.Seq && v.Now.At-s.Ended.At <= v.Limits.InFlightBound
}

// ClockRecently is the earliest that the broker's clock was when a frame that
// passes a link now may have been sent.
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
