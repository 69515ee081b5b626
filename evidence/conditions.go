package evidence

import "fmt"

// Conditions follows a history and reports which conditions have been met. The
// runner awaits with it and judging checks with it, so both mean the same. A
// condition once met stays met, except "gone", which is about the newest snapshot.
//
// It is not safe for concurrent use. Its memory is bounded by the deliveries of
// the messages named; only an in-flight condition makes it remember every
// publish that is not yet settled.
type Conditions struct {
	watched []watched
	open    map[string]flight // publishes in flight; nil unless a condition asks for it
}

// watched is one condition and its progress.
type watched struct {
	Condition
	verb  verb
	known bool
	count int
	seen  map[handing]int // redelivery: deliveries of one publish to one logical subscriber
	note  string          // what is missing, where the count does not tell
}

type handing struct{ publish, subscription string }

// verb is how one kind of condition reads the history: every matching event of
// kind `on`, or matching row, counts once.
type verb struct {
	on       []Kind
	event    func(*watched, *Conditions, *Event) bool
	snapshot func(*watched, Snapshot)
	missing  string
}

func ofSubject(w *watched, _ *Conditions, e *Event) bool { return e.BusinessID == w.Subject }

func hasRow(s Snapshot, business string, state RowState) bool {
	for i := range s.Rows {
		if s.Rows[i].BusinessID == business && s.Rows[i].State == state {
			return true
		}
	}
	return false
}

// passedWith lists the fault actions that let a whole frame pass.
var passedWith = map[string]bool{"": true, "duplicate": true, "delay": true, "cut-after": true}

var verbs = map[string]verb{
	CondFired: {on: []Kind{FaultFired}, missing: "the fault did not fire",
		event: func(w *watched, _ *Conditions, e *Event) bool { return e.Fault == w.Subject }},
	CondDelivered: {on: []Kind{Delivered}, missing: "not delivered so often", event: ofSubject},
	CondRedelivery: {on: []Kind{Delivered}, missing: "not handed out again",
		event: func(w *watched, _ *Conditions, e *Event) bool {
			if e.BusinessID != w.Subject {
				return false
			}
			if w.seen == nil {
				w.seen = make(map[handing]int)
			}
			h := handing{e.PublishID, e.Subscription}
			w.seen[h]++
			return w.seen[h] > 1
		}},
	CondAcceptance: {on: []Kind{PublishReturned}, missing: "no publish of it was answered so",
		event: func(w *watched, _ *Conditions, e *Event) bool {
			return e.BusinessID == w.Subject && e.Acceptance.String() == w.Word
		}},
	CondEffect:   {on: []Kind{EffectCommitted}, missing: "no effect was committed", event: ofSubject},
	CondAbsorbed: {on: []Kind{EffectAbsorbed}, missing: "not absorbed so often", event: ofSubject},
	CondAcked: {on: []Kind{AckReturned}, missing: "no acknowledgement was confirmed or sent",
		event: func(w *watched, _ *Conditions, e *Event) bool {
			return e.BusinessID == w.Subject && e.Ack.Settles()
		}},
	CondInFlight: {on: []Kind{Commanded, FaultFired}, missing: "too few messages were in flight when the fault fired",
		event: func(w *watched, c *Conditions, e *Event) bool {
			if e.Fault == w.Subject {
				w.count = max(w.count, len(c.open))
			}
			return false // count messages, not firings
		}},
	CondStored: {missing: "no snapshot has a pending row of it",
		snapshot: func(w *watched, s Snapshot) {
			if s.Source == SourceBroker && (w.Word == "" || s.Checkpoint == w.Word) && hasRow(s, w.Subject, RowPending) {
				w.count++
			}
		}},
	CondDead: {on: []Kind{DeadLettered}, missing: "not seen dead-lettered", event: ofSubject,
		snapshot: func(w *watched, s Snapshot) {
			if s.Source == SourceBroker && hasRow(s, w.Subject, RowDead) {
				w.count++
			}
		}},
	CondResolved: {on: []Kind{LookupReturned}, missing: "no lookup settled it",
		event: func(w *watched, _ *Conditions, e *Event) bool {
			return e.BusinessID == w.Subject && e.Acceptance != Unknown
		}},
	CondConnected: {on: []Kind{SessionOpened}, missing: "no session was opened so often",
		event: func(w *watched, _ *Conditions, e *Event) bool { return e.Actor == w.Subject }},
	CondFailed: {on: []Kind{HandlerFailed}, missing: "the handler did not fail so often", event: ofSubject},
	CondCarried: {on: []Kind{FrameCarried}, missing: "too few frames passed",
		event: func(w *watched, _ *Conditions, e *Event) bool {
			return e.Link == w.Subject && e.Frame == w.Word && passedWith[e.Struck]
		}},
	CondGone: {missing: "no broker snapshot yet",
		snapshot: func(w *watched, s Snapshot) {
			switch {
			case s.Source != SourceBroker:
			case s.Trust == CountsOnly && s.Count > 0:
				w.count, w.note = 0, "the newest snapshot only counts rows"
			case hasRow(s, w.Subject, RowPending):
				w.count, w.note = 0, "the newest snapshot has a pending row"
			default:
				w.count = max(1, w.Times)
			}
		}},
}

// NewConditions follows the listed conditions, which keep their index.
func NewConditions(list []Condition) *Conditions {
	c := &Conditions{watched: make([]watched, len(list))}
	for i, cond := range list {
		v, known := verbs[cond.Verb]
		c.watched[i] = watched{Condition: cond, verb: v, known: known}
		if cond.Verb == CondInFlight {
			c.open = make(map[string]flight)
		}
	}
	return c
}

// Observe processes the next event.
func (c *Conditions) Observe(e *Event) {
	if c.open != nil {
		c.follow(e)
	}
	for i := range c.watched {
		w := &c.watched[i]
		for _, k := range w.verb.on {
			if k == e.Kind && w.verb.event(w, c, e) {
				w.count++
			}
		}
	}
}

// flight says why a publish is in flight: it is unanswered or unsettled. It
// may be settled before it is answered.
type flight struct{ unanswered, unsettled bool }

// follow tracks the publishes in flight.
func (c *Conditions) follow(e *Event) {
	f, known := c.open[e.PublishID]
	switch {
	case e.PublishID == "":
		return
	case e.Kind == PublishCalled:
		f, known = flight{unanswered: true, unsettled: true}, true
	case e.Kind == PublishReturned:
		f.unanswered = false
		f.unsettled = f.unsettled && e.Acceptance != Declined && e.Acceptance != Rejected
	case e.Kind == AckReturned && e.Ack.Settles(), e.Kind == DeadLettered, e.Kind == Purged:
		f.unsettled = false
	default:
		return
	}
	switch {
	case f == flight{}:
		delete(c.open, e.PublishID)
	case known:
		c.open[e.PublishID] = f
	}
}

// ObserveSnapshot processes the next snapshot.
func (c *Conditions) ObserveSnapshot(s Snapshot) {
	for i := range c.watched {
		if w := &c.watched[i]; w.verb.snapshot != nil {
			w.verb.snapshot(w, s)
		}
	}
}

// Len is how many conditions are followed.
func (c *Conditions) Len() int { return len(c.watched) }

// Met reports whether condition i was met.
func (c *Conditions) Met(i int) bool {
	w := &c.watched[i]
	return w.known && w.count >= max(1, w.Times)
}

// Missing describes what condition i still lacks; empty when it is met.
func (c *Conditions) Missing(i int) string {
	w := &c.watched[i]
	switch {
	case c.Met(i):
		return ""
	case !w.known:
		return fmt.Sprintf("%q is no condition that this version can check", w.Verb)
	case w.note != "":
		return w.note
	case w.Times > 1:
		return fmt.Sprintf("%s (%d of %d)", w.verb.missing, w.count, w.Times)
	}
	return w.verb.missing
}
