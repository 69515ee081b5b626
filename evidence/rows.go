package evidence

import "time"

// Snapshot holds the stored rows of one source at one checkpoint.
type Snapshot struct {
	Checkpoint string        `json:"checkpoint"` // "start", "end", or a name from the script
	Seq        uint64        `json:"seq"`        // of the SnapshotTaken event
	At         time.Duration `json:"at"`
	Source     string        `json:"source"` // SourceBroker or SourceBusiness
	Partition  string        `json:"partition,omitempty"`
	Trust      Trust         `json:"trust"`
	Count      int           `json:"count"` // number of rows; with Trust CountsOnly, Rows is empty
	Rows       []StoredRow   `json:"-"`     // on disk: one line each, after the snapshot's line
}

const (
	SourceBroker   = "broker"
	SourceBusiness = "business"
)

// Trust is how complete and current a snapshot is.
type Trust uint8

const (
	CountsOnly Trust = iota
	Lagging
	Exact
)

var trustNames = []string{"counts-only", "lagging", "exact"}

func (t Trust) String() string                { return nameOf(trustNames, t) }
func (t Trust) MarshalText() ([]byte, error)  { return marshalName(trustNames, t) }
func (t *Trust) UnmarshalText(b []byte) error { return unmarshalName(trustNames, "trust", b, t) }

// StoredRow is one row as reported by the store.
type StoredRow struct {
	Partition    string   `json:"partition,omitempty"`
	State        RowState `json:"state"`
	BusinessID   string   `json:"business,omitempty"`
	PublishID    string   `json:"publish,omitempty"`
	MessageID    string   `json:"message,omitempty"`
	Subscription string   `json:"subscription,omitempty"`
	Destination  string   `json:"destination,omitempty"`
	Digest       string   `json:"digest,omitempty"`
	Attempts     int      `json:"attempts,omitzero"`
	Expired      bool     `json:"expired,omitzero"` // past its deadline when the row was read
	Version      int      `json:"version,omitzero"` // payload protocol version, if the store keeps one
	Cause        Cause    `json:"cause,omitzero"`   // of a dead letter; NoCause if the system keeps none
	Reason       string   `json:"reason,omitempty"` // …as free text for people
}

// RowState is the state of a stored row.
type RowState uint8

const (
	RowInvalid   RowState = iota
	RowPending            // accepted, waiting or in flight
	RowProcessed          // acknowledged, kept as history
	RowDead               // in the dead-letter queue
	RowRefused            // the system must refuse it: it is of an unsupported protocol version, or damaged
	RowEffect             // business: one effect of one business ID
	RowLog                // business: an entry of the consumption log
	RowUnsent             // business: a message in the outbox that is still to be published
	RowSent               // …that was accepted
)

var rowStateNames = []string{"", "pending", "processed", "dead", "refused", "effect", "log", "unsent", "sent"}

func (s RowState) String() string               { return nameOf(rowStateNames, s) }
func (s RowState) MarshalText() ([]byte, error) { return marshalName(rowStateNames, s) }
func (s *RowState) UnmarshalText(b []byte) error {
	return unmarshalName(rowStateNames, "row state", b, s)
}
