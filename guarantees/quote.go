package guarantees

import (
	"cmp"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// Free text (a reason, an error's text) is quoted and never interpreted: a system
// may word its errors as it likes. Only this file and ledger/quote.go may use
// those fields, which the linter enforces.

// quote formats an event's text, to be appended to what it explains.
func quote(e *evidence.Event) string {
	if words := ledger.Words(e); words != "" {
		return ": " + words
	}
	return ""
}

// quoteDead says why a message was dead-lettered: in the system's words, or by
// its cause if there are none.
func quoteDead(c evidence.Cause, words string) string { return cmp.Or(words, c.String()) }

// wordsOf returns the text of a row.
func wordsOf(r *evidence.StoredRow) string { return r.Reason }

// quoteEnd says how an incomplete run ended.
func quoteEnd(end *evidence.End) string {
	if end.Reason == "" {
		return string(end.How)
	}
	return string(end.How) + ": " + end.Reason
}

// quoteKnown says why a known violation does not count yet.
func quoteKnown(k *evidence.Known) string { return "known until " + k.Until + ": " + k.Reason }
