package ledger

import (
	"cmp"
	"slices"
	"strings"

	"github.com/custodymq/custody/evidence"
)

// store remembers every publish of a run in bounded memory. A publish with an
// open outcome has a Message; a settled one shrinks to a slot and a kept
// receipt, 88 bytes together, and is restored when a late event names it. A
// settled ID is never forgotten.
type store struct {
	// Automatic is set if a delivery is its own acknowledgement.
	Automatic bool

	symbols map[string]Symbol
	recent  [16]named // most recently used symbols: actors and sessions recur often
	names   []string  // by symbol; 0 is ""

	slots     arena[slot]
	receipts  arena[keptReceipt]
	hot       []*Message
	freeHot   []uint32
	idle      []*Message
	settled   []Ref // to be frozen after the cool-down
	producers []*producer
	producer  map[string]*producer
	lastProd  *producer
	odd       map[string]Ref // publish IDs not made by the harness
	business  index
	messageID index // built on the first event that has only a message ID
	byMessage bool
}

// Symbol is an interned name (of an actor, a session, a link, a logical
// subscriber or a destination); 0 means none.
type Symbol uint32

type named struct {
	text string
	id   Symbol
}

// slot is the identity of a publish: 56 bytes, kept forever.
type slot struct {
	BusinessKey, MessageKey, DigestKey uint64 // hashes
	hot                                uint32 // index in store.hot + 1; 0 means frozen
	kept                               uint32 // index of its receipts in store.receipts
	nextOfBusiness                     Ref    // circular list; 0 if alone
	nextTry                            Ref    // of the same producer and count
	Count                              uint32
	Producer, Try                      uint16
	keptN                              uint8
	HeldBy                             evidence.HeldBy
	Destination                        Symbol
}

// keptReceipt is a settled receipt: 32 bytes.
type keptReceipt struct {
	acked           Stamp
	frame           uint64 // the frame that confirmed it
	link, conn, sub uint16
	deliveries      uint8 // saturates at 255
	flags           uint8
}

const (
	keptMust = 1 << iota
	keptConfirmed
	keptUnmarked
)

type producer struct {
	name    string
	number  int
	byCount []Ref
}

const (
	// CoolDown is how many settled publishes stay hot, for events that still
	// follow an acknowledgement.
	CoolDown = 1 << 12

	maxDenseCount = 1 << 26 // our producers never reach a larger count
	maxProducers  = 1<<16 - 1
)

func newStore(automatic bool) store {
	return store{Automatic: automatic, symbols: make(map[string]Symbol), names: []string{""},
		producer: make(map[string]*producer), odd: make(map[string]Ref)}
}

func (st *store) Symbol(s string) Symbol {
	if s == "" {
		return 0
	}
	memo := &st.recent[(len(s)+int(s[len(s)-1]))%len(st.recent)]
	if memo.text == s {
		return memo.id
	}
	if id, ok := st.symbols[s]; ok {
		*memo = named{st.names[id], id}
		return id
	}
	s = strings.Clone(s) // do not retain the line it was read from
	id := Symbol(len(st.names))
	st.symbols[s] = id
	st.names = append(st.names, s)
	return id
}

func (st *store) Name(symbol Symbol) string { return st.names[symbol] }

// Publishes returns the number of publishes, placeholders included.
func (st *store) Publishes() int { return int(st.slots.n) }

// LookUp finds a publish by its publish ID; 0 if it is unknown.
func (st *store) LookUp(id string) Ref {
	name, count, try, ok := evidence.SplitPublishID(id)
	if !ok || count > maxDenseCount || try > maxProducers {
		return st.odd[id]
	}
	p := st.producerOf(name)
	if p == nil || count > len(p.byCount) {
		return st.odd[id]
	}
	for r := p.byCount[count-1]; r != 0; {
		s := st.slots.at(uint32(r))
		if int(s.Try) == try {
			return r
		}
		r = s.nextTry
	}
	return st.odd[id]
}

func (st *store) producerOf(name string) *producer {
	if st.lastProd == nil || st.lastProd.name != name {
		p := st.producer[name]
		if p == nil {
			return nil
		}
		st.lastProd = p
	}
	return st.lastProd
}

// publish finds or creates the record of a publish ID. One that is first
// mentioned before its call is a placeholder, and remains one if it is never
// called.
func (st *store) publish(id, business string) *Message {
	r := st.LookUp(id)
	if r == 0 {
		r = st.add(id)
	}
	m := st.Message(r)
	if m.BusinessID == "" && business != "" {
		m.BusinessID = business
		if m.BusinessKey == 0 {
			st.joinBusiness(m, Hash(business))
		}
	}
	return m
}

func (st *store) add(id string) Ref {
	r := Ref(st.slots.grow(1))
	s := st.slots.at(uint32(r))
	name, count, try, ok := evidence.SplitPublishID(id)
	p := st.producerOf(name)
	if ok && p == nil && len(st.producers) < maxProducers {
		p = &producer{name: strings.Clone(name), number: len(st.producers) + 1}
		st.producers = append(st.producers, p)
		st.producer[p.name] = p
	}
	// A count far beyond those seen would waste memory.
	if ok && p != nil && try <= maxProducers && count <= maxDenseCount && count <= 64*int(st.slots.n)+1<<10 {
		if count > len(p.byCount) {
			p.byCount = slices.Grow(p.byCount, count-len(p.byCount))[:count]
		}
		s.Producer, s.Count, s.Try = uint16(p.number), uint32(count), uint16(try)
		s.nextTry = p.byCount[count-1]
		p.byCount[count-1] = r
	} else {
		st.odd[id] = r
	}
	st.heat(r, s).publishID = id
	return r
}

// joinBusiness adds a publish to the circular list of its business ID.
func (st *store) joinBusiness(m *Message, key uint64) {
	m.BusinessKey = key
	head := st.OfBusiness(key)
	if head == 0 {
		st.business.put(key, m.Ref)
		return
	}
	s := st.slots.at(uint32(head))
	m.nextOfBusiness = cmp.Or(s.nextOfBusiness, head)
	s.nextOfBusiness = m.Ref
}

func (st *store) setMessageID(m *Message, id string) {
	if id == "" || m.MessageID != "" {
		return
	}
	m.MessageID, m.MessageKey = id, Hash(id)
	if st.byMessage {
		st.indexMessage(m.Ref)
	}
}

// systemNames records the message ID assigned by the system, replacing the one
// that the publisher requested.
func (st *store) systemNames(m *Message, id string) {
	if id != "" && !m.Named {
		m.Named, m.MessageID = true, ""
	}
	st.setMessageID(m, id)
}

func (st *store) indexMessage(r Ref) {
	key := st.slots.at(uint32(r)).MessageKey
	if key != 0 && st.findMessage(key) == 0 {
		st.messageID.put(key, r)
	}
}

func (st *store) findMessage(key uint64) Ref {
	return st.messageID.find(key, func(r Ref) bool { return st.slots.at(uint32(r)).MessageKey == key })
}

// OfBusiness returns the first publish whose business ID has this key; 0 if
// there is none.
func (st *store) OfBusiness(key uint64) Ref {
	if key == 0 {
		return 0
	}
	return st.business.find(key, func(r Ref) bool { return st.slots.at(uint32(r)).BusinessKey == key })
}

// Resolve finds the publish that an event or row is about by the best ID
// available. A new publish ID gets a placeholder.
func (st *store) Resolve(publish, messageID, business string) *Message {
	if publish != "" {
		return st.publish(publish, business)
	}
	if messageID != "" {
		if !st.byMessage {
			st.byMessage = true
			for r := uint32(1); r <= st.slots.n; r++ {
				st.indexMessage(Ref(r))
			}
		}
		if r := st.findMessage(Hash(messageID)); r != 0 {
			return st.Message(r)
		}
	}
	if r := st.OfBusiness(Hash(business)); r != 0 {
		return st.Message(r)
	}
	return nil
}

// Message returns the record of a publish, restoring it if it was frozen.
func (st *store) Message(r Ref) *Message {
	s := st.slots.at(uint32(r))
	if s.hot != 0 {
		return st.hot[s.hot-1]
	}
	m := st.heat(r, s)
	st.thaw(m)
	m.publishID = st.PublishID(m)
	st.settled = append(st.settled, r)
	return m
}

func (st *store) heat(r Ref, s *slot) *Message {
	var m *Message
	if n := len(st.idle); n > 0 {
		m, st.idle = st.idle[n-1], st.idle[:n-1]
	} else {
		m = new(Message)
	}
	m.Ref, m.slot = r, s
	if n := len(st.freeHot); n > 0 {
		s.hot, st.freeHot = st.freeHot[n-1], st.freeHot[:n-1]
		st.hot[s.hot-1] = m
	} else {
		st.hot = append(st.hot, m)
		s.hot = uint32(len(st.hot))
	}
	return m
}

// thaw restores a record from the kept data.
func (st *store) thaw(m *Message) {
	m.Frozen, m.Acceptance = true, evidence.Accepted
	m.Called, m.Returned = Stamp{Seq: 1}, Stamp{Seq: 1}
	for i := range uint32(m.keptN) {
		k := st.receipts.at(m.kept + i)
		r := Receipt{Sub: Symbol(k.sub), Must: k.flags&keptMust != 0, Deliveries: int(k.deliveries), MessageHash: m.MessageKey,
			First: k.acked, Last: k.acked, AckCalled: k.acked, Acked: k.acked,
			ConfirmFrame: k.frame, ConfirmLink: Symbol(k.link), ConfirmConn: int(k.conn)}
		if k.flags&keptConfirmed != 0 {
			r.Confirm = k.acked
		}
		if k.flags&keptUnmarked != 0 {
			r.Unmarked = 1
		}
		m.Receipts = append(m.Receipts, r)
	}
}

// PublishID returns the publish ID of a record.
func (st *store) PublishID(m *Message) string {
	if m.publishID == "" && m.Producer != 0 {
		m.publishID = evidence.PublishID(st.producers[m.Producer-1].name, int(m.Count), int(m.Try))
	}
	return m.publishID
}

// done notes that a publish may be settled.
func (st *store) done(m *Message) {
	if !st.plain(m) {
		return
	}
	st.settled = append(st.settled, m.Ref)
	if len(st.settled) < 2*CoolDown {
		return
	}
	for _, r := range st.settled[:CoolDown] {
		if s := st.slots.at(uint32(r)); s.hot != 0 {
			if m := st.hot[s.hot-1]; st.plain(m) {
				st.freeze(m)
			}
		}
	}
	st.settled = st.settled[:copy(st.settled, st.settled[CoolDown:])]
}

// plain reports whether nothing about a publish is open or unusual, so that
// the few bytes kept describe it fully.
func (st *store) plain(m *Message) bool {
	if m.Called.Seq == 0 || m.Acceptance != evidence.Accepted || m.Returned.Seq == 0 || m.TTL != 0 || m.Alias ||
		m.Producer == 0 || len(m.Receipts) == 0 || len(m.Receipts) > 8 || m.Steps != nil ||
		m.Struck != nil || m.Lookups != nil || m.DeadLettered.Seq != 0 || m.Purged.Seq != 0 || m.ExpiredSaid.Seq != 0 {
		return false
	}
	for i := range m.Receipts {
		r := &m.Receipts[i]
		if !st.Acknowledged(r) || r.Failed.Seq != 0 || r.Unmarked > 1 || r.Sub > maxProducers ||
			r.ConfirmLink > maxProducers || r.ConfirmConn > maxProducers {
			return false
		}
	}
	return true
}

func (st *store) freeze(m *Message) {
	s := m.slot
	n := uint32(len(m.Receipts))
	if n > uint32(s.keptN) {
		s.kept = st.receipts.grow(n)
	}
	s.keptN = uint8(n)
	for i := range m.Receipts {
		r := &m.Receipts[i]
		k := st.receipts.at(s.kept + uint32(i))
		*k = keptReceipt{acked: r.Acked, frame: r.ConfirmFrame, link: uint16(r.ConfirmLink), conn: uint16(r.ConfirmConn),
			sub: uint16(r.Sub), deliveries: uint8(min(r.Deliveries, 255))}
		if r.Must {
			k.flags |= keptMust
		}
		if r.Confirm.Seq != 0 {
			k.flags |= keptConfirmed
		}
		if r.Unmarked > 0 {
			k.flags |= keptUnmarked
		}
	}
	st.hot[s.hot-1] = nil
	st.freeHot = append(st.freeHot, s.hot)
	s.hot = 0
	*m = Message{Receipts: m.Receipts[:0]}
	st.idle = append(st.idle, m)
}

// rewind rewinds a logical subscriber to a checkpoint taken at mark.
// Everything it has settled may be redelivered; everything published after the
// checkpoint must be, whatever was known of it.
func (st *store) rewind(sub Symbol, mark, now Stamp) {
	for _, m := range st.hot {
		if m == nil {
			continue
		}
		if r := m.Find(sub); r != nil {
			again := Receipt{Sub: sub, Must: r.Must}
			if !m.Frozen && mark.Before(m.Called) {
				again.Rewound = now
			} else {
				again.AckCalled, again.Acked = r.AckCalled, r.Acked
			}
			*r = again
		}
	}
	for i := uint32(1); i <= st.receipts.n; i++ {
		if k := st.receipts.at(i); Symbol(k.sub) == sub {
			k.flags &^= keptConfirmed
			k.frame = 0
		}
	}
}

// Acknowledged reports whether the client has done all that it can for this
// subscriber.
func (st *store) Acknowledged(r *Receipt) bool {
	return r.Acked.Seq != 0 || st.Automatic && r.Deliveries > 0
}

// Group returns every publish of m's business ID, including m, oldest first.
func (st *store) Group(m *Message) []*Message {
	all := []*Message{m}
	if m.Sole() {
		return all
	}
	for r := m.nextOfBusiness; r != m.Ref; r = st.slots.at(uint32(r)).nextOfBusiness {
		all = append(all, st.Message(r))
	}
	slices.SortFunc(all, func(a, b *Message) int { return cmp.Compare(a.Ref, b.Ref) })
	return all
}

// Aliases returns the publishes of the group that share one stored message: a
// delivery or row of any meets the obligations of all.
func (st *store) Aliases(m *Message) []*Message {
	if m.Sole() {
		return []*Message{m}
	}
	var same []*Message
	for _, o := range st.Group(m) {
		if o == m || o.MessageKey != 0 && o.MessageKey == m.MessageKey ||
			m.Alias && m.MessageKey == 0 || o.Alias && o.MessageKey == 0 {
			same = append(same, o)
		}
	}
	return same
}

// EachHot calls f for every publish that is not frozen, in order of first
// mention, and counts the frozen ones.
func (st *store) EachHot(f func(*Message)) (frozen int) {
	for r := uint32(1); r <= st.slots.n; r++ {
		if s := st.slots.at(r); s.hot != 0 {
			f(st.hot[s.hot-1])
		} else {
			frozen++
		}
	}
	return frozen
}

// Each calls f for every publish, in order of first mention. f must not retain
// m.
func (st *store) Each(f func(*Message)) {
	scratch := new(Message)
	for r := uint32(1); r <= st.slots.n; r++ {
		s := st.slots.at(r)
		if s.hot != 0 {
			f(st.hot[s.hot-1])
			continue
		}
		*scratch = Message{Ref: Ref(r), slot: s, Receipts: scratch.Receipts[:0]}
		st.thaw(scratch)
		f(scratch)
	}
}
