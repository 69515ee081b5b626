package script

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Limits on scripts, so that a hostile file is cheap.
const (
	maxScript = 1 << 20
	maxSteps  = 10_000
	maxFails  = 100 // of one consumer
	// MaxRange is the most messages one publish line may ask for.
	MaxRange = 1_000_000
)

// Error is a mistake in a script.
type Error struct {
	File string
	Line int    // from 1
	Word int    // from 1; 0 for the whole line
	Text string // what is wrong, and how to fix it
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

// Parse parses a script. Its error is an *Error with file, line and word.
func Parse(file, text string) (Scenario, error) {
	s := Scenario{source: &source{file: file}}
	if len(text) > maxScript {
		return s, &Error{File: file, Line: 1, Text: fmt.Sprintf("a script has at most %d bytes, this one has %d", maxScript, len(text))}
	}
	var comments []string
	labels := map[string]int{}
	for i, raw := range strings.Split(text, "\n") {
		line := strings.TrimSpace(raw)
		p := &parser{file: file, line: i + 1, words: words(line), source: s.source}
		switch {
		case line == "":
			continue
		case strings.HasPrefix(line, "#"):
			comments = append(comments, strings.TrimSpace(line[1:]))
			continue
		}
		verb := p.next("a step")
		if head, ok := headers[verb]; ok {
			head(p, &s, line)
			comments = nil
		} else if parse, ok := verbs[verb]; ok {
			step := parse(p)
			if f, ok := step.(Fault); ok && p.err == nil {
				if first, twice := labels[f.Label]; twice {
					p.fail("the label %q is already used in line %d; labels must be unique", f.Label, first)
				}
				labels[f.Label] = p.line
			}
			if comments != nil {
				step, comments = Comment{Lines: comments, Step: step}, nil
			}
			s.Steps = append(s.Steps, step)
			p.position(PartStep)
		} else {
			p.failAt(0, "%q is no step%s", verb, suggest(verb, vocabulary()))
		}
		if p.err == nil && p.at < len(p.words) {
			p.failAt(p.at, "%q is not expected here; expected end of line", p.words[p.at])
		}
		if p.err != nil {
			return Scenario{}, p.err
		}
		if len(s.Steps) > maxSteps {
			return Scenario{}, &Error{File: file, Line: i + 1, Text: fmt.Sprintf("a script has at most %d steps", maxSteps)}
		}
	}
	if s.Name == "" {
		return Scenario{}, &Error{File: file, Line: 1, Text: "no line \"scenario NAME\"; a script must begin with one"}
	}
	return s, nil
}

// headers are the lines that describe the scenario, parsed by their first word.
var headers = map[string]func(p *parser, s *Scenario, line string){
	"scenario": func(p *parser, s *Scenario, _ string) {
		if s.Name != "" {
			p.failAt(0, "a second scenario; a file may have only one")
		}
		s.Name = p.name("the scenario's name")
	},
	"why": func(p *parser, s *Scenario, line string) {
		if s.Why != "" {
			p.failAt(0, "a second why; a script may have only one, of one sentence")
		}
		s.Why = strings.TrimSpace(strings.TrimPrefix(line, "why"))
		p.at = len(p.words)
	},
	"needs": func(p *parser, s *Scenario, _ string) {
		for _, name := range p.names("what the system must have") {
			s.Needs = append(s.Needs, name)
			p.position(PartNeeds)
		}
	},
	"reached": func(p *parser, s *Scenario, _ string) {
		s.Reached = append(s.Reached, p.condition())
		p.position(PartReached)
	},
	"expect": func(p *parser, s *Scenario, _ string) {
		for _, name := range p.names("a guarantee") {
			s.Expect = append(s.Expect, name)
			p.position(PartExpect)
		}
	},
}

// verbs parse the steps.
var verbs = map[string]func(p *parser) Step{
	"producer": func(p *parser) Step {
		s := Producer{Name: p.name("the producer's name"), Destination: p.after("to", "a destination")}
		p.options(map[string]func(){
			"at-most-once":  func() { s.Mode = "at-most-once" },
			"at-least-once": func() { s.Mode = "at-least-once" },
			"ttl":           func() { s.TTL = p.duration("the time to live") },
			"outbox":        func() { s.Outbox = true },
			"commits": func() {
				if s.Commits = p.next("first or last"); s.Commits != CommitsFirst && s.Commits != CommitsLast {
					p.failAt(p.at-1, "%q: a producer commits its business row %s or %s", s.Commits, CommitsFirst, CommitsLast)
				}
			},
		})
		return s
	},
	"consumer": func(p *parser) Step {
		s := Consumer{Name: p.name("the consumer's name"), Destination: p.filter("on")}
		p.options(map[string]func(){
			"as":            func() { s.As = p.name("the logical subscriber") },
			"at-most-once":  func() { s.Mode = "at-most-once" },
			"at-least-once": func() { s.Mode = "at-least-once" },
			"idempotent":    func() { s.Idempotent = true },
			"handler":       func() { s.Handler = p.name("a way to handle deliveries") },
			"child":         func() { s.Child = true },
			"offline":       func() { s.Offline = true },
			"silent":        func() { s.Silent = true },
			"window":        func() { s.Window = p.count("the window") },
			"takes": func() {
				s.Takes = p.duration("how long the handler works")
				if p.peek() == "on" {
					p.expect("on")
					s.TakesOn = p.ids("a business ID")
				}
			},
			"fails": func() {
				f := Failing{On: p.ids("a business ID")}
				at := p.at - 1
				if len(s.Fails) == maxFails {
					p.failAt(at, "a handler fails on %d different IDs or ranges at most", maxFails)
				}
				for _, other := range s.Fails {
					if p.err == nil && f.On.overlap(other.On) {
						p.failAt(at, "the handler already fails on %s; give it once, with a number of times", other.On)
					}
				}
				if p.peek() != "" && p.peek() != "," {
					f.Times = p.count("how many times")
					p.expect("times")
				}
				s.Fails = append(s.Fails, f)
			},
		}, "fails")
		return s
	},
	"relay": func(p *parser) Step {
		s := Relay{Name: p.name("the relay's name"), Destination: p.after("from", "the destination of its messages")}
		p.options(map[string]func(){
			"at-most-once":  func() { s.Mode = "at-most-once" },
			"at-least-once": func() { s.Mode = "at-least-once" },
			"policy":        func() { s.Policy = p.name("a policy") },
			"child":         func() { s.Child = true },
			"offline":       func() { s.Offline = true },
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
			"size":    func() { s.Size, s.SizeTo = p.sizes(s.To > 0) },
			"ttl":     func() { s.TTL = p.duration("the time to live") },
			"headers": func() { s.Headers = p.atMost(MaxHeaders, "how many headers") },
			"key": func() {
				if s.Keys > 0 {
					p.failAt(p.at-1, "a publish has one key or several keys, not both")
				}
				s.Key = p.name("a key")
			},
			"keys": func() {
				switch {
				case s.Key != "":
					p.failAt(p.at-1, "a publish has one key or several keys, not both")
				case s.To == 0:
					p.failAt(p.at-1, "keys are for a range such as order-1..order-20; use key for one message")
				}
				s.Keys = p.count("how many keys")
			},
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
	"wait": func(p *parser) Step {
		p.expect("quiet")
		s := Wait{Quiet: p.duration("the quiet time")}
		if p.peek() == "within" {
			p.expect("within")
			s.Within = p.duration("a deadline")
			if p.err == nil && s.Within <= s.Quiet {
				p.failAt(p.at-1, "a deadline of %s leaves no time for %s of quiet", s.Within, s.Quiet)
			}
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
		what := p.next("old, damaged or damaged-content")
		if p.err == nil && !slices.Contains(Plants, what) {
			p.failAt(p.at-1, "%q cannot be planted: old, damaged or damaged-content", what)
		}
		return Plant{what, p.name("a business ID"), p.after("on", "a destination")}
	},
	"swap": func(p *parser) Step {
		p.expect("broker")
		p.expect("store")
		return Swap{}
	},
	"migrate": func(p *parser) Step {
		p.expect("broker")
		return Migrate{From: p.after("from", "a storage identity"), To: p.after("to", "a storage identity")}
	},
	"redrive": func(p *parser) Step { return Redrive{BusinessID: p.name("a business ID")} },
	"discard": func(p *parser) Step { return Discard{BusinessID: p.name("a business ID")} },
	"restore": func(p *parser) Step {
		of := p.name("business or broker")
		if of != "business" && of != "broker" {
			p.failAt(p.at-1, "what is restored is business or broker, not %q", of)
		}
		return Restore{Checkpoint: p.after("to", "a checkpoint"), Broker: of == "broker"}
	},
	"probe": func(p *parser) Step {
		p.expect("broker")
		s := Probe{Target: "broker"}
		if p.peek() != "" {
			s.Kind = p.name("a kind of probes")
		}
		return s
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
	given := map[string]bool{}
	once := func(clause string) { // of mutually exclusive clauses
		if given[clause] {
			p.failAt(p.at-1, "%q: a second time; only one is allowed", p.words[p.at-1])
		}
		given[clause] = true
	}
	for p.err == nil && p.peek() != "" {
		w := p.next("a clause")
		if clause, ok := clauses[w]; ok {
			once(cmp.Or(exclusive[w], w))
			clause()
			continue
		}
		n, err := strconv.Atoi(w)
		if s.Event == "" || err != nil || n < 1 || n > MaxRange {
			p.failAt(p.at-1, "%q is not expected here%s", w, suggest(w, keys(clauses)))
			break
		}
		once("a number")
		s.N = n
	}
	return s
}

// exclusive are fault clauses of which at most one may be given.
var exclusive = map[string]string{
	string(Every): "repeat", string(UntilHealed): "repeat", string(Before): "when", string(After): "when",
	"frame": "event", "operation": "event",
}

// parser consumes the words of one line. The first error sticks.
type parser struct {
	file  string
	line  int
	words []string
	at    int
	err   *Error

	source *source
}

// words splits at blanks; a comma ending a word is a word of its own.
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
		p.failAt(p.at, "the line ends where %s is expected", what)
		return ""
	}
	p.at++
	return p.words[p.at-1]
}

// name is a word that is a valid name.
func (p *parser) name(what string) string {
	w := p.next(what)
	if p.err == nil && !validName(w) {
		p.failAt(p.at-1, "%q cannot be %s: letters, digits and -._/+#@%% only, 100 at most", w, what)
	}
	return w
}

// filter is a subscription's destination, which may contain a system's
// wildcards.
func (p *parser) filter(preposition string) string {
	p.expect(preposition)
	w := p.next("a destination")
	plain := strings.NewReplacer("*", "x", ">", "x").Replace(w)
	if p.err == nil && !validName(strings.TrimPrefix(plain, "#")) && w != "#" {
		p.failAt(p.at-1, "%q cannot be a destination: letters, digits and -._/+#@%%*> only, 100 at most", w)
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

// options parses the options of a step. Each may be given once, except those
// listed as repeated.
func (p *parser) options(known map[string]func(), repeated ...string) {
	given := map[string]bool{}
	for p.err == nil && p.peek() == "," {
		p.expect(",")
		w := p.next("an option")
		if set, ok := known[w]; ok {
			what := cmp.Or(sameOption[w], w)
			if given[what] && !slices.Contains(repeated, w) {
				p.failAt(p.at-1, "%q sets an option a second time", w)
				return
			}
			given[what] = true
			set()
		} else {
			p.failAt(p.at-1, "%q is no option here%s", w, suggest(w, keys(known)))
		}
	}
}

// sameOption maps options to the setting they share.
var sameOption = map[string]string{"at-most-once": "mode", "at-least-once": "mode", "idempotent": "handler", "commits": "outbox"}

// MaxHeaders bounds the headers of a publish.
const MaxHeaders = 1000

func (p *parser) atMost(most int, what string) int {
	n := p.count(what)
	if p.err == nil && n > most {
		p.failAt(p.at-1, "%d is more than %d (%s)", n, most, what)
	}
	return n
}

// sizes parses "4096", or for a range "0..4096", growing from the first message
// to the last.
func (p *parser) sizes(ranged bool) (from, to int) {
	first, last, spread := strings.Cut(p.peek(), "..")
	if !spread {
		return p.count("bytes"), 0
	}
	p.next("bytes")
	from, err1 := strconv.Atoi(first)
	to, err2 := strconv.Atoi(last)
	switch {
	case p.err != nil:
	case err1 != nil || err2 != nil || from < 0 || to <= from || to > 1<<30:
		p.failAt(p.at-1, "%q should be a number of bytes, or a range such as 0..4096, the smaller first", first+".."+last)
	case !ranged:
		p.failAt(p.at-1, "two sizes are for a range such as order-1..order-20; one message has one size")
	}
	return from, to
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

// span parses "order-1..order-20": one stem, two numbers.
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
	return append(keys(verbs), keys(headers)...)
}

func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
