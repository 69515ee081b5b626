package custodytest

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/scenarios"
)

// report turns a run's outcome into the result of a test.
func report(t testing.TB, o scenarios.Outcome, seed uint64) {
	t.Helper()
	j := o.Judgement
	switch {
	case j.Outcome == guarantees.Violated: // proven, even if measuring failed later
		t.Errorf("violated: %s\n%s%s", j.Why, findings(j.Broken), trail(t, o, seed))
		if o.Err != nil {
			t.Fatalf("and then could not measure: %v", o.Err)
		}
	case o.Err != nil:
		t.Fatalf("could not measure: %v\n%s", o.Err, trail(t, o, seed))
	case j.Error != "":
		t.Fatalf("could not measure: %s\n%s", j.Error, trail(t, o, seed))
	case j.Outcome == guarantees.NotApplicable:
		t.Skipf("not applicable: %s", j.Why)
	case j.Outcome == guarantees.NotClaimed:
		t.Logf("not claimed: %s", j.Why)
	case j.Outcome == guarantees.Held:
		t.Log(j.Why)
		for _, v := range j.Verdicts { // a passing test must not hide it
			if v.Outcome == guarantees.Violated {
				t.Logf("seen broken, not claimed: %s: %s", v.Guarantee, v.Why)
			}
		}
	default:
		t.Errorf("inconclusive: %s\n%s", j.Why, trail(t, o, seed))
	}
}

// findings formats one block per kind, with its number.
func findings(broken []guarantees.Finding) string {
	type kind struct{ guarantee, kind string }
	count := map[kind]int{}
	for _, f := range broken {
		count[kind{f.Guarantee, f.Kind}]++
	}
	var b strings.Builder
	for _, f := range broken {
		k := kind{f.Guarantee, f.Kind}
		n, first := count[k]
		if delete(count, k); !first {
			continue
		}
		fmt.Fprintf(&b, "  %s (%s): %s\n", f.Guarantee, f.Kind, f.Text)
		if n > 1 {
			fmt.Fprintf(&b, "    and %d more like it\n", n-1)
		}
		for _, line := range []struct{ name, value string }{
			{"hand-over", string(f.HandOver)},
			{"business ID", f.BusinessID},
			{"publish ID", f.PublishID},
			{"message ID", f.MessageID},
			{"subscription", f.Subscription},
			{"events", strings.Trim(fmt.Sprint(f.Events), "[]")},
		} {
			if line.value != "" {
				fmt.Fprintf(&b, "    %-13s%s\n", line.name, line.value)
			}
		}
	}
	return b.String()
}

// trail explains how to investigate a result.
func trail(t testing.TB, o scenarios.Outcome, seed uint64) string {
	return fmt.Sprintf("  evidence     %s (kept with CUSTODY_OUT=DIR or -artifacts)\n  judge again  custody judge %[1]s\n  run again    go test -count=1 -run '%s' (seed %d)",
		o.Dir, pattern(t.Name()), seed)
}

// pattern returns a -run pattern that matches this test only.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
