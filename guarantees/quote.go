package guarantees

import (
	"cmp"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// What is written for people (a reason, an error's text) is quoted and never
// read: a system words its errors as it likes, and no word of them decides
// anything. This file alone may touch those fields; the linter sees to it.

// quote gives an event's words, behind what they explain.
func quote(e *evidence.Event) string {
	if words := ledger.Words(e); words != "" {
		return ": " + words
	}
	return ""
}

// quoteDead says why a message was dead-lettered: in the system's words, or by
// its cause where it has none.
func quoteDead(c evidence.Cause, words string) string { return cmp.Or(words, c.String()) }

// wordsOf are what a row says for people.
func wordsOf(r *evidence.StoredRow) string { return r.Reason }

// quoteEnd says how a run ended that did not complete.
func quoteEnd(end *evidence.End) string {
	if end.Reason == "" {
		return string(end.How)
	}
	return string(end.How) + ": " + end.Reason
}

// quoteKnown says why a violation breaks nothing yet.
func quoteKnown(k *evidence.Known) string { return "known until " + k.Until + ": " + k.Reason }
