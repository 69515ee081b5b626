package ledger

import (
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Message is what is known about one publish. The ledger writes it; checkers
// only read it. Once settled it shrinks (see store.freeze); Frozen says that
// the record was restored from the little that is kept then.
type Message struct {
	*slot // its identity, which outlives the record
	Ref   Ref

	BusinessID, MessageID string
	publishID             string
	Actor, Session        Symbol
	Key                   uint64 // hash of the ordering key
	TTL                   time.Duration
	Called, Returned      Stamp
	Acceptance            evidence.Acceptance
	ToldOK                bool          // the call returned success to its caller
	Alias                 bool          // answered as a duplicate of an earlier publish
	Named                 bool          // MessageID was assigned by the system; until then it is the requested one
	Clock                 time.Duration // the broker's clock offset when it answered
	Frozen                bool

	Receipts []Receipt
	Struck   []Strike // by the harness's own faults
	Lookups  []Lookup
	Rows     []Row  // in broker snapshots; set once all events are read
	Steps    []Step // of its custody; nil if not kept

	published    Stamp // its publish frame passed a link
	discarded    bool  // its held frame died with the process
	publishes    int   // number of publish frames: a client library may send one more than once
	Affirmed     Stamp // an answer that takes responsibility passed a link
	Denied       Stamp // … or one that does not
	Carried      Stamp // a deliver frame of it passed a link
	Sent         int   // number of deliver frames
	Withheld     Stamp // … or was withheld there by a fault
	DeadLettered Stamp
	DeadCause    evidence.Cause
	DeadWords    string // see Words
	Purged       Stamp
	ExpiredSaid  Stamp // the system reported it expired
	Owed         bool  // it stayed deliverable to a ready, idle consumer: its deadline is no excuse
	Redriven     int   // number of redrives, each of which gives it new attempts
}

// Receipt is the state of one publish at one logical subscriber.
type Receipt struct {
	Sub         Symbol
	Must        bool // the subscriber certainly matched
	Deliveries  int  // excluding copies forged by the harness
	First, Last Stamp
	Session     Symbol // of the last delivery
	Before      Stamp  // the delivery before the last
	Holder      Symbol // … and its session
	Newest      bool   // the last delivery was provably sent last: a client may buffer an earlier one
	TopSession  Symbol // session of the latest delivery for which that is proven
	TopAt       Stamp
	MessageHash uint64 // of the first delivery
	Unmarked    int    // deliveries without a redelivered mark
	Attempt     int    // the highest attempt number given by the system
	FirstStruck bool

	AckCalled Stamp
	Acked     Stamp // confirmed or sent
	Confirm   Stamp // confirmed
	Nacked    Stamp
	Failed    Stamp // the handler or its transaction failed
	Committed Stamp // the effect
	Rewound   Stamp // rewound by command, so that it must be redelivered

	ConfirmFrame uint64 // Seq of the confirming frame
	ConfirmLink  Symbol
	ConfirmConn  int
}

// Strike is what a fault did to one message.
type Strike struct {
	Seq   uint64
	How   string
	Frame string
	link  Symbol
	// Numbers of forged copies: the relay and the fault may both report one.
	carried, fired, used int
}

// Copies returns the number of copies that the fault forged.
func (s *Strike) Copies() int { return max(s.carried, s.fired) }

// Lookup is one look-up of a message and its answer.
type Lookup struct {
	Called, Returned Stamp
	Acceptance       evidence.Acceptance
	Standing         evidence.Standing
	ByPublish        bool
}

// Row is a stored row of a message. It is certain unless it carries no publish
// ID and others share the IDs that it does carry.
type Row struct {
	Snapshot *evidence.Snapshot
	Row      *evidence.StoredRow
	Certain  bool
}

// Stamp is a position in the history; Seq 0 means that it did not happen.
type Stamp struct {
	Seq uint64
	At  time.Duration
}

// Before reports whether s provably happened before t, as in
// returned-before-called. Seq alone is no proof: two processes write to two
// pipes, and the parent may read the later one first, but both use the same
// clock.
func (s Stamp) Before(t Stamp) bool { return s.Seq != 0 && s.Seq < t.Seq && s.At <= t.At }

func StampOf(e *evidence.Event) Stamp { return Stamp{e.Seq, e.At} }

func StampOfSnapshot(s *evidence.Snapshot) Stamp { return Stamp{s.Seq, s.At} }

// receipt finds or creates the receipt of a logical subscriber.
func (m *Message) receipt(sub Symbol) *Receipt {
	if r := m.Find(sub); r != nil {
		return r
	}
	m.Receipts = append(m.Receipts, Receipt{Sub: sub})
	return &m.Receipts[len(m.Receipts)-1]
}

// Find returns the receipt of a logical subscriber, or nil.
func (m *Message) Find(sub Symbol) *Receipt {
	for i := range m.Receipts {
		if m.Receipts[i].Sub == sub {
			return &m.Receipts[i]
		}
	}
	return nil
}

// Sole reports whether no other publish has m's business ID.
func (m *Message) Sole() bool { return m.nextOfBusiness == 0 }

func (m *Message) Refused() bool {
	return m.Returned.Seq != 0 && !m.Alias &&
		(m.Acceptance == evidence.Declined || m.Acceptance == evidence.Rejected)
}

func (m *Message) Accepted() bool { return m.Returned.Seq != 0 && m.Acceptance == evidence.Accepted }

// Unknown also holds for a publish that was never answered.
func (m *Message) Unknown() bool {
	return m.Called.Seq != 0 && (m.Returned.Seq == 0 || m.Acceptance == evidence.Unknown)
}

// StruckBy reports whether a fault did one of these things to m.
func (m *Message) StruckBy(how ...string) bool {
	return slices.ContainsFunc(m.Struck, func(s Strike) bool { return slices.Contains(how, s.How) })
}

// Copied reports whether the system was sent more than one copy of m, by a fault
// or by a client library that tried again under the same publish. A system that
// does not recognize the repeat has two messages then, and may settle one of them
// and deliver the other.
func (m *Message) Copied() bool { return m.publishes > 1 || m.StruckBy("duplicate") }

// NeverReached reports whether faults withheld the publish, and nothing of it
// passed the link.
func (m *Message) NeverReached() bool {
	return m.published.Seq == 0 && (m.discarded || slices.ContainsFunc(m.Struck, func(s Strike) bool {
		return s.Frame == FramePublish && (s.How == "drop" || s.How == "withhold")
	}))
}

// StruckAt reports whether a fault struck a frame of this kind carrying m.
func (m *Message) StruckAt(frame string) bool {
	return slices.ContainsFunc(m.Struck, func(s Strike) bool { return s.Frame == frame })
}

// forge consumes one forged copy, if this link's actor can still expect one.
func (m *Message) forge(actor Symbol) bool {
	for i := range m.Struck {
		s := &m.Struck[i]
		if s.Copies() > s.used && (s.Frame != FrameDeliver || s.link == actor || s.link == 0) {
			s.used++
			return true
		}
	}
	return false
}

// Delivered returns the first delivery to any logical subscriber, and whether
// there is one.
func (m *Message) Delivered() (Stamp, bool) {
	var first Stamp
	for i := range m.Receipts {
		if r := &m.Receipts[i]; r.Deliveries > 0 && (first.Seq == 0 || r.First.Seq < first.Seq) {
			first = r.First
		}
	}
	return first, first.Seq != 0
}

// Deadline returns when m expires if the broker's clock is correct; 0 without
// a TTL.
func (m *Message) Deadline() time.Duration {
	if m.TTL <= 0 || m.Returned.Seq == 0 {
		return 0
	}
	return m.Returned.At + m.TTL
}
