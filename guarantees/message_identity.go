package guarantees

import (
	"fmt"
	"math/bits"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var messageIdentity = Guarantee{
	Name: evidence.MessageIdentity, Usual: "unique message ID",
	Text: "A message ID names one message for ever: it is the same in the answer, in deliveries, in look-ups and in stored rows, and no other message of its destination gets it, also after a restart.",
	Rule: "Compared wherever the system gives one. Publishes of one business ID may share an ID, and so may one that was answered as a duplicate. Between two storage identities nothing is compared, and what our own faults corrupted is left out.",
	new:  func() checker { return &naming{twins: make(map[uint64]twin)} },
}

type naming struct {
	seen  sieve           // message IDs within their destinations
	twins map[uint64]twin // the first publish of each ID that may have been seen before
	moved bool            // the broker ran under more than one storage identity
}

type twin struct {
	ref      ref
	business uint64
}

func (c *naming) on() []evidence.Kind {
	return []evidence.Kind{evidence.PublishReturned, evidence.Delivered, evidence.LookupReturned}
}

func (c *naming) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || e.MessageID == "" {
		return
	}
	id := ledger.Hash(e.MessageID)
	switch e.Kind {
	case evidence.PublishReturned:
		if m.Alias {
			return
		}
		for i := range m.Receipts {
			if r := &m.Receipts[i]; r.MessageHash != 0 && r.MessageHash != id {
				c.differ(v, e, m, r, out, "answered-under-another", BrokerToClient, "and its answer names it")
			}
		}
	case evidence.Delivered:
		out.instances++
		known := m.MessageKey
		if m.Frozen {
			known = r.MessageHash
		}
		if known != 0 && known != id && !m.Alias {
			c.differ(v, e, m, r, out, "delivered-under-another", BrokerToConsumer, "and was delivered as")
		}
	case evidence.LookupReturned:
		if m.Named && e.Acceptance == evidence.Accepted && m.Sole() && m.MessageKey != id {
			c.differ(v, e, m, nil, out, "found-under-another", BrokerToClient, "and a look-up found it as")
		}
	}
}

func (c *naming) differ(v view, e *evidence.Event, m *message, r *receipt, out *ruling, kind string, at HandOver, what string) {
	if m.StruckBy("corrupt") {
		return
	}
	f := v.finding(m, r, kind, at, m.Returned.Seq, e.Seq)
	f.Text = fmt.Sprintf("%s had another message ID, %s %s", v.Label(m), what, e.MessageID)
	out.violate(byEvents, f)
}

func (c *naming) close(v view, m *message, out *ruling) {
	if c.seen == nil {
		c.seen = newSieve(v.Publishes())
		c.moved = v.Moved()
	}
	id := m.MessageKey
	if !c.names(m) {
		return
	}
	for _, s := range m.Rows {
		if s.Certain && s.Row.PublishID != "" && s.Row.MessageID != "" && ledger.Hash(s.Row.MessageID) != id && !m.StruckBy("corrupt", "duplicate") {
			f := v.finding(m, nil, "stored-under-another", BrokerToStore, m.Returned.Seq, s.Snapshot.Seq)
			f.Text = fmt.Sprintf("%s has message ID %s, and %s has %s", v.Label(m), m.MessageID, v.rowText(s), s.Row.MessageID)
			out.violate(byEvents, f)
			break
		}
	}
	if k := placed(m); !c.moved && c.seen.add(k) && c.twins[k].ref == 0 {
		c.twins[k] = twin{m.Ref, m.BusinessKey}
	}
}

// placed returns a key for a message ID within its destination.
func placed(m *message) uint64 { return m.MessageKey ^ uint64(m.Destination)*0x9e3779b97f4a7c15 }

// sieve is a Bloom filter with one hash function. It has few false positives
// and no false negatives, so only a few candidate IDs need an exact check.
type sieve []uint64

func newSieve(n int) sieve { return make(sieve, 1<<bits.Len(uint(n/4))) } // at least 16 bits per key

func (s sieve) add(key uint64) (there bool) {
	key *= 0x9e3779b97f4a7c15
	cell, bit := &s[key>>32&uint64(len(s)-1)], uint64(1)<<(key>>26&63)
	there = *cell&bit != 0
	*cell |= bit
	return there
}

// conclude makes the exact check: it looks for the first publish of each ID
// that may be a duplicate.
func (c *naming) conclude(v view, out *ruling) {
	if len(c.twins) == 0 {
		return
	}
	v.Each(func(x *message) {
		first := c.twins[placed(x)]
		if x.MessageKey == 0 || first.ref == 0 || first.ref == x.Ref || first.business == x.BusinessKey {
			return
		}
		o, m := v.Message(min(x.Ref, first.ref)), v.Message(max(x.Ref, first.ref))
		if !c.names(o) || !c.names(m) || m.StruckBy("corrupt") {
			return
		}
		f := v.finding(m, nil, "shared", BrokerToClient, o.Returned.Seq, m.Returned.Seq)
		f.Text = fmt.Sprintf("%s and %s are two messages, and have one message ID", v.Label(o), v.Label(m))
		f.Follows = []string{evidence.NoAcceptedLoss}
		out.violate(byEvents, f)
	})
}

// names reports whether an accepted message has an ID assigned by the system.
func (c *naming) names(m *message) bool {
	return m.MessageKey != 0 && !m.Alias && m.Accepted() && (m.Frozen || m.Named)
}
