package store

import (
	"maps"
	"slices"
	"time"
)

// Change gives the row as the operation leaves it: a new one, nil where none is
// left, or before itself where nothing changes. before is the row with this message
// ID, or nil; a backend refuses an Insert onto one. With history Delete marks the
// row processed. Order and Partition of an inserted row are the backend's to give.
func (op Operation) Change(before *Row, history bool) *Row {
	if op.Kind == Insert {
		row := op.Row
		row.State = Pending
		row.Headers, row.Payload = maps.Clone(row.Headers), slices.Clone(row.Payload)
		return &row
	}
	needs := Pending
	if op.Kind == Redrive || op.Kind == Discard {
		needs = Dead
	}
	if before == nil || before.State != needs || !Readable(before.Version) {
		return before
	}
	row := *before
	switch op.Kind {
	case Attempt:
		row.Attempts, row.Group, row.LastConsumer = op.Row.Attempts, op.Row.Group, op.Row.LastConsumer
	case DeadLetter:
		row.State, row.Reason, row.LastConsumer = Dead, op.Row.Reason, op.Row.LastConsumer
	case Redrive:
		row.State, row.Attempts, row.Reason, row.ExpiresAt = Pending, 0, "", op.Row.ExpiresAt
	case Settle:
		row.State, row.Reason, row.KeepUntil = Processed, op.Row.Reason, op.Row.KeepUntil
	case Delete, Discard:
		row.Reason = op.Row.Reason
		switch {
		case op.Kind == Delete && history:
			row.State, row.KeepUntil = Processed, op.Row.KeepUntil
		case op.Row.KeepUntil.IsZero():
			return nil
		default:
			row = row.Marker(op.Row.KeepUntil)
		}
	}
	return &row
}

// Marker is what is kept of a settled row: its IDs, and what ended it.
func (r Row) Marker(keepUntil time.Time) Row {
	return Row{
		Order: r.Order, State: SettledMarker, MessageID: r.MessageID, BusinessID: r.BusinessID,
		Version: r.Version, InsertedAt: r.InsertedAt, Reason: r.Reason, KeepUntil: keepUntil, Partition: r.Partition,
	}
}
