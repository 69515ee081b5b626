package evidence

// The names of the guarantees. They stand here, and not beside the code that
// judges them, because claims and scripts name them too.
const (
	NoAcceptedLoss          = "no-accepted-loss"
	NoDuplicateDelivery     = "no-duplicate-delivery"
	SingleEffect            = "single-effect"
	NoPhantom               = "no-phantom"
	DeclinedMeansAbsent     = "declined-means-absent"
	StableRedeliveryID      = "stable-redelivery-id"
	Order                   = "order"
	ExpiryHonoured          = "expiry-honoured"
	AckIsFinal              = "ack-is-final"
	PersistedBeforeAccepted = "persisted-before-accepted"
	PartitionIsolation      = "partition-isolation"
	BoundedRetry            = "bounded-retry"
	UnknownResolved         = "unknown-resolved"
	RecoveryBounded         = "recovery-bounded"
	Survives                = "survives"
	RowsMatchClients        = "rows-match-clients"
	StrangersRefused        = "strangers-refused"
	RedeliveryPaced         = "redelivery-paced"
	LookupsTrue             = "lookups-true"
)
