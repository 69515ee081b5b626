package ledger

import "github.com/custodymq/custody/evidence"

// Words are what an event says for people. They are quoted and never read; no
// other file here may touch them.
func Words(e *evidence.Event) string { return e.Reason }
