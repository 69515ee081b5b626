package main

import (
	"slices"
	"strings"
	"testing"
)

const sample = `package sample

func (q *queue) add(m message, full bool) error {
	if q.size+m.size > q.limit {
		return errFull
	}
	if full {
		q.mark()
	}
	switch m.kind {
	case ack:
		q.settle(m)
		return nil
	}
	q.list = append(q.list, m) // in order
	q.size += m.size
	defer func() {
		q.wake()
	}()
	q.first(true); q.first(true)
	return nil
}
`

func read(t *testing.T, file, text string) *source {
	t.Helper()
	s, err := parseSource(file, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func lines(mutants []Mutant) []string {
	var out []string
	for _, m := range distinct(mutants) {
		out = append(out, m.Operator+": "+m.Line)
	}
	return out
}

func compare(t *testing.T, got, want []string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("missing: %s", w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("unexpected: %s", g)
		}
	}
}

func TestOmissions(t *testing.T) {
	compare(t, lines(omissions(read(t, "q/sample.go", sample))), []string{
		"BRANCH_REMOVED: if (q.size+m.size > q.limit) && false {",
		"BRANCH_REMOVED: if (full) && false {",
		"CONDITION_NEGATED: if !(full) {",
		"CASE_REMOVED: if false { q.settle(m)",
		"STATEMENT_REMOVED: if false { q.settle(m) }",
		"STATEMENT_REMOVED: if false { return nil }",
		"STATEMENT_REMOVED: if false { q.list = append(q.list, m) } // in order",
		"STATEMENT_REMOVED: if false { q.size += m.size }",
		"STATEMENT_REMOVED: if false { defer func() {",
		"STATEMENT_REMOVED: if false { q.wake() }",
		"STATEMENT_REMOVED: if false { q.first(true) }; q.first(true)",
		"STATEMENT_REMOVED: q.first(true); if false { q.first(true) }",
		"BOOLEAN_FLIPPED: q.first(false); q.first(true)",
		"BOOLEAN_FLIPPED: q.first(true); q.first(false)",
	})
}

func TestTokens(t *testing.T) {
	s := read(t, "q/sample.go", sample)
	places, err := parseGremlins("q", []byte(`{"files": [{"file_name": "sample.go", "mutations": [
		{"type": "ARITHMETIC_BASE", "status": "NOT COVERED", "line": 4, "column": 11},
		{"type": "INVERT_NEGATIVES", "status": "RUNNABLE", "line": 4, "column": 11},
		{"type": "CONDITIONALS_BOUNDARY", "status": "RUNNABLE", "line": 4, "column": 19},
		{"type": "CONDITIONALS_NEGATION", "status": "RUNNABLE", "line": 4, "column": 19},
		{"type": "INVERT_ASSIGNMENTS", "status": "RUNNABLE", "line": 16, "column": 9},
		{"type": "REMOVE_SELF_ASSIGNMENTS", "status": "RUNNABLE", "line": 16, "column": 9}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	found, err := tokens(s, places["q/sample.go"])
	if err != nil {
		t.Fatal(err)
	}
	compare(t, lines(found), []string{
		"ARITHMETIC_BASE: if q.size-m.size > q.limit {",
		"CONDITIONALS_BOUNDARY: if q.size+m.size >= q.limit {",
		"CONDITIONALS_NEGATION: if q.size+m.size <= q.limit {",
		"INVERT_ASSIGNMENTS: q.size -= m.size",
		"REMOVE_SELF_ASSIGNMENTS: q.size = m.size",
	})
	for _, wrong := range []tokenMutation{
		{"UNHEARD_OF", 4, 11},
		{"ARITHMETIC_BASE", 400, 1},
		{"ARITHMETIC_BASE", 4, 400},
	} {
		if _, err := tokens(s, []tokenMutation{wrong}); err == nil {
			t.Errorf("%+v was taken", wrong)
		}
	}
}

func TestIdentity(t *testing.T) {
	const twice = "package p\n\nfunc f() {\n\tg(1)\n\tg(2)\n\tg(1)\n}\n"
	ids := func(text string) (out []string) {
		for _, m := range distinct(omissions(read(t, "p/f.go", text))) {
			out = append(out, m.Identity.String())
		}
		return out
	}
	want := []string{
		"p/f.go f STATEMENT_REMOVED: if false { g(1) }",
		"p/f.go f STATEMENT_REMOVED: if false { g(2) }",
		"p/f.go f STATEMENT_REMOVED: if false { g(1) } (2)",
	}
	if got := ids(twice); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if moved := strings.Replace(twice, "func f", "// Lines above come and go.\nvar x = 1\n\nfunc f", 1); !slices.Equal(ids(moved), want) {
		t.Errorf("moved, it is %q", ids(moved))
	}
	m := distinct(omissions(read(t, "q/sample.go", sample)))[0]
	if m.Func != "(*queue).add" || m.Package() != "q" || m.Row != 4 {
		t.Errorf("%+v", m)
	}
}

func TestDraw(t *testing.T) {
	all := distinct(omissions(read(t, "q/sample.go", sample)))
	order := func(mutants []Mutant, seed uint64) (out []string) {
		mutants = slices.Clone(mutants)
		draw(mutants, seed)
		for _, m := range mutants {
			out = append(out, m.Identity.String())
		}
		return out
	}
	one := order(all, 1)
	if slices.Equal(one, order(all, 2)) {
		t.Error("two seeds draw alike")
	}
	fewer := order(all[1:], 1) // without the first
	if gone := all[0].Identity.String(); !slices.Equal(fewer, slices.DeleteFunc(one, func(s string) bool { return s == gone })) {
		t.Error("without one mutant the others are drawn in another order")
	}
}

func TestDiff(t *testing.T) {
	for _, m := range omissions(read(t, "q/sample.go", sample)) {
		if !strings.HasPrefix(m.Line, "if false { defer") {
			continue
		}
		const want = `--- a/q/sample.go
+++ b/q/sample.go
@@ -14,9 +14,9 @@
 	}
 	q.list = append(q.list, m) // in order
 	q.size += m.size
-	defer func() {
+	if false { defer func() {
 		q.wake()
-	}()
+	}() }
 	q.first(true); q.first(true)
 	return nil
 }
`
		if m.Diff != want {
			t.Errorf("got\n%s", m.Diff)
		}
		return
	}
	t.Error("the mutant is missing")
}
