package ledger

import (
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Message is what is known of one publish. The ledger writes it, and checkers
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
	ToldOK                bool          // its caller was told that all is well
	Alias                 bool          // answered as a duplicate of an earlier publish
	Named                 bool          // MessageID is the system's; until then it is the one asked for
	Clock                 time.Duration // the broker's offset when it answered
	Frozen                bool

	Receipts []Receipt
	Struck   []Strike // what the harness's own faults did to it
	Lookups  []Lookup
	Rows     []Row  // in broker snapshots; known when all events are read
	Steps    []Step // of its custody; nil if none are kept

	published    Stamp // its publish frame passed a link
	Affirmed     Stamp // an answer that takes responsibility passed a link
	Denied       Stamp // … one that does not
	Carried      Stamp // a deliver frame of it passed a link
	Sent         int   // how many did
	Withheld     Stamp // … or a fault withheld it there
	DeadLettered Stamp
	DeadCause    evidence.Cause
	DeadWords    string // see Words
	Purged       Stamp
	ExpiredSaid  Stamp // the system said that it expired
	Owed         bool  // it stayed deliverable to a ready, idle consumer: its deadline is no excuse
	Redriven     int   // an administrator gave it new attempts
}

// Receipt is one publish at one logical subscriber.
type Receipt struct {
	Sub         Symbol
	Must        bool // certainly matched
	Deliveries  int  // without the copies that the harness forged
	First, Last Stamp
	Session     Symbol // of the last delivery
	Before      Stamp  // the delivery before the last
	Holder      Symbol // … and its session
	Newest      bool   // the last delivery is proven to be sent last: a client may buffer an earlier one
	TopSession  Symbol // of the latest delivery that was proven so
	TopAt       Stamp
	MessageHash uint64 // of the first delivery
	Unmarked    int    // deliveries that were not marked as repeated
	Attempt     int    // the highest that the system counted
	FirstStruck bool

	AckCalled Stamp
	Acked     Stamp // confirmed or sent
	Confirm   Stamp // confirmed
	Nacked    Stamp
	Failed    Stamp // the handler or its transaction failed
	Committed Stamp // the effect
	Rewound   Stamp // put back by command, so that it must come again

	ConfirmFrame uint64 // Seq of the frame that confirmed
	ConfirmLink  Symbol
	ConfirmConn  int
}

// Strike is what a fault did to one message.
type Strike struct {
	Seq   uint64
	How   string
	Frame string
	link  Symbol
	// Forged copies: the relay and the fault may both report one.
	carried, fired, used int
}

// Copies that the fault forged.
func (s *Strike) Copies() int { return max(s.carried, s.fired) }

// Lookup is one question to the system about a message, and its answer.
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

// Stamp is a position in the history; Seq 0 is "did not happen".
type Stamp struct {
	Seq uint64
	At  time.Duration
}

// Before is the proof of returned-before-called. Seq alone is none: two
// processes write to two pipes, and the parent may read the later one first;
// the clock is the same in both.
func (s Stamp) Before(t Stamp) bool { return s.Seq != 0 && s.Seq < t.Seq && s.At <= t.At }

func StampOf(e *evidence.Event) Stamp { return Stamp{e.Seq, e.At} }

func StampOfSnapshot(s *evidence.Snapshot) Stamp { return Stamp{s.Seq, s.At} }

// receipt finds or makes the receipt of a logical subscriber.
func (m *Message) receipt(sub Symbol) *Receipt {
	if r := m.Find(sub); r != nil {
		return r
	}
	m.Receipts = append(m.Receipts, Receipt{Sub: sub})
	return &m.Receipts[len(m.Receipts)-1]
}

// Find gives the receipt of a logical subscriber, or nil.
func (m *Message) Find(sub Symbol) *Receipt {
	for i := range m.Receipts {
		if m.Receipts[i].Sub == sub {
			return &m.Receipts[i]
		}
	}
	return nil
}

// Sole reports whether no other publish has its business ID.
func (m *Message) Sole() bool { return m.nextOfBusiness == 0 }

func (m *Message) Refused() bool {
	return m.Returned.Seq != 0 && !m.Alias &&
		(m.Acceptance == evidence.Declined || m.Acceptance == evidence.Rejected)
}

func (m *Message) Accepted() bool { return m.Returned.Seq != 0 && m.Acceptance == evidence.Accepted }

// Unknown holds for a publish that was never answered as well.
func (m *Message) Unknown() bool {
	return m.Called.Seq != 0 && (m.Returned.Seq == 0 || m.Acceptance == evidence.Unknown)
}

// StruckBy reports whether a fault did one of these things to it.
func (m *Message) StruckBy(how ...string) bool {
	return slices.ContainsFunc(m.Struck, func(s Strike) bool { return slices.Contains(how, s.How) })
}

// StruckAt reports whether a fault struck a frame of this kind of it.
func (m *Message) StruckAt(frame string) bool {
	return slices.ContainsFunc(m.Struck, func(s Strike) bool { return s.Frame == frame })
}

// forge takes one forged copy, if this link's actor can still expect one.
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

// Delivered reports whether any logical subscriber has seen it, and where first.
func (m *Message) Delivered() (Stamp, bool) {
	var first Stamp
	for i := range m.Receipts {
		if r := &m.Receipts[i]; r.Deliveries > 0 && (first.Seq == 0 || r.First.Seq < first.Seq) {
			first = r.First
		}
	}
	return first, first.Seq != 0
}

// Deadline is when it expires if the broker's clock runs true; 0 without a TTL.
func (m *Message) Deadline() time.Duration {
	if m.TTL <= 0 || m.Returned.Seq == 0 {
		return 0
	}
	return m.Returned.At + m.TTL
}
