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
	new:  func() checker { return &identity{} },
}

type identity struct {
	seen  sieve // of IDs in their destinations
	twins []ref // publishes whose ID may have been seen before
	moved bool  // the broker ran under more than one storage identity
}

func (c *identity) on() []evidence.Kind {
	return []evidence.Kind{evidence.PublishReturned, evidence.Delivered, evidence.LookupReturned}
}

func (c *identity) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
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
		known := m.slot.messageID
		if m.frozen {
			known = r.messageHash
		}
		if known != 0 && known != id && !m.alias {
			c.differ(l, e, m, r, out, "delivered-under-another", BrokerToConsumer, "and was delivered as")
		}
	case evidence.LookupReturned:
		if m.named && e.Acceptance == evidence.Accepted && m.slot.nextOfBusiness == 0 && m.slot.messageID != id {
			c.differ(l, e, m, nil, out, "found-under-another", BrokerToClient, "and a look-up found it as")
		}
	}
}

func (c *identity) differ(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling, kind string, at HandOver, what string) {
	if m.struckBy("corrupt") {
		return
	}
	f := l.finding(m, r, kind, m.returned.seq, e.Seq)
	f.HandOver = at
	f.Text = fmt.Sprintf("%s had another message ID, %s %s", l.label(m), what, e.MessageID)
	out.violate(byEvents, f)
}

func (c *identity) close(l *ledger, m *message, out *ruling) {
	if c.seen == nil {
		c.seen = newSieve(l.slots.n)
		c.moved = l.moved()
	}
	id := m.slot.messageID
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
	if !c.moved && c.seen.add(scatter(id, m.slot.destination)) {
		c.twins = append(c.twins, m.ref)
	}
}

// moved reports whether the broker ran under more than one storage identity.
func (l *ledger) moved() bool {
	return slices.ContainsFunc(l.partitions, func(p partitionStart) bool { return p.names[0] != l.partitions[0].names[0] })
}

// scatter tells one ID in two destinations apart.
func scatter(id uint64, destination uint32) uint64 {
	return id ^ uint64(destination)*0x9e3779b97f4a7c15
}

// sieve says of a few keys that they were there before though they were not,
// and never the reverse: what passes it need not be remembered.
type sieve []uint64

func newSieve(n uint32) sieve { return make(sieve, 1<<bits.Len32(n/4)) } // 16 bits a key, at least

func (s sieve) add(key uint64) (there bool) {
	key *= 0x9e3779b97f4a7c15
	cell, bit := &s[key>>32&uint64(len(s)-1)], uint64(1)<<(key>>26&63)
	there = *cell&bit != 0
	*cell |= bit
	return there
}

// conclude looks for the first publish of each ID that may be there twice.
func (c *identity) conclude(l *ledger, out *ruling) {
	if len(c.twins) == 0 {
		return
	}
	var twins index
	key := func(r ref) uint64 { s := l.slots.at(uint32(r)); return scatter(s.messageID, s.destination) }
	find := func(k uint64) ref { return twins.find(k, func(r ref) bool { return key(r) == k }) }
	for _, r := range c.twins {
		if k := key(r); find(k) == 0 {
			twins.put(k, r)
		}
	}
	for r := ref(1); r <= ref(l.slots.n); r++ {
		s := l.slots.at(uint32(r))
		if s.messageID == 0 {
			continue
		}
		twin := find(key(r))
		if twin == 0 || twin == r || s.business == l.slots.at(uint32(twin)).business {
			continue
		}
		o, m := l.message(min(r, twin)), l.message(max(r, twin))
		if !c.names(o) || !c.names(m) || m.struckBy("corrupt") {
			continue
		}
		f := l.finding(m, nil, "shared", o.returned.seq, m.returned.seq)
		f.HandOver = BrokerToClient
		f.Text = fmt.Sprintf("%s and %s are two messages, and have one message ID", l.label(o), l.label(m))
		f.Follows = []string{evidence.NoAcceptedLoss}
		out.violate(byEvents, f)
	}
}

// names reports whether the system gave an accepted message the ID that it has.
func (c *identity) names(m *message) bool {
	return m.slot.messageID != 0 && !m.alias && m.accepted() && (m.frozen || m.named)
}
