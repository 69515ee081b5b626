package guarantees

import (
	"encoding/json"
	"regexp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// words are texts that would mislead a judge that interpreted prose.
var words = []string{"expired", "duplicate", "duplicate message", "restart", "redrive o1", "rewind to cut by time", "partition=b migrates=a", "-1h", "settled", "quiet",
	"accepted", "declined", "ok", "not-seen", "forgotten", "dead", "stored", "x509: certificate has expired", "end", "killed", "connection refused", "no consumer"}

// quoted marks a text, to tell quotations from the judge's own words.
func quoted(s string) string { return "⟦" + s + "⟧" }

var quotation = regexp.MustCompile(`⟦[^⟧]*⟧`)

// reworded replaces every free text of a history.
func reworded(t *tale, text func() string) {
	for i := range t.events {
		e := &t.events[i]
		e.Reason, e.ClientResult = text(), text()
	}
	for i := range t.history.Snapshots {
		s := &t.history.Snapshots[i]
		s.Rows = slices.Clone(s.Rows)
		for k := range s.Rows {
			s.Rows[k].Reason = text()
		}
	}
	m := &t.history.Manifest
	m.Why, m.Profile.Summary = text(), text()
	m.Claims = slices.Clone(m.Claims)
	for i := range m.Claims {
		m.Claims[i].Source = text()
	}
	if m.End != nil {
		end := *m.End
		end.Reason = text()
		m.End = &end
	}
}

// Free text from a system, client or person decides nothing: with every free
// text of a history replaced, the judgement is byte for byte the same, except
// for the quotations.
func TestNoWordDecides(t *testing.T) {
	judged := func(t *rapid.T, i int, text func() string) Judgement {
		tale := newTale()
		cases[i].tell(tale)
		reworded(tale, text)
		tale.history.Manifest.Expect = []string{cases[i].guarantee}
		tale.history.Events = stream(tale.events)
		j, err := Judge(&tale.history)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	encoded := func(j Judgement) string {
		b, err := json.Marshal(j)
		if err != nil {
			panic(err)
		}
		return quotation.ReplaceAllString(string(b), "")
	}
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(cases)-1).Draw(t, "case")
		plain := judged(t, i, func() string { return quoted("") })
		other := judged(t, i, func() string { return quoted(rapid.SampledFrom(words).Draw(t, "text")) })
		if a, b := encoded(plain), encoded(other); a != b {
			t.Fatalf("%s/%s: words decide\nwithout %s\nwith    %s", cases[i].guarantee, cases[i].name, a, b)
		}
		silent := judged(t, i, func() string { return "" })
		if silent.Outcome != plain.Outcome || silent.Exit != plain.Exit || len(silent.Anomalies) != len(plain.Anomalies) || len(silent.Broken) != len(plain.Broken) {
			t.Fatalf("%s/%s: that something is said decides: %v, and silent %v", cases[i].guarantee, cases[i].name, plain.Outcome, silent.Outcome)
		}
	})
}
