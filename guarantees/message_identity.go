package guarantees

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/custodymq/custody/evidence"
)

var messageIdentity = Guarantee{
	Name: evidence.MessageIdentity, Usual: "unique message ID",
	Text: "A message ID names one message for ever: it is the same in the answer, in deliveries, in look-ups and in stored rows, and no other message of its destination gets it, also after a restart.",
	Rule: "Compared wherever the system gives one. Publishes of one business ID may share an ID, and so may one that was answered as a duplicate. Between two storage identities nothing is compared, and what our own faults corrupted is left out.",
	new:  func() checker { return &naming{twins: make(map[uint64]twin)} },
}

type naming struct {
	seen  sieve           // of IDs in their destinations
	twins map[uint64]twin // the first publishes whose ID may have been seen before
	moved bool            // the broker ran under more than one storage identity
}

type twin struct {
	ref      ref
	business uint64
}

func (c *naming) on() []evidence.Kind {
	return []evidence.Kind{evidence.PublishReturned, evidence.Delivered, evidence.LookupReturned}
}

func (c *naming) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || e.MessageID == "" {
		return
	}
	id := hash(e.MessageID)
	switch e.Kind {
	case evidence.PublishReturned:
		if m.alias {
			return
		}
		for i := range m.receipts {
			if r := &m.receipts[i]; r.messageHash != 0 && r.messageHash != id {
				c.differ(l, e, m, r, out, "answered-under-another", BrokerToClient, "and its answer names it")
			}
		}
	case evidence.Delivered:
		out.instances++
		known := m.messageKey
		if m.frozen {
			known = r.messageHash
		}
		if known != 0 && known != id && !m.alias {
			c.differ(l, e, m, r, out, "delivered-under-another", BrokerToConsumer, "and was delivered as")
		}
	case evidence.LookupReturned:
		if m.named && e.Acceptance == evidence.Accepted && m.sole() && m.messageKey != id {
			c.differ(l, e, m, nil, out, "found-under-another", BrokerToClient, "and a look-up found it as")
		}
	}
}

func (c *naming) differ(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling, kind string, at HandOver, what string) {
	if m.struckBy("corrupt") {
		return
	}
	f := l.finding(m, r, kind, m.returned.seq, e.Seq)
	f.HandOver = at
	f.Text = fmt.Sprintf("%s had another message ID, %s %s", l.label(m), what, e.MessageID)
	out.violate(byEvents, f)
}

func (c *naming) close(l *ledger, m *message, out *ruling) {
	if c.seen == nil {
		c.seen = newSieve(l.publishes())
		c.moved = l.moved()
	}
	id := m.messageKey
	if !c.names(m) {
		return
	}
	for _, s := range m.rows {
		if s.certain && s.row.PublishID != "" && s.row.MessageID != "" && hash(s.row.MessageID) != id && !m.struckBy("corrupt", "duplicate") {
			f := l.finding(m, nil, "stored-under-another", m.returned.seq, s.snapshot.Seq)
			f.HandOver = BrokerToStore
			f.Text = fmt.Sprintf("%s has message ID %s, and %s has %s", l.label(m), m.messageID, l.rowText(s), s.row.MessageID)
			out.violate(byEvents, f)
			break
		}
	}
	if k := placed(m); !c.moved && c.seen.add(k) && c.twins[k].ref == 0 {
		c.twins[k] = twin{m.ref, m.businessKey}
	}
}

// moved reports whether the broker ran under more than one storage identity.
func (l *ledger) moved() bool {
	return slices.ContainsFunc(l.partitions, func(p partitionStart) bool { return p.names[0] != l.partitions[0].names[0] })
}

// placed is the key of a message ID in its destination.
func placed(m *message) uint64 { return m.messageKey ^ uint64(m.destination)*0x9e3779b97f4a7c15 }

// sieve says of a few keys that they were there before though they were not,
// and never the reverse: what passes it need not be remembered.
type sieve []uint64

func newSieve(n int) sieve { return make(sieve, 1<<bits.Len(uint(n/4))) } // 16 bits a key, at least

func (s sieve) add(key uint64) (there bool) {
	key *= 0x9e3779b97f4a7c15
	cell, bit := &s[key>>32&uint64(len(s)-1)], uint64(1)<<(key>>26&63)
	there = *cell&bit != 0
	*cell |= bit
	return there
}

// conclude looks for the first publish of each ID that may be there twice.
func (c *naming) conclude(l *ledger, out *ruling) {
	if len(c.twins) == 0 {
		return
	}
	l.each(func(x *message) {
		first := c.twins[placed(x)]
		if x.messageKey == 0 || first.ref == 0 || first.ref == x.ref || first.business == x.businessKey {
			return
		}
		o, m := l.message(min(x.ref, first.ref)), l.message(max(x.ref, first.ref))
		if !c.names(o) || !c.names(m) || m.struckBy("corrupt") {
			return
		}
		f := l.finding(m, nil, "shared", o.returned.seq, m.returned.seq)
		f.HandOver = BrokerToClient
		f.Text = fmt.Sprintf("%s and %s are two messages, and have one message ID", l.label(o), l.label(m))
		f.Follows = []string{evidence.NoAcceptedLoss}
		out.violate(byEvents, f)
	})
}

// names reports whether the system gave an accepted message the ID that it has.
func (c *naming) names(m *message) bool {
	return m.messageKey != 0 && !m.alias && m.accepted() && (m.frozen || m.named)
}
