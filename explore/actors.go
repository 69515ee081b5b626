package explore

import (
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/zeromq"
)

// The actors do what the bench's do, and record it in the same order: see
// bench/producer.go and bench/consumer.go.

// backoff spaces out tries.
type backoff struct{ next time.Duration }

func (b *backoff) wait(t *task, limit time.Duration, stopped func() bool) {
	b.next = min(max(2*b.next, firstBackoff), longestBackof)
	t.wait(min(t.k.now+b.next, limit), stopped)
}

// producer is one publishing actor.
type producer struct {
	w        *world
	spec     script.Producer
	link     *link
	sessions int
	session  *client
	suspect  int // the session that gave an answer which is no acceptance
	calls    uint64
	count    int
	tries    map[string]*tries // by business ID
}

// tries of one business ID.
type tries struct {
	count, try int
	messageID  string
	step       script.Publish
	body       []byte
}

func (p *producer) sessionName() string { return fmt.Sprintf("%s#%d", p.spec.Name, p.sessions) }

func (p *producer) doubtful() bool { return p.session != nil && p.suspect == p.sessions }

// open makes sure that there is a session; an error says why there is none now.
func (p *producer) open(t *task) error {
	if p.doubtful() {
		p.endSession("an answer was not an acceptance: a new session")
	}
	if p.session != nil {
		return nil
	}
	p.sessions++
	c, err := p.w.dial(t, p.spec.Name, p.link, never)
	if err != nil {
		return err
	}
	p.session = c
	p.w.record(evidence.Event{Kind: evidence.SessionOpened, Actor: p.spec.Name, Session: p.sessionName()})
	return nil
}

func (p *producer) endSession(why string) {
	if p.session == nil {
		return
	}
	p.session.close()
	p.session = nil
	p.w.record(evidence.Event{Kind: evidence.SessionEnded, Actor: p.spec.Name, Session: p.sessionName(), Reason: why})
}

// publish sends the messages of one step, at most Window of them unanswered.
func (p *producer) publish(t *task, step script.Publish) {
	window, waiting := max(step.Window, 1), 0
	var again []string // refused, and to be tried again
	idle := func() bool { return waiting == 0 }
	for i := range step.Count() {
		one := step.Message(i)
		id, try := one.BusinessID, p.firstTry(one)
		if p.doubtful() {
			t.wait(forever, idle)
		}
		t.wait(forever, func() bool { return waiting < window })
		receipt := p.call(t, id, try, forever)
		waiting++
		p.w.start(func(t *task) {
			if receipt(t).Acceptance != evidence.Accepted {
				again = append(again, id)
			}
			waiting--
		})
		if step.Window <= 1 {
			t.wait(forever, idle)
		}
	}
	t.wait(forever, idle)
	if step.Until == "" {
		return
	}
	for i := range step.Count() {
		id := step.Message(i).BusinessID
		for _, refused := range again {
			if refused == id {
				p.untilAccepted(t, id)
				break
			}
		}
	}
}

// untilAccepted tries again with the same message ID until it is accepted or the
// bound is reached.
func (p *producer) untilAccepted(t *task, id string) {
	try, limit := p.tries[id], t.k.now+publishBound
	var b backoff
	for b.wait(t, limit, never); t.k.now < limit; b.wait(t, limit, never) {
		try.try++
		if p.call(t, id, try, limit)(t).Acceptance == evidence.Accepted {
			return
		}
	}
}

func (p *producer) firstTry(step script.Publish) *tries {
	id := step.BusinessID
	if try, ok := p.tries[id]; ok {
		try.try++
		return try
	}
	p.count++
	try := &tries{count: p.count, try: 1, messageID: step.MessageID, step: step, body: make([]byte, step.Size)}
	if step.Until != "" && try.messageID == "" {
		try.messageID = "m-" + id
	}
	for i := range try.body {
		try.body[i] = byte('a' + (i+p.count)%26)
	}
	p.tries[id] = try
	return try
}

// retry publishes a business ID again, as another try.
func (p *producer) retry(t *task, step script.Retry) error {
	try, ok := p.tries[step.BusinessID]
	if !ok {
		return fmt.Errorf("explore: retry %s: it was never published by %s", step.BusinessID, p.spec.Name)
	}
	again := *try
	again.try++
	try.try = again.try
	if !step.SameID {
		again.messageID = ""
	}
	again.step.Cancel = false
	p.call(t, step.BusinessID, &again, forever)(t)
	return nil
}

// call makes one publish and records it. The function that it gives waits for
// the receipt.
func (p *producer) call(t *task, id string, try *tries, limit time.Duration) func(*task) systems.Receipt {
	w := p.w
	p.calls++
	publishID := evidence.PublishID(p.spec.Name, try.count, try.try)
	m := wire.Message{Kind: wire.Publish, Topic: p.spec.Destination, Mode: w.mode(p.spec.Mode), BusinessID: id, MessageID: try.messageID, Key: try.step.Key,
		Payload: evidence.Envelope{PublishID: publishID, BusinessID: id, Body: try.body}.Encode(), TTL: try.step.TTL}
	if m.TTL == 0 {
		m.TTL = p.spec.TTL
	}
	opening := p.open(t)
	session := p.sessions
	e := evidence.Event{Kind: evidence.PublishCalled, Actor: p.spec.Name, Session: p.sessionName(), Destination: m.Topic,
		BusinessID: id, PublishID: publishID, MessageID: m.MessageID, Key: m.Key, TTL: m.TTL, Size: len(m.Payload), Call: p.calls,
		Digest: evidence.Digest(m.Payload, m.Key, nil)}
	w.record(e)
	returned := func(r systems.Receipt) systems.Receipt {
		if r.Acceptance != evidence.Accepted {
			p.suspect = session
		}
		e.Kind, e.MessageID, e.Acceptance, e.HeldBy, e.Told, e.Reason = evidence.PublishReturned, r.MessageID, r.Acceptance, r.HeldBy, r.Told, r.Reason
		e.OK, e.Duplicate, e.Cause = r.Told == systems.OK, r.Duplicate, r.Cause
		w.record(e)
		return r
	}
	rejected := func(err error) func(*task) systems.Receipt {
		r := systems.Receipt{Acceptance: evidence.Rejected, Told: err.Error(), Reason: "nothing was written: " + err.Error()}
		return func(*task) systems.Receipt { return returned(r) }
	}
	if opening != nil {
		return rejected(opening)
	}
	asked, err := p.session.ask(m)
	if err != nil {
		return rejected(err)
	}
	limit = min(limit, w.now+callBound)
	cancelled := never
	if try.step.Cancel {
		cancelled = func() bool { return w.carriedPublish(publishID) }
	}
	return func(t *task) systems.Receipt {
		reply, err := asked.answer(t, limit, cancelled)
		return returned(receiptOf(m.Mode, reply, err))
	}
}

// resolve asks what became of a publish whose answer is Unknown.
func (p *producer) resolve(t *task, step script.Resolve) error {
	w := p.w
	if err := p.open(t); err != nil {
		return fmt.Errorf("explore: resolve %s: %w", step.BusinessID, err)
	}
	p.calls++
	e := evidence.Event{Kind: evidence.LookupCalled, Actor: p.spec.Name, Session: p.sessionName(), BusinessID: step.BusinessID, Call: p.calls}
	w.record(e)
	r := systems.Resolution{Reason: "at-most-once keeps nothing to look up"}
	if w.mode(p.spec.Mode) != wire.AtMostOnce {
		r = p.lookup(t, step.BusinessID)
	}
	e.Kind, e.Acceptance, e.MessageID, e.Reason = evidence.LookupReturned, r.Acceptance, r.MessageID, r.Reason
	e.Standing, e.Cause = r.Standing, r.Cause
	w.record(e)
	return nil
}

func (p *producer) lookup(t *task, businessID string) systems.Resolution {
	asked, err := p.session.ask(wire.Message{Kind: wire.Lookup, BusinessID: businessID, TTL: p.w.now - p.session.opened + settledWindow/2})
	if err != nil {
		return systems.Resolution{Reason: err.Error()}
	}
	m, err := asked.answer(t, p.w.now+callBound, never)
	if err != nil {
		return systems.Resolution{Reason: err.Error()}
	}
	return zeromq.ResolutionOf(m)
}

// consumer is a consuming actor, in the bench's process or in one of its own.
type consumer struct {
	w        *world
	spec     script.Consumer
	link     *link
	sessions int
	name     string // of the session
	calls    uint64
	failures map[string]int // by business ID
	running  bool
	stopping bool
	client   *client
	task     *task
	failed   error
}

func subscription(c script.Consumer) string {
	if c.As != "" {
		return c.As
	}
	return c.Destination
}

// begin it; nothing happens when it runs.
func (c *consumer) begin() {
	if c.running {
		return
	}
	c.running, c.stopping = true, false
	if c.spec.Child {
		c.sessions += 1000 // as the bench does: those of a killed process are not counted
		c.w.record(evidence.Event{Kind: evidence.ProcessStarted, Actor: c.spec.Name})
	}
	c.task = c.w.start(c.run)
}

// stop it in order.
func (c *consumer) stop(t *task) error {
	if !c.running {
		return nil
	}
	c.running, c.stopping = false, true
	if !t.wait(t.k.now+stopBound, func() bool { return c.task.over }) {
		return fmt.Errorf("explore: consumer %s did not stop", c.spec.Name)
	}
	c.exited(evidence.ExitInfo{Ordered: true})
	return nil
}

// kill its process.
func (c *consumer) kill() {
	if !c.running {
		return
	}
	c.running = false
	c.task.kill()
	if c.client != nil {
		c.client.close()
	}
	c.exited(evidence.ExitInfo{Code: -1, Signal: "killed", Ordered: true})
}

func (c *consumer) exited(how evidence.ExitInfo) {
	if c.spec.Child {
		c.w.record(evidence.Event{Kind: evidence.ProcessExited, Actor: c.spec.Name, Exit: &how})
	}
}

func (c *consumer) stopped() bool { return c.stopping }

func (c *consumer) run(t *task) {
	var b backoff
	for !c.stopping {
		err := c.open(t)
		if err == nil {
			b = backoff{}
			err = c.receive(t)
			c.close(err)
		}
		switch {
		case c.stopping:
			return
		case !errors.Is(err, errCut) && !errors.Is(err, systems.ErrUnavailable):
			c.failed = fmt.Errorf("explore: consumer %s: %w", c.spec.Name, err)
			return
		}
		b.wait(t, forever, c.stopped)
	}
}

func (c *consumer) event(k evidence.Kind) evidence.Event {
	return evidence.Event{Kind: k, Actor: c.spec.Name, Session: c.name, Subscription: subscription(c.spec)}
}

func (c *consumer) open(t *task) error {
	w := c.w
	c.sessions++
	c.name = fmt.Sprintf("%s#%d", c.spec.Name, c.sessions)
	e := c.event(evidence.SubscribeCalled)
	e.Destination, e.Window = c.spec.Destination, max(c.spec.Window, 1)
	w.record(e)
	opened, err := w.dial(t, c.spec.Name, c.link, c.stopped)
	if err == nil {
		c.client = opened
		if err = opened.subscribe(t, wire.Message{Kind: wire.Subscribe, Topic: c.spec.Destination, Group: subscription(c.spec), Mode: w.mode(c.spec.Mode),
			Credit: max(c.spec.Window, 1)}, c.stopped); err != nil {
			opened.close()
		}
	}
	e.Kind, e.OK = evidence.SubscribeReturned, err == nil
	if err != nil {
		e.Reason = err.Error()
		w.record(e)
		return err
	}
	w.record(e)
	w.record(c.event(evidence.SessionOpened))
	return nil
}

func (c *consumer) close(why error) {
	e := c.event(evidence.SessionEnded)
	if why != nil {
		e.Reason = why.Error()
	}
	if errors.Is(why, errCut) && !c.stopping {
		e.Cause = evidence.CauseDisconnected
	}
	c.client.close()
	c.w.record(e)
}

func (c *consumer) receive(t *task) error {
	for {
		t.wait(forever, func() bool { return c.stopping || c.client.err != nil || len(c.client.delivered) > 0 })
		switch {
		case c.stopping:
			return errStopped
		case c.client.err != nil:
			return c.client.err
		}
		if err := c.handle(t, c.client.take()); err != nil {
			return err
		}
	}
}

// handle one delivery: the effect and the log in one transaction, then the
// acknowledgement.
func (c *consumer) handle(t *task, d wire.Message) error {
	w := c.w
	e := c.event(evidence.Delivered)
	e.Destination, e.MessageID, e.Key, e.Size = d.Topic, d.MessageID, d.Key, len(d.Payload)
	if c.client.mode == wire.AtLeastOnce {
		e.Attempt, e.Mark = d.Attempt, evidence.MarkFirst
		if d.Again {
			e.Mark = evidence.MarkRedelivered
		}
	}
	e.Digest = evidence.Digest(d.Payload, d.Key, d.Headers)
	envelope, err := evidence.ParseEnvelope(d.Payload)
	if err != nil {
		e.Reason = err.Error()
	}
	e.BusinessID, e.PublishID = envelope.BusinessID, envelope.PublishID
	w.record(e)
	if c.spec.Silent {
		return nil
	}
	step := func(k evidence.Kind, reason string) {
		n := c.event(k)
		n.BusinessID, n.PublishID, n.MessageID, n.Reason = e.BusinessID, e.PublishID, e.MessageID, reason
		w.record(n)
	}
	if c.fails(e.BusinessID) {
		why := "the handler fails on " + e.BusinessID
		step(evidence.HandlerFailed, why)
		return c.settle(t, e, evidence.NackCalled, evidence.NackReturned,
			wire.Message{Kind: wire.Nack, MessageID: d.MessageID, Attempt: d.Attempt, Reason: why}, evidence.AckRefused)
	}
	step(evidence.EffectCalled, "")
	t.wait(w.now+w.hop()+c.spec.Work(e.BusinessID), c.stopped)
	if c.stopping {
		step(evidence.EffectFailed, errStopped.Error())
		return errStopped
	}
	outcome := evidence.EffectCommitted
	if !w.business.apply(subscription(c.spec), e, c.spec.Idempotent) {
		outcome = evidence.EffectAbsorbed
	}
	step(outcome, "")
	return c.settle(t, e, evidence.AckCalled, evidence.AckReturned,
		wire.Message{Kind: wire.Ack, MessageID: d.MessageID, Attempt: d.Attempt}, evidence.AckSent)
}

func (c *consumer) fails(businessID string) bool {
	times, fails := c.spec.FailTimes(businessID)
	if !fails {
		return false
	}
	if c.failures == nil {
		c.failures = make(map[string]int)
	}
	c.failures[businessID]++
	return times == 0 || c.failures[businessID] <= times
}

// settle acknowledges, or gives back. An outcome that is not known ends nothing:
// the delivery may come again. A session that is gone does.
func (c *consumer) settle(t *task, delivered evidence.Event, called, returned evidence.Kind, m wire.Message, atMostOnce evidence.AckOutcome) error {
	c.calls++
	e := c.event(called)
	e.BusinessID, e.PublishID, e.MessageID, e.Call = delivered.BusinessID, delivered.PublishID, delivered.MessageID, c.calls
	c.w.record(e)
	e.Kind, e.Ack = returned, atMostOnce
	var err error
	if c.client.mode == wire.AtLeastOnce {
		e.Ack, err = c.outcome(t, m)
	}
	if err != nil {
		e.Reason = err.Error()
	}
	c.w.record(e)
	if errors.Is(err, errCut) || c.stopping {
		return errors.Join(errCut, err)
	}
	return nil
}

func (c *consumer) outcome(t *task, m wire.Message) (evidence.AckOutcome, error) {
	asked, err := c.client.ask(m)
	if err != nil {
		return evidence.AckUnknown, err
	}
	reply, err := asked.answer(t, c.w.now+callBound, c.stopped)
	switch {
	case err != nil:
		return evidence.AckUnknown, err
	case reply.Answer == wire.Accepted:
		return evidence.AckConfirmed, nil
	}
	return evidence.AckRefused, errors.Join(errRefused, errors.New(reply.Reason))
}

// application is the business database: what is committed stays.
type application struct {
	effects, log []evidence.StoredRow
	seen         map[[2]string]bool // subscriber and message
}

// apply makes the effect of a delivery; false if the consumption log knew it.
func (a *application) apply(subscriber string, e evidence.Event, log bool) bool {
	if log {
		key := [2]string{subscriber, e.MessageID}
		if e.MessageID == "" {
			key[1] = e.BusinessID
		}
		if a.seen[key] {
			return false
		}
		a.seen[key] = true
		a.log = append(a.log, evidence.StoredRow{State: evidence.RowLog, Subscription: subscriber, BusinessID: e.BusinessID, PublishID: e.PublishID, MessageID: key[1]})
	}
	a.effects = append(a.effects, evidence.StoredRow{State: evidence.RowEffect, Subscription: subscriber, BusinessID: e.BusinessID, PublishID: e.PublishID,
		MessageID: e.MessageID, Digest: e.Digest})
	return true
}

func (a *application) rows() evidence.Snapshot {
	s := evidence.Snapshot{Source: evidence.SourceBusiness, Trust: evidence.Exact}
	s.Rows = append(append(s.Rows, a.effects...), a.log...)
	s.Count = len(s.Rows)
	return s
}
