package guarantees

import (
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
)

// stamp is where in the history something stands; seq 0 is "did not happen".
type stamp struct {
	seq uint64
	at  time.Duration
}

// before is the proof of returned-before-called. The number alone is none: two
// processes write to two pipes, and the parent may read the later one first;
// the clock is the same in both.
func (s stamp) before(t stamp) bool { return s.seq != 0 && s.seq < t.seq && s.at <= t.at }

func stampOf(e *evidence.Event) stamp { return stamp{e.Seq, e.At} }

// message is one publish as long as something of it is open. A settled one
// shrinks to its slot and kept receipts (see ledger.freeze) and is thawed when
// a late event names it: a settled ID is never forgotten.
type message struct {
	ref  ref
	slot *slot // identity: hashes of business ID, message ID and digest

	publishID, businessID, messageID string
	actor, session, destination      uint32 // symbols
	key                              uint64 // hash of the ordering key
	ttl                              time.Duration
	called, returned                 stamp
	acceptance                       evidence.Acceptance
	heldBy                           evidence.HeldBy
	toldOK, alias, frozen            bool
	named                            bool          // the system has said what it calls it; until then the ID is the one asked for
	clock                            time.Duration // the broker's offset when it answered

	receipts []receipt
	struck   []strike // what our own faults did to it
	lookups  []lookup
	rows     []rowSeen // in broker snapshots; filled when all events are read
	steps    []step

	published    stamp // its publish frame passed a link
	affirmed     stamp // an answer to it passed a link that takes responsibility
	denied       stamp // …and one that does not
	carried      stamp // a deliver frame of it passed a link
	sent         int   // how many did
	withheld     stamp // …or was kept back there by a fault of ours
	deadLettered stamp
	deadCause    evidence.Cause
	deadWords    string // see quote.go
	purged       stamp
	expiredSaid  stamp // the system said that it expired
	owed         bool  // stayed deliverable to a free, ready consumer: its deadline is no excuse
	redriven     int   // an administrator gave it new attempts
}

// receipt is one publish at one logical subscriber.
type receipt struct {
	sub         uint32 // symbol
	must        bool   // matched for certain
	deliveries  int    // not counting the copies that we forged
	first, last stamp
	session     uint32 // of the last delivery
	before      stamp  // the delivery before the last
	holder      uint32 // …and its session
	newest      bool   // the last delivery is proven to be sent last: a client may keep an earlier one back
	topSession  uint32 // of the latest delivery that was proven so
	topAt       stamp
	messageHash uint64 // of the first delivery
	unmarked    int    // deliveries that did not say they are a repetition
	attempt     int    // the highest that the system counted
	firstStruck bool

	ackCalled stamp
	acked     stamp // confirmed or sent
	confirm   stamp // confirmed
	nacked    stamp
	failed    stamp // the handler or its transaction failed
	committed stamp // effect
	rewound   stamp // put back by command, so that it must come again
	absorbed  int

	confirmFrame uint64 // seq of the frame that confirmed
	confirmLink  uint32
	confirmConn  int
}

// strike is what a fault of ours did to one message.
type strike struct {
	seq   uint64
	how   string
	frame string
	link  uint32
	// Copies that we forged: the relay and the fault may both tell of one.
	carried, fired, used int
}

type lookup struct {
	called, returned stamp
	acceptance       evidence.Acceptance
	standing         evidence.Standing
	byPublish        bool
}

// rowSeen is a stored row of a message. It is certain unless the row carries
// no publish ID and others share the IDs that it carries.
type rowSeen struct {
	snapshot int
	row      *evidence.StoredRow
	certain  bool
}

// receipt finds or makes the receipt of a logical subscriber.
func (m *message) receipt(sub uint32) *receipt {
	if r := m.find(sub); r != nil {
		return r
	}
	m.receipts = append(m.receipts, receipt{sub: sub})
	return &m.receipts[len(m.receipts)-1]
}

func (m *message) find(sub uint32) *receipt {
	for i := range m.receipts {
		if m.receipts[i].sub == sub {
			return &m.receipts[i]
		}
	}
	return nil
}

func (m *message) refused() bool {
	return m.returned.seq != 0 && !m.alias &&
		(m.acceptance == evidence.Declined || m.acceptance == evidence.Rejected)
}

func (m *message) accepted() bool { return m.returned.seq != 0 && m.acceptance == evidence.Accepted }

// unknown holds for a publish that was never answered as well.
func (m *message) unknown() bool {
	return m.called.seq != 0 && (m.returned.seq == 0 || m.acceptance == evidence.Unknown)
}

// struckBy reports whether a fault of ours did one of these things to it.
func (m *message) struckBy(how ...string) bool {
	for i := range m.struck {
		for _, h := range how {
			if m.struck[i].how == h {
				return true
			}
		}
	}
	return false
}

// struckAt reports whether a fault of ours struck a frame of this kind of it.
func (m *message) struckAt(frame string) bool {
	return slices.ContainsFunc(m.struck, func(s strike) bool { return s.frame == frame })
}

// forge takes one forged copy, if one is still expected for this link's actor.
func (m *message) forge(actor uint32) bool {
	for i := range m.struck {
		s := &m.struck[i]
		if max(s.carried, s.fired) > s.used && (s.frame != frameDeliver || s.link == actor || s.link == 0) {
			s.used++
			return true
		}
	}
	return false
}

// delivered reports whether any logical subscriber has seen it, and where first.
func (m *message) delivered() (stamp, bool) {
	var first stamp
	for i := range m.receipts {
		if r := &m.receipts[i]; r.deliveries > 0 && (first.seq == 0 || r.first.seq < first.seq) {
			first = r.first
		}
	}
	return first, first.seq != 0
}

// deadline is when it expires if the broker's clock runs true; 0 without TTL.
func (m *message) deadline() time.Duration {
	if m.ttl <= 0 || m.returned.seq == 0 {
		return 0
	}
	return m.returned.at + m.ttl
}

// events lists the numbers that are not 0, in order, each once.
func events(seqs ...uint64) []uint64 {
	out := make([]uint64, 0, len(seqs))
	for _, s := range seqs {
		i := len(out)
		for i > 0 && out[i-1] > s {
			i--
		}
		if s == 0 || i > 0 && out[i-1] == s {
			continue
		}
		out = append(out, 0)
		copy(out[i+1:], out[i:])
		out[i] = s
	}
	return out
}
