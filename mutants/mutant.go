package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
)

// Mutant is one small change to one file.
type Mutant struct {
	Identity
	Row  int    // line of the first change, from 1
	Diff string // unified diff
	src  []byte // the whole mutated file
}

// Identity identifies a mutant until its line is edited. It has no line number,
// so that code above may change.
type Identity struct {
	File     string `json:"file" yaml:"file"` // slash-separated, from the module root
	Func     string `json:"func" yaml:"func"` // such as (*Core).ack; empty outside functions
	Operator string `json:"operator" yaml:"operator"`
	Line     string `json:"line" yaml:"line"`                   // first changed line of the mutant, unindented
	Nth      int    `json:"nth,omitempty" yaml:"nth,omitempty"` // from 2, among identical lines of a function
}

func (id Identity) String() string {
	s := fmt.Sprintf("%s %s %s: %s", id.File, cmp.Or(id.Func, "-"), id.Operator, id.Line)
	if id.Nth > 0 {
		s += fmt.Sprintf(" (%d)", id.Nth)
	}
	return s
}

// Package returns the directory of the file.
func (id Identity) Package() string { return path.Dir(id.File) }

// change replaces the bytes [start, end).
type change struct {
	start, end int
	text       string
}

// source is a parsed file to mutate.
type source struct {
	file string
	text []byte
	fset *token.FileSet
	tree *ast.File
}

func parseSource(file string, text []byte) (*source, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", file, err)
	}
	return &source{file: file, text: text, fset: fset, tree: tree}, nil
}

func (s *source) offset(p token.Pos) int { return s.fset.Position(p).Offset }

// mutant applies changes, which are sorted and do not overlap. It is false if
// the result does not parse. Changes keep the number of lines.
func (s *source) mutant(operator string, changes ...change) (Mutant, bool) {
	var out []byte
	at := 0
	for _, c := range changes {
		out = append(append(out, s.text[at:c.start]...), c.text...)
		at = c.end
	}
	out = append(out, s.text[at:]...)
	if _, err := parser.ParseFile(token.NewFileSet(), s.file, out, parser.SkipObjectResolution); err != nil {
		return Mutant{}, false
	}
	row := 1 + strings.Count(string(s.text[:changes[0].start]), "\n")
	line := strings.TrimSpace(strings.Split(string(out), "\n")[row-1])
	return Mutant{
		Identity: Identity{File: s.file, Func: s.function(changes[0].start), Operator: operator, Line: line},
		Row:      row,
		Diff:     diff(s.file, string(s.text), string(out)),
		src:      out,
	}, true
}

// function names the function around an offset.
func (s *source) function(offset int) string {
	for _, d := range s.tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || offset < s.offset(f.Pos()) || offset >= s.offset(f.End()) {
			continue
		}
		if f.Recv == nil {
			return f.Name.Name
		}
		recv := f.Recv.List[0].Type
		return fmt.Sprintf("(%s).%s", s.text[s.offset(recv.Pos()):s.offset(recv.End())], f.Name.Name)
	}
	return ""
}

// distinct sorts mutants, drops those with identical results, and numbers those
// with identical lines.
func distinct(mutants []Mutant) []Mutant {
	slices.SortStableFunc(mutants, func(a, b Mutant) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Row, b.Row))
	})
	type effect struct{ file, src string }
	made, alike := map[effect]bool{}, map[Identity]int{}
	var out []Mutant
	for _, m := range mutants {
		e := effect{m.File, string(m.src)}
		if made[e] {
			continue
		}
		made[e] = true
		if alike[m.Identity]++; alike[m.Identity] > 1 {
			m.Nth = alike[m.Identity]
		}
		out = append(out, m)
	}
	return out
}

// draw shuffles mutants by seed. Each one's rank depends on its identity alone,
// so that a sample survives edits elsewhere.
func draw(mutants []Mutant, seed uint64) {
	key := func(m Mutant) string {
		sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(m.Identity.String()), seed))
		return string(sum[:])
	}
	slices.SortFunc(mutants, func(a, b Mutant) int { return cmp.Compare(key(a), key(b)) })
}

// diff returns a unified diff of two texts with equally many lines.
func diff(file, was, is string) string {
	const context = 3
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	first, last := -1, 0
	for i := range a {
		if a[i] != b[i] {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	from, to := max(0, first-context), min(len(a), last+1+context)
	var w strings.Builder
	fmt.Fprintf(&w, "--- a/%s\n+++ b/%s\n@@ -%d,%d +%d,%d @@\n", file, file, from+1, to-from, from+1, to-from)
	for i := from; i < to; i++ {
		if a[i] == b[i] {
			fmt.Fprintf(&w, " %s\n", a[i])
			continue
		}
		fmt.Fprintf(&w, "-%s\n+%s\n", a[i], b[i])
	}
	return w.String()
}
