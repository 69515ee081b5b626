package ledger

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Observe is called for each message that an event is about, with its receipt
// if a logical subscriber is concerned; or once with neither.
type Observe func(e *evidence.Event, m *Message, r *Receipt)

// aboutMessages interprets events about messages, and reports each message.
var aboutMessages = [evidence.Noted + 1]func(*Ledger, *evidence.Event, Observe){
	evidence.PublishCalled:   (*Ledger).publishCalled,
	evidence.PublishReturned: (*Ledger).publishReturned,
	evidence.Delivered:       (*Ledger).delivered,
	evidence.HandlerFailed:   (*Ledger).handling,
	evidence.EffectCalled:    (*Ledger).handling,
	evidence.EffectCommitted: (*Ledger).handling,
	evidence.EffectAbsorbed:  (*Ledger).handling,
	evidence.EffectFailed:    (*Ledger).handling,
	evidence.AckCalled:       (*Ledger).handling,
	evidence.AckReturned:     (*Ledger).handling,
	evidence.NackCalled:      (*Ledger).handling,
	evidence.NackReturned:    (*Ledger).handling,
	evidence.LookupCalled:    (*Ledger).lookupCalled,
	evidence.LookupReturned:  (*Ledger).lookupReturned,
	evidence.FrameCarried:    (*Ledger).frameCarried,
	evidence.DeadLettered:    (*Ledger).disposed,
	evidence.Purged:          (*Ledger).disposed,
}

// aboutRun interprets events about a client, a fault, a process or the run.
var aboutRun = [evidence.Noted + 1]func(*Ledger, *evidence.Event){
	evidence.SubscribeCalled:   (*Ledger).subscribeCalled,
	evidence.SubscribeReturned: (*Ledger).subscribeReturned,
	evidence.SessionOpened:     func(l *Ledger, e *evidence.Event) { l.SessionOf(e) },
	evidence.SessionEnded:      func(l *Ledger, e *evidence.Event) { l.endSession(l.SessionOf(e)) },
	evidence.FaultFired:        (*Ledger).faultFired,
	evidence.FaultArmed:        (*Ledger).faultArmed,
	evidence.FaultHealed:       (*Ledger).faultHealed,
	evidence.ProcessStarted:    (*Ledger).processStarted,
	evidence.ProcessExited:     (*Ledger).processExited,
	evidence.ProcessPaused:     func(l *Ledger, _ *evidence.Event) { l.trouble("") }, // peers may end the process's sessions
	evidence.ProcessContinued:  func(l *Ledger, _ *evidence.Event) { l.Healed = l.Now },
	evidence.PhaseBegan:        (*Ledger).phaseBegan,
	evidence.DrainEnded:        func(l *Ledger, e *evidence.Event) { l.Drain, l.DrainReason = l.Now, e.Drain },
	evidence.ClockSet:          (*Ledger).setClock,
	evidence.Commanded:         (*Ledger).commanded,
	evidence.SnapshotTaken:     (*Ledger).snapshotTaken,
}

// Apply updates the ledger with one event, then calls tell.
func (l *Ledger) Apply(e *evidence.Event, tell Observe) {
	l.Now = StampOf(e)
	for len(l.deadlines) > 0 && l.deadlines[0].at <= l.Now.At {
		l.pastDeadline(heap.Pop(&l.deadlines).(due))
	}
	if int(e.Kind) < len(aboutRun) {
		if interpret := aboutMessages[e.Kind]; interpret != nil {
			interpret(l, e, tell)
			return
		}
		if interpret := aboutRun[e.Kind]; interpret != nil {
			interpret(l, e)
		}
	}
	tell(e, nil, nil)
}

func (l *Ledger) publishCalled(e *evidence.Event, tell Observe) {
	if e.PublishID == "" {
		return
	}
	m := l.publish(e.PublishID, e.BusinessID)
	m.Called = l.Now
	m.Actor, m.Session, m.Destination = l.Symbol(e.Actor), l.Symbol(e.Session), l.Symbol(e.Destination)
	m.Key, m.TTL = Hash(e.Key), e.TTL
	if m.DigestKey == 0 {
		m.DigestKey = Hash(e.Digest)
	}
	l.setMessageID(m, e.MessageID) // set if the publisher chooses the ID
	if m.Try > 1 {
		l.Retried++
	}
	if l.timelines < MaxTimelines {
		l.timelines++
		m.Steps = make([]Step, 0, 6)
	}
	l.step(m, PartyClient)
	tell(e, m, nil)
}

func (l *Ledger) publishReturned(e *evidence.Event, tell Observe) {
	if e.PublishID == "" {
		return
	}
	m := l.publish(e.PublishID, e.BusinessID)
	m.Returned, m.Acceptance, m.HeldBy = l.Now, e.Acceptance, e.HeldBy
	m.ToldOK, m.Clock = e.OK, l.clock
	if e.Duplicate {
		m.Alias = true
	} else if h := Hash(e.MessageID); h != 0 && !m.Sole() {
		for _, o := range l.Group(m) {
			m.Alias = m.Alias || o != m && o.MessageKey == h
		}
	}
	m.Named = false // the ID in the answer takes precedence over a delivery's
	l.systemNames(m, e.MessageID)
	if e.Acceptance == evidence.Accepted || e.Acceptance == evidence.Unknown {
		l.match(m)
	}
	if e.Acceptance == evidence.Accepted {
		// A frame is recorded before it is forwarded, so an answer without a
		// recorded publish frame bypassed the link. So may other frames, which
		// faults should have struck.
		if l.observes[m.Actor] && m.published.Seq == 0 && m.Struck == nil && e.HeldBy != evidence.HeldByClient && l.Escaped == "" {
			l.Escaped = l.Label(m)
		}
		l.step(m, Holder(e.HeldBy))
		if m.TTL > 0 {
			heap.Push(&l.deadlines, due{m.Deadline(), m.Ref})
		}
	}
	tell(e, m, nil)
	l.done(m)
}

// match marks the logical subscribers that must get a publish: confirmed
// before its call and not ended before its return. Whether one that ends
// before it is served is still owed the message is decided at the end.
func (l *Ledger) match(m *Message) {
	for _, s := range l.Matching(m.Destination) {
		if s.Durable && s.declared.Before(m.Called) || s.Live > 0 && s.LiveSince.Before(m.Called) {
			m.receipt(s.Name).Must = true
		}
	}
}

func (v *View) subscriberNamed(name string) *Subscriber {
	id := v.Symbol(name)
	s := v.bySymbol[id]
	if s == nil {
		s = &Subscriber{Name: id, freeSince: -1}
		v.bySymbol[id] = s
		v.Subscribers = append(v.Subscribers, s)
	}
	return s
}

func (l *Ledger) subscribeCalled(e *evidence.Event) {
	s := l.SessionOf(e)
	// A subscription has no effect before it is requested, unless the session
	// was resumed and has already been served.
	if s.OpenCalled.Seq == 0 && !s.heard {
		s.OpenCalled = l.Now
	}
}

func (l *Ledger) subscribeReturned(e *evidence.Event) {
	if !e.OK {
		return
	}
	sub, s := l.subscriberNamed(cmp.Or(e.Subscription, e.Actor)), l.SessionOf(e)
	s.Sub, s.Actor.sub = sub, sub
	if d := l.Symbol(e.Destination); !slices.Contains(sub.destinations, d) {
		sub.destinations = append(sub.destinations, d)
		clear(l.matching)
	}
	if sub.declared.Seq == 0 {
		sub.declared = l.Now
	}
	sub.Durable = sub.Durable || l.Profile.KeepsSubscribers || e.HeldBy > evidence.HeldByClient
	if !s.Live && s.Ended.Seq == 0 {
		s.Live = true
		if sub.Live++; sub.Live == 1 {
			sub.LiveSince, sub.InFlight, sub.freeSince = l.Now, 0, l.Now.At
		}
	}
}

func (l *Ledger) endSession(s *Session) {
	if s.Ended.Seq == 0 {
		s.Ended = l.Now
	}
	if !s.Live || l.Drain.Seq != 0 {
		return // what counts is who was ready at the end of the drain; later the runner stops everybody
	}
	s.Live = false
	if s.OpenCalled.Seq > l.brokerEnded.Seq { // earlier sessions ended with their broker
		s.Sub.Ended = l.Now
	}
	s.Sub.Live--
	if s.Sub.Live == 0 {
		s.Sub.Died, s.Sub.freeSince = l.Now, -1
	}
}

// SubscriberOf returns the logical subscriber that a consumer's event is
// about.
func (v *View) SubscriberOf(e *evidence.Event) *Subscriber {
	if e.Subscription != "" {
		return v.subscriberNamed(e.Subscription)
	}
	if s := v.SessionOf(e); s.Sub != nil {
		return s.Sub
	}
	if a := v.actorOf(e.Actor); a.sub != nil {
		return a.sub
	}
	return v.subscriberNamed(e.Actor)
}

func (l *Ledger) delivered(e *evidence.Event, tell Observe) {
	s := l.SessionOf(e)
	s.heard = true
	if e.PublishID == "" {
		tell(e, nil, nil)
		return
	}
	m := l.publish(e.PublishID, "")
	sub := l.SubscriberOf(e)
	r := m.receipt(sub.Name)
	if r.Deliveries > 0 && m.forge(s.Actor.Name) {
		return // the harness's own copy, hidden from checkers
	}
	if r.Deliveries++; r.Deliveries == 1 {
		r.First, r.MessageHash = l.Now, Hash(e.MessageID)
		r.FirstStruck = m.StruckAt(FrameDeliver)
	} else {
		l.Redelivered++
	}
	r.Before, r.Holder = r.Last, r.Session
	r.Last, r.Session = l.Now, l.Symbol(e.Session)
	if e.Mark != evidence.MarkRedelivered && e.Attempt <= 1 {
		r.Unmarked++
	}
	r.Newest = r.Deliveries == 1 || e.Attempt > r.Attempt || e.Attempt == 0 && e.Mark == evidence.MarkRedelivered && r.Deliveries == 2 && r.Unmarked == 1
	if r.Newest {
		r.TopSession, r.TopAt = r.Session, l.Now
	} else if e.Attempt == 0 { // the current holder is unknown
		r.TopSession, r.TopAt = 0, Stamp{}
	}
	r.Attempt = max(r.Attempt, e.Attempt)
	l.systemNames(m, e.MessageID)
	if sub.InFlight++; sub.InFlight > 0 {
		sub.freeSince = -1
	}
	l.step(m, PartyConsumer)
	tell(e, m, r)
	if l.Automatic {
		l.markSettled(m, r, sub)
	}
}

// markSettled records that a subscriber is done with a message.
func (l *Ledger) markSettled(m *Message, r *Receipt, sub *Subscriber) {
	if sub.InFlight > 0 {
		sub.InFlight--
	}
	if sub.InFlight == 0 && sub.Live > 0 {
		sub.freeSince = l.Now.At
	}
	if l.Acknowledged(r) {
		l.step(m, PartySettled)
		l.done(m)
	}
}

// handling interprets what a consumer does with a delivery.
func (l *Ledger) handling(e *evidence.Event, tell Observe) {
	m := l.Resolve(e.PublishID, e.MessageID, e.BusinessID)
	if m == nil {
		return
	}
	sub := l.SubscriberOf(e)
	r := m.receipt(sub.Name)
	switch e.Kind {
	case evidence.HandlerFailed, evidence.EffectFailed:
		r.Failed = l.Now
	case evidence.EffectCalled:
		l.step(m, PartyBusiness)
	case evidence.EffectCommitted:
		l.HasEffects = true
		if r.Committed.Seq == 0 {
			r.Committed = l.Now
		}
	case evidence.EffectAbsorbed:
		l.Absorbed++
	case evidence.AckCalled:
		if r.AckCalled.Seq == 0 {
			r.AckCalled = l.Now
		}
	case evidence.AckReturned:
		if e.Ack == evidence.AckConfirmed && r.Confirm.Seq == 0 {
			r.Confirm = l.Now
		}
		if e.Ack.Settles() && r.Acked.Seq == 0 {
			r.Acked = l.Now
		}
	case evidence.NackReturned:
		r.Nacked = l.Now
		if m.Accepted() {
			l.step(m, Holder(m.HeldBy))
		}
	}
	tell(e, m, r)
	if e.Kind == evidence.AckReturned || e.Kind == evidence.NackReturned {
		l.markSettled(m, r, sub)
	}
}

func (l *Ledger) lookupCalled(e *evidence.Event, tell Observe) {
	if m := l.Resolve(e.PublishID, "", e.BusinessID); m != nil {
		m.Lookups = append(m.Lookups, Lookup{Called: l.Now, ByPublish: e.PublishID != ""})
		tell(e, m, nil)
	}
}

func (l *Ledger) lookupReturned(e *evidence.Event, tell Observe) {
	m := l.Resolve(e.PublishID, "", e.BusinessID)
	if m == nil {
		return
	}
	for i := range m.Lookups {
		if k := &m.Lookups[i]; k.Returned.Seq == 0 {
			k.Returned, k.Acceptance, k.Standing = l.Now, e.Acceptance, e.Standing
			break
		}
	}
	if e.Cause == evidence.CauseExpired && m.ExpiredSaid.Seq == 0 {
		m.ExpiredSaid = l.Now
	}
	tell(e, m, nil)
}

func (l *Ledger) frameCarried(e *evidence.Event, tell Observe) {
	link := l.Symbol(e.Link)
	for i := range e.Items {
		it := &e.Items[i]
		m := l.Resolve(it.PublishID, it.MessageID, it.BusinessID)
		if m == nil {
			continue
		}
		if e.Struck != "" {
			l.strike(m, e, link)
			tell(e, m, nil)
			continue
		}
		var r *Receipt
		switch e.Frame {
		case FramePublish:
			m.published = l.Now
			m.publishes++
			l.observes[link] = true
		case FrameAccept:
			// An answer without a publish ID may belong to another try.
			if it.PublishID != "" && e.Negative {
				m.Denied = l.Now
			} else if it.PublishID != "" {
				m.Affirmed = l.Now
			}
		case FrameDeliver:
			l.DeliverFrames = true
			m.Carried = l.Now
			m.Sent++
		case FrameAckConfirm:
			if e.Negative { // a refusal confirms nothing
				break
			}
			if a := l.actors[link]; a != nil && a.sub != nil {
				if r = m.receipt(a.sub.Name); r.ConfirmFrame == 0 {
					r.ConfirmFrame, r.ConfirmLink, r.ConfirmConn = e.Seq, link, e.Conn
				}
			}
		}
		if e.Frame == FrameDeliver {
			if a := l.actors[link]; a != nil && a.sub != nil {
				r = m.Find(a.sub.Name)
			}
		}
		tell(e, m, r)
	}
	if len(e.Items) == 0 {
		tell(e, nil, nil)
	}
}

// strike records what a fault did to a message.
func (l *Ledger) strike(m *Message, e *evidence.Event, link Symbol) {
	i := slices.IndexFunc(m.Struck, func(s Strike) bool {
		return s.How == e.Struck && s.Frame == e.Frame && s.link == link
	})
	if i < 0 {
		i = len(m.Struck)
		m.Struck = append(m.Struck, Strike{Seq: e.Seq, How: e.Struck, Frame: e.Frame, link: link})
	}
	if e.Struck == "duplicate" {
		if e.Kind == evidence.FaultFired {
			m.Struck[i].fired++
		} else {
			m.Struck[i].carried++
		}
	}
	switch {
	case !withholding[e.Struck]:
	case e.Frame == FramePublish && e.Struck == "hold":
		l.heldPublish[link] = m.Ref
	case e.Frame == FrameDeliver:
		m.Withheld = l.Now
	case e.Frame == FrameAck:
		if a := l.actors[link]; a != nil && a.sub != nil {
			a.sub.AckWithheld = l.Now
		}
	}
	l.mark(m, e.Struck+" "+e.Frame)
}

// withholding lists the actions after which the system legitimately believes
// that a frame is in flight or has arrived.
var withholding = map[string]bool{"drop": true, "hold": true, "withhold": true, "black-hole": true}

// failing lists the fault classes that can lose data that is not durable.
var failing = map[evidence.Class]bool{
	evidence.BrokerCrash: true, evidence.BrokerRestart: true, evidence.PowerLoss: true,
	evidence.Store: true, evidence.NodeLoss: true, evidence.Rollback: true,
}

// delaying lists the actions that delay everything that follows on a link.
var delaying = map[string]bool{"hold": true, "hold-after": true, "delay": true}

func (l *Ledger) faultFired(e *evidence.Event) {
	l.active[e.Fault] = true
	l.Fired = l.Now
	l.trouble(e.Fault)
	if class := l.class[e.Fault]; failing[class] {
		l.fails(failure{store: class == evidence.Store})
	}
	link := l.Symbol(e.Link)
	if e.Frame == FramePublish && e.Struck == evidence.CommandKill.String() {
		if ref := l.heldPublish[link]; ref != 0 { // with the process, what was held for it is gone
			l.Message(ref).discarded = true
		}
	}
	if l.class[e.Fault] == evidence.BrokerPause {
		l.pauses.open(e.Fault, e.At)
	}
	delayed := link
	stands := e.Struck == evidence.CommandPause.String() && e.Actor != Broker
	if stands { // a paused client reads late
		delayed = l.Symbol(e.Actor)
	}
	if delaying[e.Struck] || stands {
		held := l.held[delayed]
		held.open(e.Fault, e.At)
		l.held[delayed] = held
	}
	for i := range e.Items {
		it := &e.Items[i]
		if m := l.Resolve(it.PublishID, it.MessageID, it.BusinessID); m != nil {
			l.strike(m, e, link)
		}
	}
}

// faultArmed treats a fault on a whole link as active once armed: on an idle
// link it is not seen to fire.
func (l *Ledger) faultArmed(e *evidence.Event) {
	if e.Link != "" && e.Frame == "" {
		l.trouble(e.Fault)
	}
}

func (l *Ledger) faultHealed(e *evidence.Event) {
	delete(l.active, e.Fault)
	l.troubles.close(e.Fault, e.At)
	l.pauses.close(e.Fault, e.At)
	for _, held := range l.held {
		held.close(e.Fault, e.At)
	}
	l.Healed = l.Now
}

func (l *Ledger) phaseBegan(e *evidence.Event) {
	switch e.Phase {
	case evidence.Heal:
		l.Healed = l.Now
	case evidence.Ended:
		l.over = true
	}
}

func (l *Ledger) processStarted(e *evidence.Event) {
	if e.Actor == Broker {
		if l.brokerEnded.Seq != 0 { // not the first start
			l.trouble("")
		}
		l.Healed = l.Now
		if len(e.Partitions) > 0 {
			l.Partitions = append(l.Partitions, PartitionStart{l.Now, slices.Clone(e.Partitions)})
		}
	}
}

func (l *Ledger) processExited(e *evidence.Event) {
	l.trouble("")
	if e.Actor == Broker {
		l.brokerEnded = l.Now
		if crashed := e.Exit != nil && !e.Exit.Ordered; crashed || !l.over { // the runner's final stop is not a failure
			l.fails(failure{crashed: crashed})
		}
	} else {
		for _, s := range l.actorOf(e.Actor).sessions {
			l.endSession(s)
		}
	}
}

func (l *Ledger) disposed(e *evidence.Event, tell Observe) {
	m := l.Resolve(e.PublishID, e.MessageID, e.BusinessID)
	if m == nil {
		return
	}
	if e.Kind == evidence.Purged {
		m.Purged = l.Now
		l.step(m, PartyNobody)
	} else {
		m.DeadLettered, m.DeadCause, m.DeadWords = l.Now, e.Cause, Words(e)
		if e.Cause == evidence.CauseExpired && m.ExpiredSaid.Seq == 0 {
			m.ExpiredSaid = l.Now
		}
		l.step(m, PartyDead)
	}
	tell(e, m, nil)
}

func (l *Ledger) setClock(e *evidence.Event) {
	l.trouble("")
	if e.Actor == Broker {
		l.clockWas = l.ClockRecently()
		l.clock, l.ClockSet, l.clockSetAt = e.Offset, true, l.Now.At
	}
}

// elsewhere reports whether the broker now runs under a different partition
// than when it accepted a publish.
func (l *Ledger) elsewhere(m *Message) bool {
	now := len(l.Partitions) - 1
	for i := now; i >= 0; i-- {
		if l.Partitions[i].Before(m.Returned) {
			return !slices.Contains(l.Partitions[now].Names, l.Partitions[i].Names[0])
		}
	}
	return false
}

func (l *Ledger) snapshotTaken(e *evidence.Event) {
	if _, twice := l.checkpoints[e.Checkpoint]; !twice {
		l.checkpoints[strings.Clone(e.Checkpoint)] = l.Now
	}
}

// commanded interprets an order: a redriven dead letter gets new attempts, and
// a rewound subscriber is served again.
func (l *Ledger) commanded(e *evidence.Event) {
	l.trouble("")
	switch e.Command {
	case evidence.CommandRestart:
		l.Restarted = l.Restarted || e.Actor == Broker
	case evidence.CommandRewind:
		l.rewind(l.Symbol(e.Subscription), l.checkpoints[e.Checkpoint], l.Now)
	case evidence.CommandRedrive:
		if m := l.Resolve(e.PublishID, e.MessageID, e.BusinessID); m != nil && m.DeadLettered.Seq != 0 {
			m.Redriven++
			m.DeadLettered = Stamp{}
		}
	}
}

// pastDeadline checks whether an unserved message was deliverable to an idle,
// ready consumer for longer than the tolerance while no fault was active. Its
// expiry then excuses nothing.
func (l *Ledger) pastDeadline(d due) {
	m := l.Message(d.ref)
	if len(l.active) > 0 || l.ClockSet || l.elsewhere(m) {
		return
	}
	for _, s := range l.matching[m.Destination] {
		if r := m.Find(s.Name); r != nil && r.Deliveries > 0 || s.freeSince < 0 {
			continue
		}
		from := max(s.freeSince, m.Returned.At, l.Healed.At)
		m.Owed = m.Owed || d.at-from > l.Limits.ExpiryTolerance
	}
}

// deadlines is a min-heap of unserved messages' deadlines.
type deadlines []due

type due struct {
	at  time.Duration
	ref Ref
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
