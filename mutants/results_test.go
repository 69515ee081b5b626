package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func numbered(n int) []Mutant {
	var out []Mutant
	for i := range n {
		out = append(out, Mutant{Identity: Identity{File: "p/f.go", Operator: statementRemoved, Line: fmt.Sprint(i)}, Row: i})
	}
	return out
}

func TestResume(t *testing.T) {
	name := filepath.Join(t.TempDir(), "results.jsonl")
	all := numbered(3)
	first, err := openResults(name, "this code", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all[:2] {
		if err := first.Add(Result{Identity: m.Identity, Outcome: Killed}); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, whole[:len(whole)-5], 0o644); err != nil { // truncated
		t.Fatal(err)
	}

	if _, err := openResults(name, "other code", true); err == nil {
		t.Error("results of other code were continued")
	}
	again, err := openResults(name, "this code", true)
	if err != nil {
		t.Fatal(err)
	}
	var judged atomic.Int32
	survive := func(_ context.Context, m Mutant) (Result, error) {
		judged.Add(1)
		return Result{Identity: m.Identity, Outcome: Survived}, nil
	}
	got, err := judgeAll(t.Context(), survive, again, all, options{workers: 1}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if judged.Load() != 2 || len(got) != 3 || got[0].Outcome != Killed || got[1].Outcome != Survived {
		t.Errorf("%d judged anew; %+v", judged.Load(), got)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n")); n != 4 {
		t.Errorf("the file has %d lines:\n%s", n, text)
	}
}

// TestSample checks that the sample does not depend on the number of workers,
// and that mutants that do not compile do not count.
func TestSample(t *testing.T) {
	defer goleak.VerifyNone(t)
	all := numbered(20)
	outcome := func(_ context.Context, m Mutant) (Result, error) {
		r := Result{Identity: m.Identity, Row: m.Row, Outcome: Killed}
		if m.Row%3 == 0 {
			r.Outcome = Stillborn
		}
		return r, nil
	}
	for _, workers := range []int{1, 2, 7, 30} {
		results, err := openResults(filepath.Join(t.TempDir(), "results.jsonl"), "", false)
		if err != nil {
			t.Fatal(err)
		}
		got, err := judgeAll(t.Context(), outcome, results, all, options{n: 8, workers: workers}, io.Discard)
		if err := errors.Join(err, results.Close()); err != nil {
			t.Fatal(err)
		}
		var viable []int
		for _, r := range got {
			if r.Outcome != Stillborn {
				viable = append(viable, r.Row)
			}
		}
		if fmt.Sprint(viable) != "[1 2 4 5 7 8 10 11]" {
			t.Errorf("%d at once: %v", workers, viable)
		}
	}
	broken := errors.New("the machine failed")
	results, err := openResults(filepath.Join(t.TempDir(), "results.jsonl"), "", false)
	if err != nil {
		t.Fatal(err)
	}
	defer results.Close()
	_, err = judgeAll(t.Context(), func(context.Context, Mutant) (Result, error) { return Result{}, broken }, results, all, options{workers: 4}, io.Discard)
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestScore(t *testing.T) {
	of := func(i int, o Outcome) Result { return Result{Identity: numbered(i + 1)[i].Identity, Outcome: o} }
	s := Summary{All: numbered(9), Results: []Result{
		of(0, Killed), of(1, Killed), of(2, Killed), of(3, Noticed), of(4, Survived), of(5, Survived), of(6, Stillborn),
	}, Equivalent: map[Identity]string{of(5, "").Identity: "a reason"}}
	_, total := s.tallies()
	if want := (Tally{Mutants: 9, Judged: 6, Killed: 3, Noticed: 1, Survived: 1, Equivalent: 1}); total != want {
		t.Errorf("got %+v", total)
	}
	if total.Score() != 60 {
		t.Errorf("score %v", total.Score())
	}
	var survivors strings.Builder
	s.Diffs(&survivors, Survived)
	if strings.Count(survivors.String(), "survived p/f.go") != 1 {
		t.Errorf("an equivalent mutant is listed, or one that survived is not:\n%s", &survivors)
	}
	if found := s.Contradictions(); len(found) != 0 {
		t.Errorf("contradictions %+v", found)
	}
	s.Equivalent[of(0, "").Identity] = "wrong"
	if found := s.Contradictions(); len(found) != 1 {
		t.Errorf("contradictions %+v", found)
	}
	out := t.TempDir()
	for _, c := range []struct {
		min     float64
		results []Result
		exit    int
		err     bool
	}{
		{0, s.Results[1:], 0, false},
		{50, s.Results[1:], 0, false},
		{51, s.Results[1:], 1, false},
		{0, s.Results, 1, false}, // a marked one was killed
		{0, []Result{of(6, Stillborn)}, 0, true},
	} {
		exit, err := report(Summary{All: s.All, Results: c.results, Equivalent: s.Equivalent}, options{min: c.min}, out, io.Discard)
		if exit != c.exit || (err != nil) != c.err {
			t.Errorf("min %v of %d results: exit %d, %v", c.min, len(c.results), exit, err)
		}
	}
}

func TestWilson(t *testing.T) {
	for _, c := range []struct {
		k, n      int
		low, high float64
	}{
		{0, 0, 0, 100},
		{0, 10, 0, 27.75},
		{5, 10, 23.66, 76.34},
		{10, 10, 72.25, 100},
		{54, 60, 79.85, 95.34},
	} {
		low, high := wilson(c.k, c.n)
		if math.Abs(low-c.low) > 0.02 || math.Abs(high-c.high) > 0.02 {
			t.Errorf("%d of %d: %.2f to %.2f", c.k, c.n, low, high)
		}
	}
}

func TestEquivalents(t *testing.T) {
	all := omissions(read(t, "q/sample.go", sample))
	const entry = `
- file: q/sample.go
  func: (*queue).add
  operator: STATEMENT_REMOVED
  line: "if false { q.wake() }"
  reason: nobody waits
`
	for _, c := range []struct{ name, text, want string }{
		{"right", entry, ""},
		{"empty", "# nothing yet\n", ""},
		{"of code that is gone", strings.Replace(entry, "q.wake()", "q.rouse()", 1), "entry 1 matches no mutant"},
		{"with no reason", strings.Replace(entry, "  reason: nobody waits\n", "", 1), "entry 1 has no reason"},
		{"twice", entry + entry, "entry 2 is a duplicate"},
		{"an unknown field", entry + "  row: 3\n", "field row not found"},
	} {
		name := filepath.Join(t.TempDir(), "equivalent.yaml")
		if err := os.WriteFile(name, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readEquivalents(name, all)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
