package guarantees

import (
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
)

// observe is how the ledger tells the checkers of one thing that happened.
type observe func(e *evidence.Event, m *message, r *receipt)

// handlers bring the ledger up to date with one event and pass it on.
var handlers = [...]func(*ledger, *evidence.Event, observe){
	evidence.PublishCalled:     (*ledger).publishCalled,
	evidence.PublishReturned:   (*ledger).publishReturned,
	evidence.SubscribeCalled:   (*ledger).subscribeCalled,
	evidence.SubscribeReturned: (*ledger).subscribeReturned,
	evidence.SessionOpened:     (*ledger).sessionOpened,
	evidence.SessionEnded:      (*ledger).sessionEnded,
	evidence.Delivered:         (*ledger).delivered,
	evidence.HandlerFailed:     (*ledger).handling,
	evidence.EffectCalled:      (*ledger).handling,
	evidence.EffectCommitted:   (*ledger).handling,
	evidence.EffectAbsorbed:    (*ledger).handling,
	evidence.EffectFailed:      (*ledger).handling,
	evidence.AckCalled:         (*ledger).handling,
	evidence.AckReturned:       (*ledger).handling,
	evidence.NackCalled:        (*ledger).handling,
	evidence.NackReturned:      (*ledger).handling,
	evidence.LookupCalled:      (*ledger).lookupCalled,
	evidence.LookupReturned:    (*ledger).lookupReturned,
	evidence.FrameCarried:      (*ledger).frameCarried,
	evidence.FaultFired:        (*ledger).faultFired,
	evidence.FaultArmed:        (*ledger).faultArmed,
	evidence.FaultHealed:       (*ledger).faultHealed,
	evidence.ProcessStarted:    (*ledger).processStarted,
	evidence.ProcessExited:     (*ledger).processExited,
	evidence.ProcessPaused:     (*ledger).stilled,
	evidence.ProcessContinued:  (*ledger).recovered,
	evidence.PhaseBegan:        (*ledger).phaseBegan,
	evidence.DrainEnded:        (*ledger).drainEnded,
	evidence.DeadLettered:      (*ledger).disposed,
	evidence.Purged:            (*ledger).disposed,
	evidence.ClockSet:          (*ledger).setClock,
	evidence.Commanded:         (*ledger).commanded,
	evidence.SnapshotTaken:     (*ledger).snapshotTaken,
	evidence.Noted:             nil,
}

func (l *ledger) apply(e *evidence.Event, tell observe) {
	l.now = stampOf(e)
	for len(l.deadlines) > 0 && l.deadlines[0].at <= l.now.at {
		l.pastDeadline(l.popDeadline())
	}
	if int(e.Kind) < len(handlers) && handlers[e.Kind] != nil {
		handlers[e.Kind](l, e, tell)
		return
	}
	tell(e, nil, nil)
}

func (l *ledger) publishCalled(e *evidence.Event, tell observe) {
	if e.PublishID == "" {
		return
	}
	m := l.publish(e.PublishID, e.BusinessID)
	m.called = l.now
	m.actor, m.session, m.destination = l.symbol(e.Actor), l.symbol(e.Session), l.symbol(e.Destination)
	m.slot.destination = m.destination
	m.key, m.ttl = hash(e.Key), e.TTL
	if m.slot.digest == 0 {
		m.slot.digest = hash(e.Digest)
	}
	l.setMessageID(m, e.MessageID) // where the publisher chooses it
	if m.slot.try > 1 {
		l.retried++
	}
	if l.tableSize < MaxMessages {
		l.tableSize++
		m.steps = make([]step, 0, 6)
	}
	l.step(m, partyClient)
	tell(e, m, nil)
}

func (l *ledger) publishReturned(e *evidence.Event, tell observe) {
	if e.PublishID == "" {
		return
	}
	m := l.publish(e.PublishID, e.BusinessID)
	m.returned, m.acceptance, m.heldBy = l.now, e.Acceptance, e.HeldBy
	m.toldOK, m.clock = e.OK, l.clock
	if e.Duplicate {
		m.alias = true
	} else if h := hash(e.MessageID); h != 0 && m.slot.nextOfBusiness != 0 {
		for _, o := range l.group(m) {
			m.alias = m.alias || o != m && o.slot.messageID == h
		}
	}
	m.named = false // the answer's word counts more than a delivery's
	l.systemNames(m, e.MessageID)
	if e.Acceptance == evidence.Accepted || e.Acceptance == evidence.Unknown {
		l.match(m)
	}
	if e.Acceptance == evidence.Accepted {
		// A frame is recorded before it is forwarded, so an answer without one
		// came past the link, and so may have what a fault should have struck.
		if l.observes[m.actor] && m.published.seq == 0 && m.struck == nil && e.HeldBy != evidence.HeldByClient && l.escaped == "" {
			l.escaped = l.label(m)
		}
		l.step(m, holder(e.HeldBy))
		if m.ttl > 0 {
			l.pushDeadline(due{m.deadline(), m.ref})
		}
	}
	tell(e, m, nil)
	l.done(m)
}

// match finds the logical subscribers that must get a publish: confirmed before
// it was called and not ended before it returned. One that ends before it was
// served is let off when all is known (see ledger.obliged).
func (l *ledger) match(m *message) {
	for _, s := range l.matchingOf(m.destination) {
		if s.durable && s.declared.before(m.called) || s.live > 0 && s.liveSince.before(m.called) {
			m.receipt(s.name).must = true
		}
	}
}

// matchingOf are the logical subscribers of a destination.
func (l *ledger) matchingOf(destination uint32) []*subscriber {
	subs, known := l.matching[destination]
	if !known {
		for _, s := range l.subscribers {
			if slices.ContainsFunc(s.destinations, func(d uint32) bool {
				return topicMatches(l.name(d), l.name(destination))
			}) {
				subs = append(subs, s)
			}
		}
		l.matching[destination] = subs
	}
	return subs
}

// topicMatches follows MQTT: "+" is one level, "#" all that follow.
func topicMatches(filter, topic string) bool {
	if filter == topic {
		return true
	}
	if !strings.ContainsAny(filter, "+#") {
		return false
	}
	for {
		f, restF, moreF := strings.Cut(filter, "/")
		if f == "#" {
			return true
		}
		t, restT, moreT := strings.Cut(topic, "/")
		if f != "+" && f != t {
			return false
		}
		if !moreF || !moreT {
			return moreF == moreT || moreF && restF == "#" // "a/#" matches "a"
		}
		filter, topic = restF, restT
	}
}

func (l *ledger) actorOf(name string) *actor {
	id := l.symbol(name)
	a := l.actors[id]
	if a == nil {
		a = &actor{name: id}
		l.actors[id] = a
	}
	return a
}

func (l *ledger) sessionOf(e *evidence.Event) *session {
	name := e.Session
	if name == "" {
		name = e.Actor
	}
	id := l.symbol(name)
	s := l.sessions[id]
	if s == nil {
		a := l.actorOf(e.Actor)
		s = &session{actor: a}
		l.sessions[id] = s
		a.sessions = append(a.sessions, s)
	}
	return s
}

func (l *ledger) subscriber(name string) *subscriber {
	id := l.symbol(name)
	s := l.bySymbol[id]
	if s == nil {
		s = &subscriber{name: id, freeSince: -1, position: len(l.subscribers)}
		l.bySymbol[id] = s
		l.subscribers = append(l.subscribers, s)
	}
	return s
}

func (l *ledger) subscribeCalled(e *evidence.Event, tell observe) {
	s := l.sessionOf(e)
	// Nothing can be caused by a subscription before it is asked for, unless
	// the session was resumed and has been served already.
	if s.openCalled.seq == 0 && !s.heard {
		s.openCalled = l.now
	}
	tell(e, nil, nil)
}

func (l *ledger) subscribeReturned(e *evidence.Event, tell observe) {
	if e.OK {
		name := e.Subscription
		if name == "" {
			name = e.Actor
		}
		sub, s := l.subscriber(name), l.sessionOf(e)
		s.sub, s.actor.sub = sub, sub
		if d := l.symbol(e.Destination); !slices.Contains(sub.destinations, d) {
			sub.destinations = append(sub.destinations, d)
			clear(l.matching)
		}
		if sub.declared.seq == 0 {
			sub.declared = l.now
		}
		sub.durable = sub.durable || l.manifest.Profile.KeepsSubscribers || e.HeldBy > evidence.HeldByClient
		if !s.live && s.ended.seq == 0 {
			s.live = true
			if sub.live++; sub.live == 1 {
				sub.liveSince, sub.inFlight, sub.freeSince = l.now, 0, l.now.at
			}
		}
	}
	tell(e, nil, nil)
}

func (l *ledger) sessionOpened(e *evidence.Event, tell observe) {
	l.sessionOf(e)
	tell(e, nil, nil)
}

func (l *ledger) sessionEnded(e *evidence.Event, tell observe) {
	l.endSession(l.sessionOf(e))
	tell(e, nil, nil)
}

func (l *ledger) endSession(s *session) {
	if s.ended.seq == 0 {
		s.ended = l.now
	}
	if !s.live || l.drain.seq != 0 {
		return // who was ready at the end of the drain is what counts; the bench stops everybody after it
	}
	s.live = false
	if s.openCalled.seq > l.brokerEnded.seq { // the others ended with their broker
		s.sub.ended = l.now
	}
	s.sub.live--
	if s.sub.live == 0 {
		s.sub.died, s.sub.freeSince = l.now, -1
	}
}

// subscriberOf is the logical subscriber that an event of a consumer is about.
func (l *ledger) subscriberOf(e *evidence.Event) *subscriber {
	if e.Subscription != "" {
		return l.subscriber(e.Subscription)
	}
	if s := l.sessionOf(e); s.sub != nil {
		return s.sub
	}
	if a := l.actorOf(e.Actor); a.sub != nil {
		return a.sub
	}
	return l.subscriber(e.Actor)
}

func (l *ledger) delivered(e *evidence.Event, tell observe) {
	s := l.sessionOf(e)
	s.heard = true
	if e.PublishID == "" {
		tell(e, nil, nil)
		return
	}
	m := l.publish(e.PublishID, "")
	sub := l.subscriberOf(e)
	r := m.receipt(sub.name)
	if r.deliveries > 0 && m.forge(s.actor.name) {
		return // our own copy: no guarantee ever sees it
	}
	if r.deliveries++; r.deliveries == 1 {
		r.first, r.messageHash = l.now, hash(e.MessageID)
		r.firstStruck = m.struckAt(frameDeliver)
	} else {
		l.redelivered++
	}
	r.before, r.holder = r.last, r.session
	r.last, r.session = l.now, l.symbol(e.Session)
	if e.Mark != evidence.MarkRedelivered && e.Attempt <= 1 {
		r.unmarked++
	}
	r.newest = r.deliveries == 1 || e.Attempt > r.attempt || e.Attempt == 0 && e.Mark == evidence.MarkRedelivered && r.deliveries == 2 && r.unmarked == 1
	if r.newest {
		r.topSession, r.topAt = r.session, l.now
	} else if e.Attempt == 0 { // who has it now is not known
		r.topSession, r.topAt = 0, stamp{}
	}
	r.attempt = max(r.attempt, e.Attempt)
	l.systemNames(m, e.MessageID)
	if sub.inFlight++; sub.inFlight > 0 {
		sub.freeSince = -1
	}
	l.step(m, partyConsumer)
	tell(e, m, r)
	if l.automatic {
		l.markSettled(m, r, sub)
	}
}

// markSettled notes that a subscriber is through with a message.
func (l *ledger) markSettled(m *message, r *receipt, sub *subscriber) {
	if sub.inFlight > 0 {
		sub.inFlight--
	}
	if sub.inFlight == 0 && sub.live > 0 {
		sub.freeSince = l.now.at
	}
	if l.acknowledged(r) {
		l.step(m, partySettled)
		l.done(m)
	}
}

// handling is what a consumer does with a delivery.
func (l *ledger) handling(e *evidence.Event, tell observe) {
	m := l.resolve(e.PublishID, e.MessageID, e.BusinessID)
	if m == nil {
		return
	}
	sub := l.subscriberOf(e)
	r := m.receipt(sub.name)
	switch e.Kind {
	case evidence.HandlerFailed, evidence.EffectFailed:
		r.failed = l.now
	case evidence.EffectCalled:
		l.step(m, partyBusiness)
	case evidence.EffectCommitted:
		l.hasEffects = true
		if r.committed.seq == 0 {
			r.committed = l.now
		}
	case evidence.EffectAbsorbed:
		r.absorbed++
		l.absorbed++
	case evidence.AckCalled:
		if r.ackCalled.seq == 0 {
			r.ackCalled = l.now
		}
	case evidence.AckReturned:
		if e.Ack == evidence.AckConfirmed && r.confirm.seq == 0 {
			r.confirm = l.now
		}
		if e.Ack.Settles() && r.acked.seq == 0 {
			r.acked = l.now
		}
	case evidence.NackReturned:
		r.nacked = l.now
		if m.accepted() {
			l.step(m, holder(m.heldBy))
		}
	}
	tell(e, m, r)
	if e.Kind == evidence.AckReturned || e.Kind == evidence.NackReturned {
		l.markSettled(m, r, sub)
	}
}

func (l *ledger) lookupCalled(e *evidence.Event, tell observe) {
	if m := l.resolve(e.PublishID, "", e.BusinessID); m != nil {
		m.lookups = append(m.lookups, lookup{called: l.now, byPublish: e.PublishID != ""})
		tell(e, m, nil)
	}
}

func (l *ledger) lookupReturned(e *evidence.Event, tell observe) {
	m := l.resolve(e.PublishID, "", e.BusinessID)
	if m == nil {
		return
	}
	for i := range m.lookups {
		if k := &m.lookups[i]; k.returned.seq == 0 {
			k.returned, k.acceptance, k.standing = l.now, e.Acceptance, e.Standing
			break
		}
	}
	if e.Cause == evidence.CauseExpired && m.expiredSaid.seq == 0 {
		m.expiredSaid = l.now
	}
	tell(e, m, nil)
}

func (l *ledger) frameCarried(e *evidence.Event, tell observe) {
	link := l.symbol(e.Link)
	for i := range e.Items {
		it := &e.Items[i]
		m := l.resolve(it.PublishID, it.MessageID, it.BusinessID)
		if m == nil {
			continue
		}
		if e.Struck != "" {
			l.strike(m, e, link)
			tell(e, m, nil)
			continue
		}
		var r *receipt
		switch e.Frame {
		case framePublish:
			m.published = l.now
			l.observes[link] = true
		case frameAccept:
			// One without a publish ID may be the answer to another try.
			if it.PublishID != "" && e.Negative {
				m.denied = l.now
			} else if it.PublishID != "" {
				m.affirmed = l.now
			}
		case frameDeliver:
			l.deliverFrames = true
			m.carried = l.now
			m.sent++
		case frameAckConfirm:
			if e.Negative { // one that refused is an answer too
				break
			}
			if a := l.actors[link]; a != nil && a.sub != nil {
				if r = m.receipt(a.sub.name); r.confirmFrame == 0 {
					r.confirmFrame, r.confirmLink, r.confirmConn = e.Seq, link, e.Conn
				}
			}
		}
		if e.Frame == frameDeliver {
			if a := l.actors[link]; a != nil && a.sub != nil {
				r = m.find(a.sub.name)
			}
		}
		tell(e, m, r)
	}
	if len(e.Items) == 0 {
		tell(e, nil, nil)
	}
}

// strike notes what a fault of ours did to a message.
func (l *ledger) strike(m *message, e *evidence.Event, link uint32) {
	i := slices.IndexFunc(m.struck, func(s strike) bool {
		return s.how == e.Struck && s.frame == e.Frame && s.link == link
	})
	if i < 0 {
		i = len(m.struck)
		m.struck = append(m.struck, strike{seq: e.Seq, how: e.Struck, frame: e.Frame, link: link})
	}
	if e.Struck == "duplicate" {
		if e.Kind == evidence.FaultFired {
			m.struck[i].fired++
		} else {
			m.struck[i].carried++
		}
	}
	if e.Frame == frameDeliver && withholding[e.Struck] {
		m.withheld = l.now
	}
	l.mark(m, e.Struck+" "+e.Frame)
}

// withholding are the strikes after which the system rightly believes that a
// frame is on its way, or has arrived.
var withholding = map[string]bool{"drop": true, "hold": true, "withhold": true, "black-hole": true}

// maxFailures of the broker are remembered; in a run that has more, the rest
// excuses nothing.
const maxFailures = 1 << 16

func (l *ledger) fails() {
	if len(l.failures) < maxFailures {
		l.failures = append(l.failures, l.now)
	}
}

// failing are the classes that can undo what a broker had not made durable.
var failing = map[evidence.Class]bool{
	evidence.BrokerCrash: true, evidence.BrokerRestart: true, evidence.PowerLoss: true,
	evidence.Store: true, evidence.NodeLoss: true,
}

// delaying are the strikes after which what follows on a link comes late.
var delaying = map[string]bool{"hold": true, "hold-after": true, "delay": true}

func (l *ledger) faultFired(e *evidence.Event, tell observe) {
	l.active[e.Fault] = true
	l.fired = l.now
	l.trouble(e.Fault)
	if failing[l.class[e.Fault]] {
		l.fails()
	}
	link := l.symbol(e.Link)
	if l.class[e.Fault] == evidence.BrokerPause {
		l.pauses = append(l.pauses, window{e.Fault, e.At, -1})
	}
	if delaying[e.Struck] {
		l.held[link] = append(l.held[link], window{e.Fault, e.At, -1})
	}
	for i := range e.Items {
		it := &e.Items[i]
		if m := l.resolve(it.PublishID, it.MessageID, it.BusinessID); m != nil {
			l.strike(m, e, link)
		}
	}
	tell(e, nil, nil)
}

// faultArmed: a fault of a whole link is at work from then on; that it has fired
// shows only when something has come through in spite of it.
func (l *ledger) faultArmed(e *evidence.Event, tell observe) {
	if e.Link != "" && e.Frame == "" {
		l.trouble(e.Fault)
	}
	tell(e, nil, nil)
}

func (l *ledger) faultHealed(e *evidence.Event, tell observe) {
	delete(l.active, e.Fault)
	closeWindows(l.troubles, e)
	for _, windows := range l.held {
		closeWindows(windows, e)
	}
	closeWindows(l.pauses, e)
	l.recovered(e, tell)
}

func closeWindows(windows []window, healed *evidence.Event) {
	for i := range windows {
		if windows[i].label == healed.Fault && windows[i].to < 0 {
			windows[i].to = healed.At
		}
	}
}

// paused reports whether the broker stood still at some time between the two.
func (l *ledger) paused(from, to time.Duration) bool {
	return slices.ContainsFunc(l.pauses, func(w window) bool { return w.from <= to && (w.to < 0 || w.to >= from) })
}

// delayedByUs reports whether a fault of ours may be why a frame that passed a
// link now could not pass it by its deadline.
func (l *ledger) delayedByUs(link uint32, deadline time.Duration) bool {
	return slices.ContainsFunc(l.held[link], func(w window) bool {
		return w.from <= l.now.at && (w.to < 0 || w.to+l.limits.InFlightBound >= deadline)
	})
}

// stilled: a process stands still, for which its peers may end its sessions.
func (l *ledger) stilled(e *evidence.Event, tell observe) {
	l.trouble("")
	tell(e, nil, nil)
}

func (l *ledger) recovered(e *evidence.Event, tell observe) {
	l.healed = l.now
	tell(e, nil, nil)
}

func (l *ledger) phaseBegan(e *evidence.Event, tell observe) {
	switch e.Phase {
	case evidence.Heal:
		l.healed = l.now
	case evidence.Ended:
		l.over = true
	}
	tell(e, nil, nil)
}

func (l *ledger) processStarted(e *evidence.Event, tell observe) {
	if e.Actor == actorBroker {
		if l.brokerEnded.seq != 0 { // not the first start
			l.trouble("")
		}
		l.healed = l.now
		if len(e.Partitions) > 0 {
			l.partitions = append(l.partitions, partitionStart{l.now, slices.Clone(e.Partitions)})
		}
	}
	tell(e, nil, nil)
}

func (l *ledger) processExited(e *evidence.Event, tell observe) {
	l.trouble("")
	if e.Actor == actorBroker {
		l.brokerEnded = l.now
		if !l.over { // the bench stops it when all has been seen
			l.fails()
		}
		if e.Exit != nil && !e.Exit.Ordered {
			l.falls = append(l.falls, l.now)
		}
	} else {
		for _, s := range l.actorOf(e.Actor).sessions {
			l.endSession(s)
		}
	}
	tell(e, nil, nil)
}

func (l *ledger) drainEnded(e *evidence.Event, tell observe) {
	l.drain, l.drainReason = l.now, e.Drain
	tell(e, nil, nil)
}

func (l *ledger) disposed(e *evidence.Event, tell observe) {
	m := l.resolve(e.PublishID, e.MessageID, e.BusinessID)
	if m == nil {
		return
	}
	if e.Kind == evidence.Purged {
		m.purged = l.now
		l.step(m, partyNobody)
	} else {
		m.deadLettered, m.deadCause, m.deadWords = l.now, e.Cause, wordsIn(e)
		if e.Cause == evidence.CauseExpired && m.expiredSaid.seq == 0 {
			m.expiredSaid = l.now
		}
		l.step(m, partyDead)
	}
	tell(e, m, nil)
}

func (l *ledger) setClock(e *evidence.Event, tell observe) {
	l.trouble("")
	if e.Actor == actorBroker {
		l.clockWas = l.clockRecently()
		l.clock, l.clockSet, l.clockSetAt = e.Offset, true, l.now.at
	}
	tell(e, nil, nil)
}

// clockRecently is the earliest that the broker's clock was when a frame that
// passes a link now may have left.
func (l *ledger) clockRecently() time.Duration {
	if l.now.at-l.clockSetAt <= l.limits.InFlightBound {
		return min(l.clock, l.clockWas)
	}
	return l.clock
}

// elsewhere reports whether the broker runs now under another partition than
// that in which it accepted a publish.
func (l *ledger) elsewhere(m *message) bool {
	now := len(l.partitions) - 1
	for i := now; i >= 0; i-- {
		if l.partitions[i].before(m.returned) {
			return !slices.Contains(l.partitions[now].names, l.partitions[i].names[0])
		}
	}
	return false
}

func (l *ledger) snapshotTaken(e *evidence.Event, tell observe) {
	if _, twice := l.checkpoints[e.Checkpoint]; !twice {
		l.checkpoints[strings.Clone(e.Checkpoint)] = l.now
	}
	tell(e, nil, nil)
}

// commanded notes what an order changes: a redriven dead letter gets its
// attempts anew, a rewound subscriber is served again.
func (l *ledger) commanded(e *evidence.Event, tell observe) {
	l.trouble("")
	switch e.Command {
	case evidence.CommandRestart:
		l.restarted = l.restarted || e.Actor == actorBroker
	case evidence.CommandRewind:
		l.rewind(l.symbol(e.Subscription), e.Checkpoint)
	case evidence.CommandRedrive:
		if m := l.resolve(e.PublishID, e.MessageID, e.BusinessID); m != nil && m.deadLettered.seq != 0 {
			m.redriven++
			m.deadLettered = stamp{}
		}
	}
	tell(e, nil, nil)
}

// rewind puts a logical subscriber back to a checkpoint. All that it has settled
// may come again; what was published after the checkpoint must, whatever was
// known of it.
func (l *ledger) rewind(sub uint32, checkpoint string) {
	mark := l.checkpoints[checkpoint]
	for _, m := range l.hot {
		if m == nil {
			continue
		}
		if r := m.find(sub); r != nil {
			again := receipt{sub: sub, must: r.must}
			if !m.frozen && mark.before(m.called) {
				again.rewound = l.now
			} else {
				again.ackCalled, again.acked = r.ackCalled, r.acked
			}
			*r = again
		}
	}
	for i := uint32(1); i <= l.receipts.n; i++ {
		if k := l.receipts.at(i); uint32(k.sub) == sub {
			k.flags &^= keptConfirmed
			k.frame = 0
		}
	}
}

// pushDeadline and popDeadline keep a heap: the earliest deadline first.
func (l *ledger) pushDeadline(d due) {
	h := append(l.deadlines, d)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].at <= h[i].at {
			break
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
	l.deadlines = h
}

func (l *ledger) popDeadline() due {
	h := l.deadlines
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && h[c+1].at < h[c].at {
			c++
		}
		if h[i].at <= h[c].at {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	l.deadlines = h
	return top
}

// pastDeadline looks whether an unserved message was deliverable, to a free and
// ready consumer and with no fault of ours at work, for longer than the
// tolerance: then its deadline excuses nothing.
func (l *ledger) pastDeadline(d due) {
	m := l.message(d.ref)
	if len(l.active) > 0 || l.clockSet || l.elsewhere(m) {
		return
	}
	for _, s := range l.matching[m.destination] {
		if r := m.find(s.name); r != nil && r.deliveries > 0 || s.freeSince < 0 {
			continue
		}
		from := max(s.freeSince, m.returned.at, l.healed.at)
		m.owed = m.owed || d.at-from > l.limits.ExpiryTolerance
	}
}
