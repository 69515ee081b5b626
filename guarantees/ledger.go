package guarantees

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
)

// ledger is what all guarantees share: it looks an event's IDs up once and
// hands each checker dense records. Its memory is what is unsettled plus 88
// bytes for each settled publish.
//
// Events of different processes are recorded in an order that proves nothing,
// so a message may be delivered in the record before it was published in it.
type ledger struct {
	manifest  *evidence.Manifest
	limits    evidence.Limits
	snapshots []evidence.Snapshot // in order of Seq
	automatic bool                // deliveries count as acknowledged
	class     map[string]evidence.Class

	symbols map[string]uint32
	recent  [16]symbol // of those asked for last; actors and sessions come again and again
	names   []string   // of symbols; 0 is ""

	slots     arena[slot]
	receipts  arena[keptReceipt]
	hot       []*message
	freeHot   []uint32
	idle      []*message
	settled   []ref // freeze queue: they cool down before they shrink
	producers []*producer
	producer  map[string]*producer
	lastProd  *producer
	odd       map[string]ref // publish IDs that are not of our making
	business  index
	messageID index // built when an event first has nothing else
	byMessage bool

	sessions    map[uint32]*session
	actors      map[uint32]*actor
	subscribers []*subscriber
	bySymbol    map[uint32]*subscriber
	matching    map[uint32][]*subscriber // by destination; emptied when a subscription appears

	now           stamp
	clock         time.Duration // the broker's offset
	clockSet      bool
	clockWas      time.Duration // before it was last set
	clockSetAt    time.Duration
	healed        stamp
	over          bool  // the run's last phase has begun
	brokerEnded   stamp // its process
	restarted     bool  // by a step of the script
	failures      []failure
	fired         stamp // the latest fault
	active        map[string]bool
	held          map[uint32]windows // by link: when we held or delayed what passes
	pauses        windows            // of the broker
	troubles      windows            // when faults were at work, orders given, processes begun and ended
	deadlines     deadlines
	partitions    []partitionStart
	checkpoints   map[string]stamp // the first snapshot of each name
	drain         stamp
	drainReason   evidence.DrainReason
	deliverFrames bool // some deliver frame was seen: links observe
	hasEffects    bool
	observes      map[uint32]bool // links that have shown the publish frames of their actor
	escaped       string          // the first publish that got past a link unseen
	tableSize     int             // publishes whose custody is kept for the table
	redelivered   int
	absorbed      int
	retried       int

	brokerEnd   *evidence.Snapshot // the broker's newest at "end"; nil if there is none
	businessEnd *evidence.Snapshot // the newest of the business database
	effects     map[effectKey][]*evidence.StoredRow
	strayRows   []stray
}

// symbol is a name and its number.
type symbol struct {
	text string
	id   uint32
}

// slot is the identity of a publish: 56 bytes, kept for ever.
type slot struct {
	businessKey, messageKey, digestKey uint64 // hashes
	hot                                uint32 // index in ledger.hot + 1; 0 is frozen
	kept                               uint32 // its receipts in ledger.receipts
	nextOfBusiness                     ref    // a ring; 0 is alone
	nextTry                            ref    // of the same producer and count
	count                              uint32
	producer, try                      uint16
	keptN                              uint8
	heldBy                             evidence.HeldBy
	destination                        uint32
}

// keptReceipt is a settled receipt: 32 bytes.
type keptReceipt struct {
	acked           stamp
	frame           uint64 // that confirmed it
	link, conn, sub uint16
	deliveries      uint8 // 255 is that or more
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
	byCount []ref
}

type session struct {
	actor       *actor
	sub         *subscriber
	openCalled  stamp // 0: not known, so nothing is proven of what comes on it
	ended       stamp
	live, heard bool
}

type actor struct {
	name     uint32
	sub      *subscriber
	sessions []*session
}

// subscriber is a logical subscriber: a competing set, a group or a durable
// identity. It is live while one of its sessions is.
type subscriber struct {
	name         uint32
	destinations []uint32
	durable      bool // exists from its confirmed declaration, sessions or not
	declared     stamp
	live         int
	liveSince    stamp
	died         stamp // when it last lost its last session
	ended        stamp // when it last lost one that its broker outlived
	inFlight     int
	freeSince    time.Duration
	position     int
}

// deadlines of unserved messages: a heap, the earliest first.
type deadlines []due

type due struct {
	at  time.Duration
	ref ref
}

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].at < d[j].at }
func (d deadlines) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)        { *d = append(*d, x.(due)) }

func (d *deadlines) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}

type partitionStart struct {
	stamp
	names []string // its own, and those it took over by migration
}

type effectKey struct {
	business uint64
	sub      uint32 // 0: the row names none
}

type stray struct {
	snapshot *evidence.Snapshot
	row      *evidence.StoredRow
}

const (
	frameDeliver    = "deliver"
	framePublish    = "publish"
	frameAccept     = "accept"
	frameAckConfirm = "ack-confirm"
	actorBroker     = "broker"

	coolDown      = 1 << 12 // settled publishes that stay hot, for what still follows an acknowledgement
	maxDenseCount = 1 << 26 // larger counts are not of our producers
	maxProducers  = 1<<16 - 1
)

func newLedger(h *evidence.History) *ledger {
	l := &ledger{
		manifest: &h.Manifest, limits: h.Manifest.Profile.Limits,
		snapshots: slices.Clone(h.Snapshots),
		automatic: h.Manifest.Profile.AckCounting == "automatic",
		class:     make(map[string]evidence.Class),
		symbols:   make(map[string]uint32), names: []string{""},
		producer: make(map[string]*producer), odd: make(map[string]ref),
		sessions: make(map[uint32]*session), actors: make(map[uint32]*actor),
		bySymbol: make(map[uint32]*subscriber), matching: make(map[uint32][]*subscriber),
		observes: make(map[uint32]bool), active: make(map[string]bool), checkpoints: make(map[string]stamp), held: make(map[uint32]windows),
	}
	slices.SortStableFunc(l.snapshots, func(a, b evidence.Snapshot) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, f := range h.Manifest.Faults {
		l.class[f.Label] = f.Class
	}
	for i := range l.snapshots {
		l.hasEffects = l.hasEffects || l.snapshots[i].Source == evidence.SourceBusiness
	}
	return l
}

func (l *ledger) symbol(s string) uint32 {
	if s == "" {
		return 0
	}
	memo := &l.recent[(len(s)+int(s[len(s)-1]))%len(l.recent)]
	if memo.text == s {
		return memo.id
	}
	if id, ok := l.symbols[s]; ok {
		*memo = symbol{l.names[id], id}
		return id
	}
	s = strings.Clone(s) // not the line it was read from
	id := uint32(len(l.names))
	l.symbols[s] = id
	l.names = append(l.names, s)
	return id
}

// lookUp finds a publish by its own ID, or gives 0.
func (l *ledger) lookUp(id string) ref {
	name, count, try, ok := evidence.SplitPublishID(id)
	if !ok || count > maxDenseCount || try > maxProducers {
		return l.odd[id]
	}
	p := l.producerOf(name)
	if p == nil || count > len(p.byCount) {
		return l.odd[id]
	}
	for r := p.byCount[count-1]; r != 0; {
		s := l.slots.at(uint32(r))
		if int(s.try) == try {
			return r
		}
		r = s.nextTry
	}
	return l.odd[id]
}

func (l *ledger) producerOf(name string) *producer {
	if l.lastProd == nil || l.lastProd.name != name {
		p := l.producer[name]
		if p == nil {
			return nil
		}
		l.lastProd = p
	}
	return l.lastProd
}

// publish finds or makes the record of a publish ID. A first mention that is
// not its call makes a placeholder, which stays one if nobody ever called it.
func (l *ledger) publish(id, business string) *message {
	r := l.lookUp(id)
	if r == 0 {
		r = l.add(id)
	}
	m := l.message(r)
	if m.businessID == "" && business != "" {
		m.businessID = business
		if m.businessKey == 0 {
			l.joinBusiness(m, hash(business))
		}
	}
	return m
}

func (l *ledger) add(id string) ref {
	r := ref(l.slots.grow(1))
	s := l.slots.at(uint32(r))
	name, count, try, ok := evidence.SplitPublishID(id)
	p := l.producerOf(name)
	if ok && p == nil && len(l.producers) < maxProducers {
		p = &producer{name: strings.Clone(name), number: len(l.producers) + 1}
		l.producers = append(l.producers, p)
		l.producer[p.name] = p
	}
	// A count far beyond what was seen would cost memory for nothing.
	if ok && p != nil && try <= maxProducers && count <= maxDenseCount && count <= 64*int(l.slots.n)+1<<10 {
		if count > len(p.byCount) {
			p.byCount = slices.Grow(p.byCount, count-len(p.byCount))[:count]
		}
		s.producer, s.count, s.try = uint16(p.number), uint32(count), uint16(try)
		s.nextTry = p.byCount[count-1]
		p.byCount[count-1] = r
	} else {
		l.odd[id] = r
	}
	m := l.heat(r, s)
	m.publishID = id
	return r
}

// joinBusiness puts a publish into the ring of its business ID.
func (l *ledger) joinBusiness(m *message, h uint64) {
	m.businessKey = h
	head := l.business.find(h, func(r ref) bool { return l.slots.at(uint32(r)).businessKey == h })
	if head == 0 {
		l.business.put(h, m.ref)
		return
	}
	s := l.slots.at(uint32(head))
	m.nextOfBusiness = s.nextOfBusiness
	if m.sole() {
		m.nextOfBusiness = head
	}
	s.nextOfBusiness = m.ref
}

func (l *ledger) setMessageID(m *message, id string) {
	if id == "" || m.messageID != "" {
		return
	}
	m.messageID, m.messageKey = id, hash(id)
	if l.byMessage {
		l.indexMessage(m.ref)
	}
}

// systemNames notes what the system calls a message: its word counts, and not
// the ID that the publisher asked for.
func (l *ledger) systemNames(m *message, id string) {
	if id != "" && !m.named {
		m.named, m.messageID = true, ""
	}
	l.setMessageID(m, id)
}

func (l *ledger) indexMessage(r ref) {
	h := l.slots.at(uint32(r)).messageKey
	if h != 0 && l.findMessage(h) == 0 {
		l.messageID.put(h, r)
	}
}

func (l *ledger) findMessage(h uint64) ref {
	return l.messageID.find(h, func(r ref) bool { return l.slots.at(uint32(r)).messageKey == h })
}

// resolve finds what an event or row is about by the best ID that it has.
func (l *ledger) resolve(publish, messageID, business string) *message {
	if publish != "" {
		return l.publish(publish, business)
	}
	if messageID != "" {
		if !l.byMessage {
			l.byMessage = true
			for r := uint32(1); r <= l.slots.n; r++ {
				l.indexMessage(ref(r))
			}
		}
		if r := l.findMessage(hash(messageID)); r != 0 {
			return l.message(r)
		}
	}
	if r := l.ofBusiness(hash(business)); r != 0 {
		return l.message(r)
	}
	return nil
}

func (l *ledger) ofBusiness(h uint64) ref {
	if h == 0 {
		return 0
	}
	return l.business.find(h, func(r ref) bool { return l.slots.at(uint32(r)).businessKey == h })
}

// message gives the open record of a publish, thawing it if it was frozen.
func (l *ledger) message(r ref) *message {
	s := l.slots.at(uint32(r))
	if s.hot != 0 {
		return l.hot[s.hot-1]
	}
	m := l.heat(r, s)
	l.thaw(m)
	m.publishID = l.publishIDOf(m)
	l.settled = append(l.settled, r)
	return m
}

func (l *ledger) heat(r ref, s *slot) *message {
	var m *message
	if n := len(l.idle); n > 0 {
		m, l.idle = l.idle[n-1], l.idle[:n-1]
	} else {
		m = new(message)
	}
	m.ref, m.slot = r, s
	if n := len(l.freeHot); n > 0 {
		s.hot, l.freeHot = l.freeHot[n-1], l.freeHot[:n-1]
		l.hot[s.hot-1] = m
	} else {
		l.hot = append(l.hot, m)
		s.hot = uint32(len(l.hot))
	}
	return m
}

// thaw fills a record from what was kept.
func (l *ledger) thaw(m *message) {
	s := m.slot
	m.frozen = true
	m.acceptance = evidence.Accepted
	m.called, m.returned = stamp{seq: 1}, stamp{seq: 1}
	for i := range uint32(s.keptN) {
		k := l.receipts.at(s.kept + i)
		r := receipt{sub: uint32(k.sub), must: k.flags&keptMust != 0, deliveries: int(k.deliveries), messageHash: s.messageKey,
			first: k.acked, last: k.acked, ackCalled: k.acked, acked: k.acked,
			confirmFrame: k.frame, confirmLink: uint32(k.link), confirmConn: int(k.conn)}
		if k.flags&keptConfirmed != 0 {
			r.confirm = k.acked
		}
		if k.flags&keptUnmarked != 0 {
			r.unmarked = 1
		}
		m.receipts = append(m.receipts, r)
	}
}

func (l *ledger) publishIDOf(m *message) string {
	if m.producer == 0 {
		return ""
	}
	return evidence.PublishID(l.producers[m.producer-1].name, int(m.count), int(m.try))
}

// done notes that a publish may have come to rest.
func (l *ledger) done(m *message) {
	if !l.plain(m) {
		return
	}
	l.settled = append(l.settled, m.ref)
	if len(l.settled) < 2*coolDown {
		return
	}
	for _, r := range l.settled[:coolDown] {
		if s := l.slots.at(uint32(r)); s.hot != 0 {
			if m := l.hot[s.hot-1]; l.plain(m) {
				l.freeze(m)
			}
		}
	}
	l.settled = l.settled[:copy(l.settled, l.settled[coolDown:])]
}

// plain says that nothing of a publish is open and nothing about it is unusual,
// so that a few bytes can say all of it.
func (l *ledger) plain(m *message) bool {
	if m.called.seq == 0 || m.acceptance != evidence.Accepted || m.returned.seq == 0 || m.ttl != 0 || m.alias ||
		m.producer == 0 || len(m.receipts) == 0 || len(m.receipts) > 8 || m.steps != nil ||
		m.struck != nil || m.lookups != nil || m.deadLettered.seq != 0 || m.purged.seq != 0 || m.expiredSaid.seq != 0 {
		return false
	}
	for i := range m.receipts {
		r := &m.receipts[i]
		if !l.acknowledged(r) || r.failed.seq != 0 || r.unmarked > 1 || r.sub > maxProducers ||
			r.confirmLink > maxProducers || r.confirmConn > maxProducers {
			return false
		}
	}
	return true
}

func (l *ledger) freeze(m *message) {
	s := m.slot
	n := uint32(len(m.receipts))
	if n > uint32(s.keptN) {
		s.kept = l.receipts.grow(n)
	}
	s.keptN = uint8(n)
	for i := range m.receipts {
		r := &m.receipts[i]
		k := l.receipts.at(s.kept + uint32(i))
		*k = keptReceipt{acked: r.acked, frame: r.confirmFrame, link: uint16(r.confirmLink), conn: uint16(r.confirmConn),
			sub: uint16(r.sub), deliveries: uint8(min(r.deliveries, 255))}
		if r.must {
			k.flags |= keptMust
		}
		if r.confirm.seq != 0 {
			k.flags |= keptConfirmed
		}
		if r.unmarked > 0 {
			k.flags |= keptUnmarked
		}
	}
	l.hot[s.hot-1] = nil
	l.freeHot = append(l.freeHot, s.hot)
	s.hot = 0
	*m = message{receipts: m.receipts[:0]}
	l.idle = append(l.idle, m)
}

// acknowledged: the client has done all that it can for this subscriber.
func (l *ledger) acknowledged(r *receipt) bool {
	return r.acked.seq != 0 || l.automatic && r.deliveries > 0
}

// group is every publish of a message's business ID, itself included, oldest first.
func (l *ledger) group(m *message) []*message {
	if m.sole() {
		return []*message{m}
	}
	all := []*message{m}
	for r := m.nextOfBusiness; r != m.ref; r = l.slots.at(uint32(r)).nextOfBusiness {
		all = append(all, l.message(r))
	}
	slices.SortFunc(all, func(a, b *message) int { return cmp.Compare(a.ref, b.ref) })
	return all
}

// aliases is the part of the group that one stored message answers for: a
// delivery or a row of any meets the obligations of all.
func (l *ledger) aliases(m *message) []*message {
	if m.sole() {
		return []*message{m}
	}
	var same []*message
	for _, o := range l.group(m) {
		if o == m || o.messageKey != 0 && o.messageKey == m.messageKey ||
			m.alias && m.messageKey == 0 || o.alias && o.messageKey == 0 {
			same = append(same, o)
		}
	}
	return same
}

// each runs f over every publish, in order of first mention. f must not keep m.
func (l *ledger) each(f func(*message)) {
	scratch := new(message)
	for r := uint32(1); r <= l.slots.n; r++ {
		s := l.slots.at(r)
		if s.hot != 0 {
			f(l.hot[s.hot-1])
			continue
		}
		*scratch = message{ref: ref(r), slot: s, receipts: scratch.receipts[:0]}
		l.thaw(scratch)
		f(scratch)
	}
}

func (l *ledger) name(symbol uint32) string { return l.names[symbol] }

// publishes counts them.
func (l *ledger) publishes() int { return int(l.slots.n) }
