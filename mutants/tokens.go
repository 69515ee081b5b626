package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
)

// exchanges maps gremlins' operators to token replacements.
var exchanges = map[string]map[string]string{
	"ARITHMETIC_BASE":       {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*"},
	"CONDITIONALS_BOUNDARY": {">=": ">", ">": ">=", "<=": "<", "<": "<="},
	"CONDITIONALS_NEGATION": {"==": "!=", "!=": "==", ">=": "<", ">": "<=", "<=": ">", "<": ">="},
	"INCREMENT_DECREMENT":   {"++": "--", "--": "++"},
	"INVERT_ASSIGNMENTS":    {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="},
	"INVERT_BITWISE":        {"&": "|", "|": "&", "^": "&", "&^": "&", "<<": ">>", ">>": "<<"},
	"INVERT_BWASSIGN":       {"&=": "|=", "|=": "&=", "^=": "&=", "&^=": "&=", "<<=": ">>=", ">>=": "<<="},
	"INVERT_LOGICAL":        {"&&": "||", "||": "&&"},
	"INVERT_LOOPCTRL":       {"break": "continue", "continue": "break"},
	"INVERT_NEGATIVES":      {"-": "+"},
	"REMOVE_SELF_ASSIGNMENTS": {
		"+=": "=", "-=": "=", "*=": "=", "/=": "=", "%=": "=", "&=": "=", "|=": "=", "^=": "=", "&^=": "=", "<<=": "=", ">>=": "=",
	},
}

// tokenMutation is a place that gremlins would mutate.
type tokenMutation struct {
	Type   string `json:"type"`
	Line   int    `json:"line"`
	Column int    `json:"column"` // in bytes, from 1
}

// gremlins lists what the tool would mutate in a package, by file. Its dry run
// also measures coverage, which is ignored.
func gremlins(ctx context.Context, tool, root, pkg string) (map[string][]tokenMutation, error) {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := filepath.Join(dir, "gremlins.json")
	cmd := exec.CommandContext(ctx, tool, "unleash", "--dry-run", "--silent", "--output", out,
		"--invert-assignments", "--invert-bitwise", "--invert-bwassign", "--invert-logical", "--invert-loopctrl",
		"--remove-self-assignments", "./"+pkg)
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s on %s: %w: %s", filepath.Base(tool), pkg, err, bytes.TrimSpace(text))
	}
	report, err := os.ReadFile(out)
	if err != nil {
		return nil, fmt.Errorf("%s on %s wrote no report: %w", filepath.Base(tool), pkg, err)
	}
	return parseGremlins(pkg, report)
}

func parseGremlins(pkg string, report []byte) (map[string][]tokenMutation, error) {
	var r struct {
		Files []struct {
			Name      string          `json:"file_name"`
			Mutations []tokenMutation `json:"mutations"`
		} `json:"files"`
	}
	if err := json.Unmarshal(report, &r); err != nil {
		return nil, fmt.Errorf("the report of gremlins on %s: %w", pkg, err)
	}
	places := map[string][]tokenMutation{}
	for _, f := range r.Files {
		places[path.Join(pkg, f.Name)] = f.Mutations
	}
	return places, nil
}

// tokens returns a file's mutants at the given places.
func tokens(s *source, places []tokenMutation) ([]Mutant, error) {
	var found []Mutant
	lines := bytes.SplitAfter(s.text, []byte("\n"))
	for _, p := range places {
		table, known := exchanges[p.Type]
		if !known {
			return nil, fmt.Errorf("%s:%d: unknown gremlins operator %s: add it to the table exchanges", s.file, p.Line, p.Type)
		}
		if p.Line < 1 || p.Line > len(lines) || p.Column < 1 || p.Column > len(lines[p.Line-1]) {
			return nil, fmt.Errorf("%s:%d:%d: gremlins reports a place outside the file", s.file, p.Line, p.Column)
		}
		start := p.Column - 1
		for _, l := range lines[:p.Line-1] {
			start += len(l)
		}
		was := longest(table, s.text[start:])
		if was == "" { // %= has no inverse
			continue
		}
		if m, ok := s.mutant(p.Type, change{start, start + len(was), table[was]}); ok {
			found = append(found, m)
		}
	}
	return found, nil
}

// longest returns the longest token of a table that prefixes text.
func longest(table map[string]string, text []byte) string {
	var found string
	for t := range table {
		if len(t) > len(found) && bytes.HasPrefix(text, []byte(t)) {
			found = t
		}
	}
	return found
}
