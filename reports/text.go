package reports

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/custodymq/custody/guarantees"
)

// maxText bounds a piece of evidence shown as text, in runes. JSON has all of
// it.
const maxText = 2000

// Visible makes untrusted text safe to show. Control characters, which a
// terminal would obey, and direction overrides and invisible characters, which
// deceive a reader, become escapes; invalid UTF-8 becomes U+FFFD; text over the
// length limit is cut. Newlines are kept by visibleLines only.
func Visible(s string) string {
	var b strings.Builder
	n := 0
	for i, r := range s {
		if n++; n > maxText {
			fmt.Fprintf(&b, "… (%d more bytes)", len(s)-i)
			break
		}
		switch {
		case r == utf8.RuneError || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// visibleLines is Visible for each of at most limit lines.
func visibleLines(s string, limit int) []string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	left := len(lines) - limit
	if left > 0 {
		lines = lines[:limit]
	}
	for i, l := range lines {
		lines[i] = Visible(strings.ReplaceAll(l, "\t", "    "))
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("# … %d more lines", left))
	}
	return lines
}

// shellQuote quotes s as one word of a POSIX shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._-:+=@,", r))
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ShellLine quotes words as one line for a POSIX shell.
func ShellLine(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellQuote(w)
	}
	return strings.Join(quoted, " ")
}

// human formats a duration to three figures.
func human(d time.Duration) string {
	f := float64(d)
	switch {
	case d < 0:
		return "-" + human(-d)
	case d == 0:
		return "0 s"
	case d < time.Millisecond:
		return figures(f/1e3) + " µs"
	case d < time.Second:
		return figures(f/1e6) + " ms"
	case d < time.Minute:
		return figures(f/1e9) + " s"
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%d min %02d s", d/time.Minute, d%time.Minute/time.Second)
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%d h %02d min", d/time.Hour, d%time.Hour/time.Minute)
}

// figures formats three significant figures, or an integer.
func figures(f float64) string {
	if f >= 100 || f <= -100 || f == float64(int64(f)) {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'g', 3, 64)
}

// units are the units of time used in measures.
var units = map[string]time.Duration{
	"ns": 1, "µs": time.Microsecond, "us": time.Microsecond, "ms": time.Millisecond, "s": time.Second,
}

func measure(m guarantees.Measure) string {
	if u, ok := units[m.Unit]; ok {
		return m.Name + " " + human(time.Duration(m.Value*float64(u)))
	}
	return strings.TrimSpace(m.Name + " " + figures(m.Value) + " " + m.Unit)
}

func layer(l guarantees.Layer) string {
	if l.Count == 0 {
		return l.Name + " " + l.Did + " 0 (not exercised)"
	}
	return fmt.Sprintf("%s %s %d", l.Name, l.Did, l.Count)
}

// condition formats a condition without its script keyword.
func condition(c guarantees.ConditionResult) string { return strings.TrimPrefix(c.Line, "reached ") }

// took is the duration of the run; empty if it did not run or end.
func took(run Run) string {
	if run.Manifest.End == nil || run.Manifest.End.After == 0 {
		return ""
	}
	return human(run.Manifest.End.After)
}

// events formats at most eight numbers: "events 3, 4 and 12".
func events(seqs []uint64) string {
	const most = 8
	if len(seqs) == 0 {
		return ""
	}
	words := make([]string, 0, most)
	for _, s := range seqs[:min(most, len(seqs))] {
		words = append(words, strconv.FormatUint(s, 10))
	}
	if left := len(seqs) - most; left > 0 {
		return "events " + strings.Join(words, ", ") + fmt.Sprintf(" and %d more", left)
	}
	if len(words) == 1 {
		return "event " + words[0]
	}
	last := len(words) - 1
	return "events " + strings.Join(words[:last], ", ") + " and " + words[last]
}

// tally summarizes a run's verdicts: "5 held, 3 not claimed (2 held, 1 seen
// broken)".
func tally(j guarantees.Judgement) string { return strings.Join(tallies(j), ", ") }

func tallies(j guarantees.Judgement) []string {
	n, unclaimed := map[Status]int{}, map[guarantees.Outcome]int{}
	for _, v := range j.Verdicts {
		switch {
		case v.Outcome == guarantees.NotApplicable, v.Counts():
			n[statusOf(v.Outcome)]++
		default:
			n[StatusNotClaimed]++
			unclaimed[v.Outcome]++
		}
	}
	var words []string
	for _, o := range []guarantees.Outcome{guarantees.Held, guarantees.Violated, guarantees.Inconclusive} {
		if unclaimed[o] > 0 {
			words = append(words, fmt.Sprintf("%d %s", unclaimed[o], unclaimedWords[o]))
		}
	}
	all := countsOf(n)
	for i, c := range all {
		if strings.HasSuffix(c, StatusNotClaimed.words()) {
			all[i] += " (" + strings.Join(words, ", ") + ")"
		}
	}
	return all
}

// unclaimedWords describe outcomes of unclaimed guarantees.
var unclaimedWords = map[guarantees.Outcome]string{
	guarantees.Held: "held", guarantees.Violated: "seen broken", guarantees.Inconclusive: "undecided",
}

// counts formats non-zero counts: "5 held, 1 violated".
func counts(n map[Status]int) string { return strings.Join(countsOf(n), ", ") }

func countsOf(n map[Status]int) []string {
	var words []string
	for _, s := range []Status{StatusHeld, StatusViolated, StatusInconclusive, StatusUnmeasured, StatusNotClaimed, StatusNotApplicable} {
		if n[s] > 0 {
			words = append(words, fmt.Sprintf("%d %s", n[s], s.words()))
		}
	}
	return words
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// fraction formats a count of runs: "1 of 9 runs", "Both runs", "All 3 runs" or
// "The run".
func fraction(n, all int) string {
	switch {
	case n < all:
		return fmt.Sprintf("%d of %s", n, plural(all, "run"))
	case all == 1:
		return "The run"
	case all == 2:
		return "Both runs"
	}
	return fmt.Sprintf("All %d runs", all)
}

func upperFirst(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToUpper(r)) + s[n:]
}

func lowerFirst(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToLower(r)) + s[n:]
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
