package script

import (
	"fmt"
	"slices"
)

// Part of a scenario that an error can be about.
type Part int

const (
	PartStep Part = iota
	PartReached
	PartExpect
	PartNeeds
)

// source says where each part of a scenario stands in the file that it was
// parsed from.
type source struct {
	file  string
	lines map[Part][]placed
}

// placed is one line of a script.
type placed struct {
	line  int
	words []string
}

// placed remembers the parser's line as that of the next part of this kind.
func (p *parser) placed(part Part) {
	if p.source.lines == nil {
		p.source.lines = make(map[Part][]placed)
	}
	p.source.lines[part] = append(p.source.lines[part], placed{p.line, p.words})
}

// ErrorAt is an error about the i-th step, condition, guarantee or need of the
// scenario, at the word that is wrong (empty: the line as a whole). It names
// file and line, or for a scenario that was not parsed the line as printed.
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

// LineOf the i-th step in the script as it is printed, which is what evidence
// keeps of it.
func (s Scenario) LineOf(i int) int {
	s.source = nil
	return s.ErrorAt(PartStep, i, "", "").Line
}
