package reports

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/mattn/go-runewidth"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

func printed(t *testing.T, r Report, width int) string {
	t.Helper()
	var b bytes.Buffer
	if err := (&terminal{columns: columnsFor(width)}).write(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A narrow terminal keeps every word that fits on a line whole, and shows the
// same words as a wide one.
func TestANarrowTerminalBreaksNoWord(t *testing.T) {
	r := sample()
	r.Failed = nil
	wide := strings.Fields(printed(t, r, 120))
	for _, width := range []int{40, 60, 79, 80, 90, 100} {
		text := printed(t, r, width)
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			copied := strings.HasPrefix(line, "  evidence") || strings.HasPrefix(line, "  replay")
			if n := runewidth.StringWidth(line); n > width && !copied {
				t.Errorf("width %d: %d cells: %s", width, n, line)
			}
			for _, word := range strings.Fields(line) {
				if runewidth.StringWidth(word) < width/2 && !slices.Contains(wide, word) && !slices.ContainsFunc(wide, func(w string) bool {
					return strings.HasPrefix(w, strings.TrimSuffix(word, "…")) && strings.HasSuffix(word, "…")
				}) {
					t.Errorf("width %d: %q is no word of the wide report: %s", width, word, line)
				}
			}
		}
	}
}

// A loss is listed above duplicate deliveries, which are shown once with their
// true number.
func TestFindingsOfAKindAreToldOnce(t *testing.T) {
	r := sampleBrokerKilled()
	v := guarantees.Verdict{Guarantee: evidence.NoDuplicateDelivery, Outcome: guarantees.Violated, Findings: r.Judgement.Anomalies[2:], FindingsLeftOut: 61}
	r.Judgement.Verdicts = append(r.Judgement.Verdicts, v)
	for _, name := range []string{"terminal", "markdown", "html"} {
		text := string(render(t, format(t, name), Report{Runs: []Run{r}}))
		lost, twice := strings.Index(text, "order-4 was accepted"), strings.Index(text, "order-3 was handed to c1 twice")
		if lost < 0 || twice < lost {
			t.Errorf("%s: the loss is at %d, the first duplicate at %d", name, lost, twice)
		}
		if !strings.Contains(text, "and 8 more like it") || !strings.Contains(text, "61 more finding") {
			t.Errorf("%s does not say how many there are:\n%s", name, text)
		}
		if name == "terminal" && strings.Count(text, "was handed to c1 twice") != 1 {
			t.Errorf("told more than once:\n%s", text)
		}
	}
}

// The unconfirmed loss of a fire-and-forget publish breaks no claim.
func TestUnconfirmedFindingsBreakNoClaim(t *testing.T) {
	lost := guarantees.Finding{Guarantee: evidence.NoAcceptedLoss, Kind: "unconfirmed-loss", Unconfirmed: true, BusinessID: "order-1"}
	j := guarantees.Judgement{Anomalies: []guarantees.Finding{lost, lost},
		Verdicts: []guarantees.Verdict{{Guarantee: evidence.NoAcceptedLoss, Claimed: true, Covered: true, Outcome: guarantees.Held, Findings: []guarantees.Finding{lost, lost}, FindingsLeftOut: 5}}}
	if broken, seen := brokenOf(j), seenOf(j); broken.Total != 0 || seen.Total != 7 || len(seen.Groups) != 1 {
		t.Errorf("%d break a claim, %d are seen in %d kinds; want 0, 7 and 1", broken.Total, seen.Total, len(seen.Groups))
	}
}

// Expected guarantees that take no part in the outcome are listed, with the
// reason.
func TestWhatWasExpectedIsToldOf(t *testing.T) {
	r := sampleBaseline()
	r.Manifest.Expect = []string{evidence.Order, evidence.NoDuplicateDelivery, evidence.ExpiryHonoured}
	r.Judgement.Verdicts = append(r.Judgement.Verdicts,
		guarantees.Verdict{Guarantee: evidence.NoDuplicateDelivery, Outcome: guarantees.Violated, Why: "order-1 came twice"},
		guarantees.Verdict{Guarantee: evidence.ExpiryHonoured, Outcome: guarantees.NotApplicable, Why: "no message has a time to live"},
		guarantees.Verdict{Guarantee: evidence.Survives, Outcome: guarantees.Held})
	for _, name := range []string{"terminal", "markdown", "html"} {
		text := string(render(t, format(t, name), Report{Runs: []Run{r}}))
		for _, want := range []string{"no-duplicate-delivery: seen broken, not claimed", "expiry-honoured: not applicable: no message has a time to live",
			"2 not claimed (1 held, 1 seen broken)"} {
			if flat := strings.Join(strings.Fields(unescaped(text)), " "); !strings.Contains(flat, want) {
				t.Errorf("%s does not say %q:\n%s", name, want, flat)
			}
		}
	}
}

func unescaped(s string) string {
	return strings.NewReplacer("&#45;", "-", "&#40;", "(", "&#41;", ")", "&#35;", "#").Replace(s)
}

// Runs without evidence are counted, and no format claims that everything
// held.
func TestRunsWithoutEvidenceAreCounted(t *testing.T) {
	r := Report{Runs: []Run{sampleBaseline()}, Failed: []Failure{{Name: "ack-lost-2", Why: "no evidence can be kept"}}}
	if r.Exit() != guarantees.ExitUnmeasured {
		t.Errorf("exit %d, want %d", r.Exit(), guarantees.ExitUnmeasured)
	}
	for _, f := range Formats() {
		text := string(render(t, f, r))
		if !strings.Contains(text, "ack-lost-2") || !strings.Contains(text, "no evidence can be kept") {
			t.Errorf("%s does not tell of it", f.Name)
		}
		if strings.Contains(text, "very claimed guarantee held") {
			t.Errorf("%s says that all held", f.Name)
		}
	}
}

// A seeded defect is named before any violation is reported.
func TestASeededDefectIsNamed(t *testing.T) {
	r := sampleBrokerKilled()
	for _, f := range Formats() {
		text := string(render(t, f, Report{Runs: []Run{r}}))
		named, broken := strings.Index(text, "accept-before-store"), strings.Index(text, "order-4")
		if named < 0 || f.Name != "json" && broken < named {
			t.Errorf("%s names the defect at %d, and what is broken at %d", f.Name, named, broken)
		}
		if !strings.Contains(text, "0.4.0") {
			t.Errorf("%s does not name Custody's version", f.Name)
		}
	}
}

// The report of a script that was cut short says so, even if there is a
// violation.
func TestACutShortScriptIsTold(t *testing.T) {
	r := sampleBrokerKilled()
	r.Judgement.CutShort = "the script was cut short at line 7: nothing came; 3 steps were not run"
	for _, f := range Formats() {
		if text := string(render(t, f, Report{Runs: []Run{r}})); !strings.Contains(text, "cut short at line 7") {
			t.Errorf("%s does not tell of it:\n%s", f.Name, text)
		}
	}
}
