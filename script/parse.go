package script

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Limits of a script, so that a hostile file costs nothing.
const (
	maxScript = 1 << 20
	maxSteps  = 10_000
	// MaxRange is the most messages one publish line may ask for.
	MaxRange = 1_000_000
)

// Error is one thing wrong with a script.
type Error struct {
	File string
	Line int    // from 1
	Word int    // from 1; 0 when it is the line as a whole
	Text string // what is wrong, and the mend
}

func (e *Error) Error() string {
	where := fmt.Sprintf("line %d", e.Line)
	if e.Word > 0 {
		where += fmt.Sprintf(", word %d", e.Word)
	}
	if e.File != "" {
		where = e.File + ": " + where
	}
	return where + ": " + e.Text
}

// Parse reads a script. An error is an *Error with file, line and word.
func Parse(file, text string) (Scenario, error) {
	var s Scenario
	if len(text) > maxScript {
		return s, &Error{File: file, Line: 1, Text: fmt.Sprintf("a script has at most %d bytes, this one has %d", maxScript, len(text))}
	}
	var comments []string
	labels := map[string]int{}
	for i, raw := range strings.Split(text, "\n") {
		line := strings.TrimSpace(raw)
		p := &parser{file: file, line: i + 1, words: words(line)}
		switch {
		case line == "":
			continue
		case strings.HasPrefix(line, "#"):
			comments = append(comments, strings.TrimSpace(line[1:]))
			continue
		}
		verb := p.next("a step")
		if head, ok := heads[verb]; ok {
			head(p, &s, line)
			comments = nil
		} else if parse, ok := verbs[verb]; ok {
			step := parse(p)
			if f, ok := step.(Fault); ok && p.err == nil {
				if first, twice := labels[f.Label]; twice {
					p.fail("the label %q is taken by line %d; give each fault its own", f.Label, first)
				}
				labels[f.Label] = p.line
			}
			if comments != nil {
				step, comments = Comment{Lines: comments, Step: step}, nil
			}
			s.Steps = append(s.Steps, step)
		} else {
			p.failAt(0, "%q is no step%s", verb, suggest(verb, vocabulary()))
		}
		if p.err == nil && p.at < len(p.words) {
			p.failAt(p.at, "%q is not expected here; the line should have ended", p.words[p.at])
		}
		if p.err != nil {
			return Scenario{}, p.err
		}
		if len(s.Steps) > maxSteps {
			return Scenario{}, &Error{File: file, Line: i + 1, Text: fmt.Sprintf("a script has at most %d steps", maxSteps)}
		}
	}
	if s.Name == "" {
		return Scenario{}, &Error{File: file, Line: 1, Text: "no line \"scenario NAME\"; a script begins with one"}
	}
	return s, nil
}

// heads are the lines that describe the scenario and are no steps.
var heads = map[string]func(p *parser, s *Scenario, line string){
	"scenario": func(p *parser, s *Scenario, _ string) {
		if s.Name != "" {
			p.failAt(0, "a second scenario; a file holds one")
		}
		s.Name = p.name("the scenario's name")
	},
	"why": func(p *parser, s *Scenario, line string) {
		s.Why = strings.TrimSpace(strings.TrimPrefix(line, "why"))
		p.at = len(p.words)
	},
	"needs": func(p *parser, s *Scenario, _ string) {
		s.Needs = append(s.Needs, p.names("what the system must have")...)
	},
	"reached": func(p *parser, s *Scenario, _ string) { s.Reached = append(s.Reached, p.condition()) },
	"expect":  func(p *parser, s *Scenario, _ string) { s.Expect = append(s.Expect, p.names("a guarantee")...) },
}

// verbs are the steps.
var verbs = map[string]func(p *parser) Step{
	"producer": func(p *parser) Step {
		s := Producer{Name: p.name("the producer's name"), Destination: p.after("to", "a destination")}
		p.options(map[string]func(){
			"at-most-once":  func() { s.Mode = "at-most-once" },
			"at-least-once": func() { s.Mode = "at-least-once" },
			"ttl":           func() { s.TTL = p.duration("the time to live") },
		})
		return s
	},
	"consumer": func(p *parser) Step {
		s := Consumer{Name: p.name("the consumer's name"), Destination: p.after("on", "a destination")}
		p.options(map[string]func(){
			"as":            func() { s.As = p.name("the logical subscriber") },
			"at-most-once":  func() { s.Mode = "at-most-once" },
			"at-least-once": func() { s.Mode = "at-least-once" },
			"idempotent":    func() { s.Idempotent = true },
			"child":         func() { s.Child = true },
			"offline":       func() { s.Offline = true },
			"silent":        func() { s.Silent = true },
			"window":        func() { s.Window = p.count("the window") },
			"fails": func() {
				s.Fails = p.name("a business ID")
				if p.peek() != "" && p.peek() != "," {
					s.FailTimes = p.count("how many times")
					p.expect("times")
				}
			},
		})
		return s
	},
	"publish": func(p *parser) Step {
		var s Publish
		what := p.name("a business ID")
		if first, last, ok := strings.Cut(what, ".."); ok {
			s.BusinessID, s.From, s.To = p.span(first, last)
		} else {
			s.BusinessID = what
		}
		s.By = p.after("by", "a producer")
		p.options(map[string]func(){
			"size":       func() { s.Size = p.count("bytes") },
			"ttl":        func() { s.TTL = p.duration("the time to live") },
			"key":        func() { s.Key = p.name("a key") },
			"id":         func() { s.MessageID = p.name("a message ID") },
			"window":     func() { s.Window = p.count("the window") },
			"background": func() { s.Background = true },
			"cancelled":  func() { s.Cancel = true },
			"until": func() {
				p.expect("accepted")
				s.Until = "accepted"
			},
		})
		return s
	},
	"retry": func(p *parser) Step {
		s := Retry{BusinessID: p.name("a business ID"), By: p.after("by", "a producer")}
		p.options(map[string]func(){"same-id": func() { s.SameID = true }})
		return s
	},
	"resolve": func(p *parser) Step {
		return Resolve{BusinessID: p.name("a business ID"), By: p.after("by", "a producer")}
	},
	"fault": parseFault,
	"heal":  func(p *parser) Step { return Heal{Label: p.name("a fault's label")} },
	"await": func(p *parser) Step {
		s := Await{Condition: p.condition()}
		if p.peek() == "within" {
			p.expect("within")
			s.Within = p.duration("a deadline")
		}
		return s
	},
	"provoke": func(p *parser) Step {
		p.expect("redelivery")
		return Provoke{BusinessID: p.after("of", "a business ID")}
	},
	"settle": func(p *parser) Step {
		var s Settle
		if p.peek() != "" && p.peek() != "within" {
			s.By = p.name("a producer")
		}
		if p.peek() == "within" {
			p.expect("within")
			s.Within = p.duration("a deadline")
		}
		return s
	},
	"start":    func(p *parser) Step { return Start{Actor: p.name("an actor, or broker")} },
	"stop":     func(p *parser) Step { return Stop{Actor: p.name("an actor, or broker")} },
	"restart":  func(p *parser) Step { return Restart{Actor: p.name("an actor, or broker")} },
	"snapshot": func(p *parser) Step { return Snapshot{Checkpoint: p.name("the checkpoint's name")} },
	"set": func(p *parser) Step {
		p.expect("broker")
		return Set{Setting: p.name("a setting"), Value: p.after("to", "its value")}
	},
	"plant": func(p *parser) Step {
		p.expect("old")
		return Plant{BusinessID: p.name("a business ID"), Destination: p.after("on", "a destination")}
	},
	"redrive": func(p *parser) Step { return Redrive{BusinessID: p.name("a business ID")} },
	"discard": func(p *parser) Step { return Discard{BusinessID: p.name("a business ID")} },
	"restore": func(p *parser) Step {
		p.expect("business")
		return Restore{Checkpoint: p.after("to", "a checkpoint")}
	},
	"rewind": func(p *parser) Step {
		s := Rewind{Consumer: p.name("a consumer"), Checkpoint: p.after("to", "a checkpoint")}
		s.By = p.after("by", "time or position")
		if s.By != ByTime && s.By != ByPosition {
			p.failAt(p.at-1, "a subscriber is rewound by time or by position, not by %q", s.By)
		}
		return s
	},
	"elapse": func(p *parser) Step {
		p.expect("ttl")
		s := Elapse{BusinessID: p.after("of", "a business ID")}
		if p.peek() == "plus" {
			p.expect("plus")
			s.Margin = p.duration("a margin")
		}
		return s
	},
}

func parseFault(p *parser) Step {
	label := p.next("a label and a colon")
	if !strings.HasSuffix(label, ":") || len(label) < 2 {
		p.failAt(p.at-1, "a fault begins \"fault LABEL:\", not %q", label)
		return Fault{}
	}
	s := Fault{Label: strings.TrimSuffix(label, ":"), Verb: p.name("what the fault does")}
	clauses := map[string]func(){
		string(Every):       func() { s.Repeat = Every },
		string(UntilHealed): func() { s.Repeat = UntilHealed },
		string(Before):      func() { s.When = Before },
		string(After):       func() { s.When = After },
		"frame":             func() { s.Event = "frame " + p.name("a kind of frame") },
		"operation":         func() { s.Event = "operation " + p.name("a store operation") },
		"of":                func() { s.Of = p.name("a business ID") },
		"on":                func() { s.On = p.name("an actor") },
		"by":                func() { s.By = p.offset("a duration") },
		"at": func() {
			s.Rate = p.count("a rate")
			p.expect("KiB/s")
		},
	}
	if w := p.peek(); w != "" && clauses[w] == nil {
		s.Target = p.name("what is struck")
	}
	for p.err == nil && p.peek() != "" {
		w := p.next("a clause")
		if clause, ok := clauses[w]; ok {
			clause()
			continue
		}
		n, err := strconv.Atoi(w)
		if s.Event == "" || err != nil || n < 1 || n > MaxRange {
			p.failAt(p.at-1, "%q is not expected here%s", w, suggest(w, keys(clauses)))
			break
		}
		s.N = n
	}
	return s
}

// parser walks the words of one line. The first failure sticks.
type parser struct {
	file  string
	line  int
	words []string
	at    int
	err   *Error
}

// words splits at blanks; a comma that ends a word is a word.
func words(line string) []string {
	var out []string
	for _, f := range strings.Fields(line) {
		if len(f) > 1 && strings.HasSuffix(f, ",") {
			out = append(out, strings.TrimSuffix(f, ","), ",")
			continue
		}
		out = append(out, f)
	}
	return out
}

func (p *parser) fail(format string, args ...any) { p.failAt(-1, format, args...) }

func (p *parser) failAt(word int, format string, args ...any) {
	if p.err == nil {
		p.err = &Error{File: p.file, Line: p.line, Word: word + 1, Text: fmt.Sprintf(format, args...)}
	}
}

func (p *parser) peek() string {
	if p.at < len(p.words) {
		return p.words[p.at]
	}
	return ""
}

func (p *parser) next(what string) string {
	if p.at >= len(p.words) {
		p.failAt(p.at, "the line ends where %s should stand", what)
		return ""
	}
	p.at++
	return p.words[p.at-1]
}

// name is a word that can be a name: see validName.
func (p *parser) name(what string) string {
	w := p.next(what)
	if p.err == nil && !validName(w) {
		p.failAt(p.at-1, "%q cannot be %s: letters, digits and -._/+#@%% only, 100 at most", w, what)
	}
	return w
}

func validName(w string) bool {
	if w == "" || len(w) > 100 {
		return false
	}
	for _, r := range w {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && !strings.ContainsRune("-._/+#@%", r) {
			return false
		}
	}
	return !strings.HasPrefix(w, "#")
}

func (p *parser) expect(w string) {
	if got := p.next(strconv.Quote(w)); p.err == nil && got != w {
		p.failAt(p.at-1, "%q should be %q", got, w)
	}
}

func (p *parser) after(w, what string) string {
	p.expect(w)
	return p.name(what)
}

func (p *parser) names(what string) []string {
	out := []string{p.name(what)}
	for p.err == nil && p.peek() == "," {
		p.expect(",")
		out = append(out, p.name(what))
	}
	return out
}

func (p *parser) options(known map[string]func()) {
	for p.err == nil && p.peek() == "," {
		p.expect(",")
		w := p.next("an option")
		if set, ok := known[w]; ok {
			set()
		} else {
			p.failAt(p.at-1, "%q is no option here%s", w, suggest(w, keys(known)))
		}
	}
}

func (p *parser) count(what string) int {
	w := p.next(what)
	n, err := strconv.Atoi(w)
	if p.err == nil && (err != nil || n < 1 || n > 1<<30) {
		p.failAt(p.at-1, "%q should be a whole number of at least 1 (%s)", w, what)
	}
	return n
}

func (p *parser) duration(what string) time.Duration {
	d := p.offset(what)
	if p.err == nil && d < 0 {
		p.failAt(p.at-1, "%s cannot be negative", what)
	}
	return d
}

func (p *parser) offset(what string) time.Duration {
	w := p.next(what)
	d, err := time.ParseDuration(w)
	if p.err == nil && (err != nil || d == 0 || d > 1000*time.Hour || d < -1000*time.Hour) {
		p.failAt(p.at-1, "%q should be %s, such as 500ms or 2s", w, what)
	}
	return d
}

// span reads "order-1..order-20": one stem, two numbers.
func (p *parser) span(first, last string) (stem string, from, to int) {
	a, b := strings.TrimRight(first, "0123456789"), strings.TrimRight(last, "0123456789")
	from, err1 := strconv.Atoi(first[len(a):])
	to, err2 := strconv.Atoi(last[len(b):])
	canonical := err1 == nil && err2 == nil && strconv.Itoa(from) == first[len(a):] && strconv.Itoa(to) == last[len(b):]
	if p.err == nil && (a != b || !canonical || from < 1 || to < from || to-from >= MaxRange) {
		p.failAt(p.at-1, "%q should be a range such as order-1..order-20, of %d at most", first+".."+last, MaxRange)
	}
	return a, from, to
}

func vocabulary() []string {
	return append(keys(verbs), keys(heads)...)
}

func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
