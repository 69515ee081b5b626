package zeromq

import (
	"slices"
	"time"

	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// What the broker's modes, answers and store mean in evidence: to the sessions
// here, and to those that are simulated.

// Mode of a client that asks for this one: the profile's if it names none.
func (p Profile) Mode(m systems.Mode) wire.Mode {
	if m == systems.DefaultMode {
		m = p.mode
	}
	if m == systems.AtMostOnce {
		return wire.AtMostOnce
	}
	return wire.AtLeastOnce
}

var acceptances = map[wire.Answer]evidence.Acceptance{
	wire.Accepted: evidence.Accepted, wire.Declined: evidence.Declined, wire.Rejected: evidence.Rejected, wire.Unknown: evidence.Unknown,
}

var causes = map[wire.Cause]evidence.Cause{
	wire.NoConsumer: evidence.CauseNoConsumer, wire.WrongMode: evidence.CauseMode, wire.Limit: evidence.CauseLimit,
	wire.BadRequest: evidence.CauseInvalid, wire.Expired: evidence.CauseExpired, wire.Discarded: evidence.CauseDiscarded,
	wire.Forbidden: evidence.CausePermission,
}

// ReceiptOf is what the broker's answer to a publish in this mode says.
func ReceiptOf(mode wire.Mode, m wire.Message) systems.Receipt {
	r := systems.Receipt{Acceptance: acceptances[m.Answer], MessageID: m.MessageID, ClientResult: "ok", Duplicate: m.Again, Cause: causes[m.Cause], Reason: m.Reason}
	switch {
	case r.Acceptance != evidence.Accepted:
		r.ClientResult = r.Acceptance.String() + ": " + m.Reason
	case mode == wire.AtMostOnce:
		r.HeldBy = evidence.HeldByBrokerMemory
	default:
		r.HeldBy = evidence.HeldByStore
	}
	return r
}

var resolutions = map[wire.Answer]systems.Resolution{
	wire.Stored:    {Acceptance: evidence.Accepted, Standing: evidence.Stored},
	wire.Settled:   {Acceptance: evidence.Accepted, Standing: evidence.Settled},
	wire.Dead:      {Acceptance: evidence.Accepted, Standing: evidence.Dead},
	wire.NotSeen:   {Acceptance: evidence.Rejected, Standing: evidence.Absent},
	wire.Forgotten: {Acceptance: evidence.Unknown, Standing: evidence.Forgotten},
}

// ResolutionOf is what the broker's answer to a lookup says.
func ResolutionOf(m wire.Message) systems.Resolution {
	r := resolutions[m.Answer]
	r.MessageID, r.Cause, r.Reason = m.MessageID, causes[m.Cause], m.Reason
	return r
}

// LookBack is how far a client looks that opened its session this long ago.
func LookBack(open time.Duration) time.Duration { return open + settledWindow/2 }

// MarkOf says whether the broker calls a delivery in this mode another one.
func MarkOf(mode wire.Mode, again bool) evidence.Mark {
	switch {
	case mode == wire.AtMostOnce:
		return evidence.MarkNone
	case again:
		return evidence.MarkRedelivered
	}
	return evidence.MarkFirst
}

// ItemsOf are the messages that a store's operation touches under a name: its
// own, or that of a part of a batch.
func ItemsOf(op faulty.Op, name string) []evidence.FrameItem {
	var items []evidence.FrameItem
	for _, it := range op.Items {
		if name == op.Name || it.Name == name {
			items = append(items, evidence.FrameItem{BusinessID: it.BusinessID, MessageID: it.MessageID})
		}
	}
	return items
}

// StoreEvents tell of a batch: what the store was asked for, or what it
// answered, one for each name in it. Reads and the work of files would drown
// them: of these there are none.
func StoreEvents(kind evidence.Kind, op faulty.Op, err error) []evidence.Event {
	if op.Layer != faulty.Contract || op.Name != "apply" {
		return nil
	}
	var events []evidence.Event
	for _, it := range op.Items {
		if slices.ContainsFunc(events, func(e evidence.Event) bool { return e.Frame == it.Name }) {
			continue
		}
		e := evidence.Event{Kind: kind, Actor: "broker", Frame: it.Name, Items: ItemsOf(op, it.Name), OK: err == nil && kind == evidence.StoreReturned}
		if err != nil {
			e.Reason = err.Error()
		}
		events = append(events, e)
	}
	return events
}
