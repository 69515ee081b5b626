package guarantees

import (
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// tale builds a history in a few lines. Events are one millisecond apart.
// Publish IDs look like "p1-3-1", whose business ID is "o3" and whose message
// ID is "m3" unless set otherwise.
type tale struct {
	history evidence.History
	events  []evidence.Event
	at      time.Duration
	prof    *evidence.Profile
}

const ms = time.Millisecond

func newTale() *tale {
	t := &tale{}
	m := &t.history.Manifest
	m.Format, m.Run, m.System, m.Scenario = evidence.FormatVersion, "run", "toy", "tale"
	m.End = &evidence.End{How: evidence.EndCompleted}
	m.Profile = evidence.Profile{Name: "toy", Redelivers: evidence.RedeliverTimeout, AckCounting: "per-message",
		MarksAgain: true, AckConfirms: true, Limits: evidence.Limits{MaxAttempts: 3, RedeliveryPeriod: 100 * ms,
			RecoveryBound: 300 * ms, InFlightBound: 50 * ms, ExpiryTolerance: 10 * ms, DeleteBound: 20 * ms, OrderScope: "connection"}}
	t.prof = &m.Profile
	for _, g := range Guarantees() {
		m.Claims = append(m.Claims, evidence.Claim{Guarantee: g.Name, Under: evidence.Classes(), Owner: evidence.OwnerSystem})
	}
	return t
}

func (t *tale) add(e evidence.Event) *tale {
	t.at += ms
	e.Seq, e.At = uint64(len(t.events)+1), t.at
	t.events = append(t.events, e)
	return t
}

func (t *tale) after(d time.Duration) *tale { t.at += d; return t }

func actorIn(session string) string { a, _, _ := strings.Cut(session, "#"); return a }

func ids(publish string) (business, message string) {
	_, rest, _ := strings.Cut(publish, "-")
	n, _, _ := strings.Cut(rest, "-")
	return "o" + n, "m" + n
}

func (t *tale) of(k evidence.Kind, session, publish string) evidence.Event {
	e := evidence.Event{Kind: k, Actor: actorIn(session), Session: session, PublishID: publish}
	if publish != "" {
		e.BusinessID, e.MessageID = ids(publish)
	}
	return e
}

// sub opens a session such as "c1#1" for a logical subscriber.
func (t *tale) sub(session, subscription string) *tale {
	e := evidence.Event{Kind: evidence.SubscribeCalled, Actor: actorIn(session), Session: session, Subscription: subscription, Destination: "orders"}
	t.add(e)
	e.Kind, e.OK = evidence.SubscribeReturned, true
	t.add(e)
	e.Kind = evidence.SessionOpened
	return t.add(e)
}

func (t *tale) durable(session, subscription string) *tale {
	t.sub(session, subscription)
	t.events[len(t.events)-2].HeldBy = evidence.HeldByStore
	return t
}

func (t *tale) end(session string) *tale { return t.add(t.of(evidence.SessionEnded, session, "")) }

func (t *tale) call(publish string, change ...func(*evidence.Event)) *tale {
	e := t.of(evidence.PublishCalled, actorOfPublish(publish)+"#1", publish)
	e.Destination, e.MessageID, e.Digest = "orders", "", "d"+publish
	for _, c := range change {
		c(&e)
	}
	return t.add(e)
}

func actorOfPublish(publish string) string { a, _, _ := strings.Cut(publish, "-"); return a }

func (t *tale) answer(publish string, a evidence.Acceptance, change ...func(*evidence.Event)) *tale {
	e := t.of(evidence.PublishReturned, actorOfPublish(publish)+"#1", publish)
	e.Destination, e.Acceptance = "orders", a
	if a == evidence.Accepted {
		e.HeldBy, e.OK, e.ClientResult = evidence.HeldByStore, true, "ok"
	} else {
		e.MessageID = ""
	}
	for _, c := range change {
		c(&e)
	}
	return t.add(e)
}

func (t *tale) publish(publishes ...string) *tale {
	for _, p := range publishes {
		t.call(p).answer(p, evidence.Accepted)
	}
	return t
}

func ttl(d time.Duration) func(*evidence.Event) { return func(e *evidence.Event) { e.TTL = d } }
func answeredWith(id string) func(*evidence.Event) {
	return func(e *evidence.Event) { e.MessageID = id }
}
func business(id string) func(*evidence.Event) { return func(e *evidence.Event) { e.BusinessID = id } }
func digest(d string) func(*evidence.Event)    { return func(e *evidence.Event) { e.Digest = d } }
func toldOK(e *evidence.Event)                 { e.OK, e.ClientResult = true, "ok" }
func because(s string) func(*evidence.Event)   { return func(e *evidence.Event) { e.Reason = s } }
func called(id string) func(*evidence.Event)   { return func(e *evidence.Event) { e.MessageID = id } }
func attempt(n int) func(*evidence.Event)      { return func(e *evidence.Event) { e.Attempt = n } }
func repeated(e *evidence.Event)               { e.Duplicate = true }
func cause(c evidence.Cause) func(*evidence.Event) {
	return func(e *evidence.Event) { e.Cause = c }
}
func command(c evidence.Command) func(*evidence.Event) {
	return func(e *evidence.Event) { e.Command = c }
}
func again(e *evidence.Event) { e.Mark = evidence.MarkRedelivered }
func marked(m evidence.Mark) func(*evidence.Event) {
	return func(e *evidence.Event) { e.Mark = m }
}
func inMemory(e *evidence.Event) { e.HeldBy = evidence.HeldByBrokerMemory }
func ackOutcome(o evidence.AckOutcome) func(*evidence.Event) {
	return func(e *evidence.Event) { e.Ack = o }
}

// on adds any event of a consumer.
func (t *tale) on(k evidence.Kind, session, publish string, change ...func(*evidence.Event)) *tale {
	e := t.of(k, session, publish)
	if k == evidence.Delivered {
		e.Digest = "d" + publish
	}
	for _, c := range change {
		c(&e)
	}
	return t.add(e)
}

func (t *tale) deliver(session, publish string, change ...func(*evidence.Event)) *tale {
	return t.on(evidence.Delivered, session, publish, change...)
}

func (t *tale) ack(session, publish string) *tale {
	return t.on(evidence.AckCalled, session, publish).on(evidence.AckReturned, session, publish, ackOutcome(evidence.AckConfirmed))
}

func (t *tale) serve(session string, publishes ...string) *tale {
	for _, p := range publishes {
		t.deliver(session, p).ack(session, p)
	}
	return t
}

func (t *tale) effect(session, publish string) *tale {
	return t.on(evidence.EffectCalled, session, publish).on(evidence.EffectCommitted, session, publish)
}

func item(publish string) []evidence.FrameItem {
	b, m := ids(publish)
	return []evidence.FrameItem{{BusinessID: b, PublishID: publish, MessageID: m}}
}

var frameTo = map[string]evidence.Direction{ledger.FramePublish: evidence.ToBroker, "ack": evidence.ToBroker,
	ledger.FrameAccept: evidence.ToClient, ledger.FrameDeliver: evidence.ToClient, ledger.FrameAckConfirm: evidence.ToClient}

func (t *tale) frame(kind, link, publish, struck string) *tale {
	return t.add(evidence.Event{Kind: evidence.FrameCarried, Actor: link, Link: link, Conn: 1, Frame: kind, To: frameTo[kind], Items: item(publish), Struck: struck})
}

// fault lists a fault in the manifest.
func (t *tale) fault(label string, class evidence.Class) *tale {
	t.history.Manifest.Faults = append(t.history.Manifest.Faults, evidence.FaultLabel{Label: label, Class: class, Line: "fault " + label})
	return t
}

func (t *tale) fire(label, struck, link, frame string, publishes ...string) *tale {
	e := evidence.Event{Kind: evidence.FaultFired, Fault: label, Struck: struck, Link: link, Frame: frame}
	for _, p := range publishes {
		e.Items = append(e.Items, item(p)...)
	}
	return t.add(e)
}

// stood records that the harness, and so perhaps the machine, stood still for
// a moment.
func (t *tale) stood() *tale {
	return t.add(evidence.Event{Kind: evidence.ProcessPaused, Actor: "harness"}).add(evidence.Event{Kind: evidence.ProcessContinued, Actor: "harness"})
}

func (t *tale) heal(label string) *tale {
	return t.add(evidence.Event{Kind: evidence.FaultHealed, Fault: label})
}

func (t *tale) broker(k evidence.Kind, reason string, exit *evidence.ExitInfo) *tale {
	return t.add(evidence.Event{Kind: k, Actor: ledger.Broker, Reason: reason, Exit: exit})
}

func (t *tale) boots(partitions ...string) *tale {
	return t.add(evidence.Event{Kind: evidence.ProcessStarted, Actor: ledger.Broker, Partitions: partitions})
}

func (t *tale) clock(offset time.Duration) *tale {
	return t.add(evidence.Event{Kind: evidence.ClockSet, Actor: ledger.Broker, Offset: offset})
}

func (t *tale) drained(reason string) *tale {
	e := evidence.Event{Kind: evidence.DrainEnded}
	if err := e.Drain.UnmarshalText([]byte(reason)); err != nil {
		panic(err)
	}
	return t.add(e)
}

func (t *tale) lookup(publish string, a evidence.Acceptance, standing evidence.Standing) *tale {
	b, _ := ids(publish)
	t.add(evidence.Event{Kind: evidence.LookupCalled, Actor: "p9", Session: "p9#1", BusinessID: b})
	return t.add(evidence.Event{Kind: evidence.LookupReturned, Actor: "p9", Session: "p9#1", BusinessID: b, Acceptance: a, Standing: standing})
}

func poisoned(r *evidence.StoredRow) { r.Cause, r.Reason = evidence.CauseStated, "poison" }

func row(state evidence.RowState, publish string, change ...func(*evidence.StoredRow)) evidence.StoredRow {
	b, m := ids(publish)
	r := evidence.StoredRow{State: state, BusinessID: b, PublishID: publish, MessageID: m}
	for _, c := range change {
		c(&r)
	}
	return r
}

func (t *tale) rows(checkpoint string, rows ...evidence.StoredRow) *tale {
	return t.snapshot(evidence.Snapshot{Checkpoint: checkpoint, Source: evidence.SourceBroker, Trust: evidence.Exact, Count: len(rows), Rows: rows})
}

func (t *tale) business(rows ...evidence.StoredRow) *tale {
	return t.snapshot(evidence.Snapshot{Checkpoint: "end", Source: evidence.SourceBusiness, Trust: evidence.Exact, Count: len(rows), Rows: rows})
}

func (t *tale) snapshot(s evidence.Snapshot) *tale {
	t.add(evidence.Event{Kind: evidence.SnapshotTaken, Checkpoint: s.Checkpoint})
	s.Seq, s.At = uint64(len(t.events)), t.at
	t.history.Snapshots = append(t.history.Snapshots, s)
	return t
}

// rewind rewinds a logical subscriber to a checkpoint.
func (t *tale) rewind(subscription, checkpoint string) *tale {
	return t.add(evidence.Event{Kind: evidence.Commanded, Actor: ledger.Broker, Subscription: subscription, Command: evidence.CommandRewind, Checkpoint: checkpoint})
}

func (t *tale) failed() *tale {
	t.history.Manifest.End = &evidence.End{How: evidence.EndFailed, Reason: "the machine stopped"}
	return t
}

func stream(events []evidence.Event) iter.Seq2[*evidence.Event, error] {
	return func(yield func(*evidence.Event, error) bool) {
		var e evidence.Event // reused, as a decoder does
		for _, e = range events {
			if !yield(&e, nil) {
				return
			}
		}
	}
}

func (t *tale) judge(tb testing.TB, expect ...string) Judgement {
	tb.Helper()
	t.history.Manifest.Expect = expect
	t.history.Events = stream(t.events)
	j, err := Judge(&t.history)
	if err != nil {
		tb.Fatalf("Judge: %v", err)
	}
	return j
}

func verdictOn(j Judgement, guarantee string) Verdict {
	for _, v := range j.Verdicts {
		if v.Guarantee == guarantee {
			return v
		}
	}
	return Verdict{Guarantee: guarantee, Why: "not in the judgement"}
}
