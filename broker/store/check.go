package store

import (
	"errors"
	"fmt"

	"github.com/custodymq/custody/broker/wire"
)

// Readable reports whether this build can read payloads of that version. Other
// versions are refused by name rather than misread. A newer one occurs only after
// a downgrade of the broker.
func Readable(version uint8) bool {
	return wire.OldestVersion <= version && version <= wire.Version
}

// Refuse reduces a row of an unreadable payload version to what may be shown of
// it. Backends apply it to every row that they read.
func Refuse(r Row) Row {
	if Readable(r.Version) || (r.State != Pending && r.State != Dead) {
		return r
	}
	return Row{
		Order: r.Order, State: RefusedVersion,
		MessageID: r.MessageID, BusinessID: r.BusinessID, Topic: r.Topic, Version: r.Version, Size: r.Size,
		InsertedAt: r.InsertedAt, ExpiresAt: r.ExpiresAt, Partition: r.Partition,
	}
}

// Takes reports whether the selection includes this row, apart from its Limit.
func (s Selection) Takes(r Row) bool {
	return r.Order > s.After && (s.State == 0 || r.State == s.State) && (s.MessageID == "" || r.MessageID == s.MessageID)
}

// errEnough stops a read once the limit is reached.
var errEnough = errors.New("store: as many rows as were asked for")

// Page passes the selected rows on to fn, and stops read at the limit. Backends
// use it to implement Rows.
func (s Selection) Page(fn func(Row) error, read func(give func(Row) error) error) error {
	taken := 0
	err := read(func(r Row) error {
		if !s.Takes(r) {
			return nil
		}
		if err := fn(r); err != nil {
			return err
		}
		if taken++; taken == s.Limit {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// Check returns nil if every operation of the batch is well formed, otherwise the
// *Failure (with NotWritten) that Apply must return. Backends call it first, so
// that all of them refuse the same batches.
func Check(batch []Operation) error {
	for i, op := range batch {
		if err := check(op); err != nil {
			return &Failure{NotWritten: true, Err: fmt.Errorf("operation %d of %d: %w", i+1, len(batch), err)}
		}
	}
	return nil
}

func check(op Operation) error {
	switch {
	case op.Kind < Insert || op.Kind > Discard:
		return fmt.Errorf("unknown kind %d", op.Kind)
	case op.Row.MessageID == "":
		return fmt.Errorf("%v without a message ID", op.Kind)
	case op.Kind == Insert && !Readable(op.Row.Version):
		// It would be accepted now but refused after the next restart.
		return fmt.Errorf("insert of %s: payload version %d cannot be read again (this build reads %d to %d)",
			op.Row.MessageID, op.Row.Version, wire.OldestVersion, wire.Version)
	}
	return nil
}
