package script

import (
	"fmt"
	"slices"
)

// Part is a part of a scenario that an error can refer to.
type Part int

const (
	PartStep Part = iota
	PartReached
	PartExpect
	PartNeeds
)

// source holds the positions of a scenario's parts in its file.
type source struct {
	file  string
	lines map[Part][]scriptLine
}

// scriptLine is one line, for errors about it.
type scriptLine struct {
	line  int
	words []string
}

// position records the parser's line for the next part of this kind.
func (p *parser) position(part Part) {
	if p.source.lines == nil {
		p.source.lines = make(map[Part][]scriptLine)
	}
	p.source.lines[part] = append(p.source.lines[part], scriptLine{p.line, p.words})
}

// ErrorAt returns an error about the i-th element of a part, at the given word
// (empty for the whole line). It names file and line, or the printed line if
// the scenario was not parsed.
func (s Scenario) ErrorAt(part Part, i int, word, format string, args ...any) *Error {
	src := s.source
	if src == nil {
		printed, err := Parse("scenario "+s.Name, Print(s))
		if err != nil {
			return &Error{File: "scenario " + s.Name, Line: 1, Text: fmt.Sprintf(format, args...)}
		}
		src = printed.source
	}
	e := &Error{File: src.file, Line: 1, Text: fmt.Sprintf(format, args...)}
	if lines := src.lines[part]; i < len(lines) {
		e.Line, e.Word = lines[i].line, 1+slices.Index(lines[i].words, word)
	}
	return e
}

// LineOf returns the line of the i-th step in the printed script, which is what
// evidence stores.
func (s Scenario) LineOf(i int) int {
	s.source = nil
	return s.ErrorAt(PartStep, i, "", "").Line
}
