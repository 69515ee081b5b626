package ledger

import "github.com/custodymq/custody/evidence"

// Words returns the text of an event. It is quoted and never interpreted; no
// other file of this package may use it.
func Words(e *evidence.Event) string { return e.Reason }
