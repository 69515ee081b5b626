package script

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/evidence"
)

const ackLost = `scenario ack-lost
why The broker never hears the first ACK of order-1.
producer p1 to orders
consumer c1 on orders, idempotent
fault lost: drop frame ack of order-1 on c1
# The business commit is done by now.
publish order-1 by p1
await fired lost within 5s
provoke redelivery of order-1
await delivered order-1 at least 2 times within 10s
reached redelivery of order-1
expect no-accepted-loss, single-effect, stable-redelivery-id
`

func TestParsePrintsBack(t *testing.T) {
	s, err := Parse("ack-lost.custody", ackLost)
	if err != nil {
		t.Fatal(err)
	}
	if got := Print(s); got != ackLost {
		t.Errorf("printed:\n%s\nwant:\n%s", got, ackLost)
	}
	want := Fault{Label: "lost", Verb: "drop", Event: "frame ack", Of: "order-1", On: "c1"}
	if s.Steps[2] != Step(want) {
		t.Errorf("fault parsed as %+v, want %+v", s.Steps[2], want)
	}
}

func TestErrorsNameLineAndWord(t *testing.T) {
	head := "scenario x\n"
	for _, c := range []struct {
		name, text string
		line, word int
		says       string
	}{
		{"unknown step", head + "publsh order-1 by p1", 2, 1, "did you mean publish?"},
		{"unknown condition", head + "await fird lost", 2, 2, "did you mean fired?"},
		{"missing word", head + "publish order-1", 2, 3, `"by"`},
		{"too much", head + "heal lost now", 2, 3, "not expected"},
		{"bad duration", head + "await fired lost within soon", 2, 5, "500ms"},
		{"bad option", head + "consumer c1 on orders, idempotnt", 2, 6, "did you mean idempotent?"},
		{"bad range", head + "publish a-1..b-2 by p1", 2, 2, "range"},
		{"endless range", head + "publish a-1..a-999999999 by p1", 2, 2, "range"},
		{"rewound by what", head + "rewind c1 to backup by heart", 2, 6, "by time or by position"},
		{"no label", head + "fault drop frame ack", 2, 2, "LABEL:"},
		{"label twice", head + "fault a: pause broker\nfault a: kill broker", 3, 0, "used in line 2"},
		{"no scenario", "publish order-1 by p1", 1, 0, "begin with one"},
		{"two scenarios", head + "scenario y", 2, 1, "second scenario"},
		{"two reasons", head + "why a\nwhy b", 3, 1, "second why"},
		{"empty", "", 1, 0, "scenario NAME"},
		{"option twice", head + "consumer c1 on orders, as a, as b", 2, 9, "second time"},
		{"window twice", head + "publish a-1..a-9 by p1, window 2, window 3", 2, 9, "second time"},
		{"size twice", head + "publish a by p1, size 2, size 3", 2, 9, "second time"},
		{"flag twice", head + "consumer c1 on orders, idempotent, idempotent", 2, 8, "second time"},
		{"two modes", head + "producer p1 to orders, at-most-once, at-least-once", 2, 8, "second time"},
		{"takes twice", head + "consumer c1 on orders, takes 1s, takes 2s on a", 2, 9, "second time"},
		{"fails twice on one", head + "consumer c1 on orders, fails a-1..a-5, fails a-3 2 times", 2, 10, "already"},
		{"two numbers", head + "fault f: drop frame ack 2 3 on c1", 2, 7, "second time"},
		{"two repeats", head + "fault f: drop every until-healed frame ack on c1", 2, 5, "second time"},
		{"two events", head + "fault f: drop frame ack frame accept on c1", 2, 6, "second time"},
		{"two actors", head + "fault f: drop frame ack on c1 on c2", 2, 8, "second time"},
		{"key and keys", head + "publish a-1..a-9 by p1, key k, keys 4", 2, 9, "not both"},
		{"keys of one", head + "publish a by p1, keys 4", 2, 6, "range"},
		{"sizes of one", head + "publish a by p1, size 0..9", 2, 7, "range"},
		{"sizes down", head + "publish a-1..a-9 by p1, size 9..0", 2, 7, "smaller first"},
		{"too many headers", head + "publish a by p1, headers 1001", 2, 7, "more than 1000"},
		{"never quiet", head + "wait quiet 2s within 1s", 2, 5, "no time"},
		{"quiet what", head + "wait still 2s", 2, 2, "quiet"},
		{"wildcard to publish to", head + "producer p1 to orders.*", 2, 4, "cannot be"},
		{"no destination", head + "consumer c1 on a=b", 2, 4, "cannot be a destination"},
		{"control character", head + "heal \x01", 2, 2, "cannot be"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("f.custody", c.text)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error is %v, want an *Error", err)
			}
			if e.File != "f.custody" || e.Line != c.line || e.Word != c.word || !strings.Contains(e.Text, c.says) {
				t.Errorf("got %v; want line %d, word %d, saying %q", e, c.line, c.word, c.says)
			}
		})
	}
}

// Every scenario prints and parses back to itself.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScenario(t)
		text := Print(s)
		back, err := Parse("", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		back.source = nil // a literal has none
		if !reflect.DeepEqual(s, back) {
			t.Fatalf("wrote %#v\nread  %#v\nfrom\n%s", s, back, text)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(ackLost)
	f.Add("scenario x\nconsumer c1 on orders/+, takes 3s on a-1..a-3, fails a, fails b-3..b-5 2 times\npublish b-1..b-9 by p1, size 0..9, headers 3, keys 4\nwait quiet 500ms within 2s")
	f.Add("scenario x\nfault a: cut after frame publish 3 of b on p1 by 2s at 5 KiB/s\nneeds a, b")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("", text)
		if err != nil {
			return
		}
		printed := Print(s)
		again, err := Parse("", printed)
		if err != nil {
			t.Fatalf("what was printed does not parse: %v\n%s", err, printed)
		}
		if second := Print(again); second != printed {
			t.Fatalf("printed %q, then %q", printed, second)
		}
	})
}

var (
	drawName     = rapid.StringMatching(`[a-z][a-z0-9]{0,5}(-[0-9]{1,2})?x`)
	drawDuration = rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "ns"))
	})
	drawMaybeDuration = rapid.OneOf(rapid.Just(time.Duration(0)), drawDuration)
	drawMaybeName     = rapid.OneOf(rapid.Just(""), drawName)
	drawCount         = rapid.IntRange(0, 1000)
	drawMode          = rapid.SampledFrom([]string{"", "at-most-once", "at-least-once"})
)

func drawIDs(t *rapid.T) IDs {
	ids := IDs{Name: drawName.Draw(t, "id")}
	if rapid.Bool().Draw(t, "range of ids") {
		ids.From = rapid.IntRange(1, 10).Draw(t, "from")
		ids.To = ids.From + drawCount.Draw(t, "more")
	}
	return ids
}

func drawCondition(t *rapid.T) evidence.Condition {
	s := rapid.SampledFrom(shapes).Draw(t, "shape")
	times, word := 0, ""
	if s.counted {
		times = drawCount.Draw(t, "times")
	}
	for _, w := range s.words {
		if w == optional && rapid.Bool().Draw(t, "without") {
			break
		}
		if w == wordSlot {
			word = drawName.Draw(t, "word")
		}
	}
	return Condition(s.verb, drawName.Draw(t, "subject"), word, times)
}

// steps draws each kind of step.
var steps = map[string]func(*rapid.T) Step{
	"producer": func(t *rapid.T) Step {
		p := Producer{Name: drawName.Draw(t, "name"), Destination: drawName.Draw(t, "to"), Mode: drawMode.Draw(t, "mode"), TTL: drawMaybeDuration.Draw(t, "ttl"),
			Commits: rapid.SampledFrom([]string{"", CommitsFirst, CommitsLast}).Draw(t, "commits")}
		p.Outbox = p.Commits == "" && rapid.Bool().Draw(t, "outbox")
		return p
	},
	"consumer": func(t *rapid.T) Step {
		c := Consumer{Name: drawName.Draw(t, "name"), Destination: rapid.OneOf(drawName, rapid.SampledFrom([]string{"#", "#/a", "a/+/b", "a.*.b", "a.>"})).Draw(t, "on"), As: drawMaybeName.Draw(t, "as"),
			Mode: drawMode.Draw(t, "mode"), Idempotent: rapid.Bool().Draw(t, "i"), Child: rapid.Bool().Draw(t, "c"),
			Offline: rapid.Bool().Draw(t, "o"), Silent: rapid.Bool().Draw(t, "s"), Window: drawCount.Draw(t, "w"), Takes: drawMaybeDuration.Draw(t, "takes")}
		if !c.Idempotent {
			c.Handler = drawMaybeName.Draw(t, "handler")
		}
		if c.Takes > 0 && rapid.Bool().Draw(t, "takes on") {
			c.TakesOn = drawIDs(t)
		}
		for range rapid.IntRange(0, 3).Draw(t, "fails") {
			f := Failing{On: drawIDs(t), Times: drawCount.Draw(t, "times")}
			if !slices.ContainsFunc(c.Fails, func(other Failing) bool { return f.On.overlap(other.On) }) {
				c.Fails = append(c.Fails, f)
			}
		}
		return c
	},
	"relay": func(t *rapid.T) Step {
		return Relay{drawName.Draw(t, "name"), drawName.Draw(t, "from"), drawMode.Draw(t, "mode"), drawMaybeName.Draw(t, "policy"), rapid.Bool().Draw(t, "c"), rapid.Bool().Draw(t, "o")}
	},
	"publish": func(t *rapid.T) Step {
		p := Publish{BusinessID: drawName.Draw(t, "id"), By: drawName.Draw(t, "by"), Size: drawCount.Draw(t, "size"),
			TTL: drawMaybeDuration.Draw(t, "ttl"), Headers: drawCount.Draw(t, "headers"), Key: drawMaybeName.Draw(t, "key"), MessageID: drawMaybeName.Draw(t, "mid"),
			Window: drawCount.Draw(t, "w"), Background: rapid.Bool().Draw(t, "bg"), Cancel: rapid.Bool().Draw(t, "c"),
			Until: rapid.SampledFrom([]string{"", "accepted"}).Draw(t, "until")}
		if rapid.Bool().Draw(t, "range") {
			p.From = rapid.IntRange(1, 10).Draw(t, "from")
			p.To = p.From + drawCount.Draw(t, "more")
			if rapid.Bool().Draw(t, "sizes") {
				p.SizeTo = p.Size + rapid.IntRange(1, 1000).Draw(t, "size to")
			}
			if p.Key == "" {
				p.Keys = drawCount.Draw(t, "keys")
			}
		}
		return p
	},
	"retry": func(t *rapid.T) Step {
		return Retry{drawName.Draw(t, "id"), drawName.Draw(t, "by"), rapid.Bool().Draw(t, "same")}
	},
	"resolve": func(t *rapid.T) Step { return Resolve{drawName.Draw(t, "id"), drawName.Draw(t, "by")} },
	"fault": func(t *rapid.T) Step {
		f := Fault{Label: drawName.Draw(t, "label"), Verb: drawName.Draw(t, "verb"), Target: drawMaybeName.Draw(t, "target"),
			Repeat: rapid.SampledFrom([]Repeat{Once, Every, UntilHealed}).Draw(t, "repeat"),
			When:   rapid.SampledFrom([]When{At, Before, After}).Draw(t, "when"),
			Event:  rapid.SampledFrom([]string{"", "frame ack", "operation insert"}).Draw(t, "event"),
			Of:     drawMaybeName.Draw(t, "of"), On: drawMaybeName.Draw(t, "on"), By: drawMaybeDuration.Draw(t, "by"), Rate: drawCount.Draw(t, "rate")}
		if f.Event != "" {
			f.N = drawCount.Draw(t, "n")
		}
		return f
	},
	"heal":  func(t *rapid.T) Step { return Heal{drawName.Draw(t, "label")} },
	"await": func(t *rapid.T) Step { return Await{drawCondition(t), drawMaybeDuration.Draw(t, "within")} },
	"wait": func(t *rapid.T) Step {
		w := Wait{Quiet: drawDuration.Draw(t, "quiet")}
		if rapid.Bool().Draw(t, "bounded") {
			w.Within = w.Quiet + drawDuration.Draw(t, "within")
		}
		return w
	},
	"provoke":  func(t *rapid.T) Step { return Provoke{drawName.Draw(t, "id")} },
	"settle":   func(t *rapid.T) Step { return Settle{drawMaybeName.Draw(t, "by"), drawMaybeDuration.Draw(t, "within")} },
	"start":    func(t *rapid.T) Step { return Start{drawName.Draw(t, "actor")} },
	"stop":     func(t *rapid.T) Step { return Stop{drawName.Draw(t, "actor")} },
	"restart":  func(t *rapid.T) Step { return Restart{drawName.Draw(t, "actor")} },
	"snapshot": func(t *rapid.T) Step { return Snapshot{drawName.Draw(t, "name")} },
	"set":      func(t *rapid.T) Step { return Set{drawName.Draw(t, "setting"), drawName.Draw(t, "value")} },
	"swap":     func(*rapid.T) Step { return Swap{} },
	"migrate":  func(t *rapid.T) Step { return Migrate{drawName.Draw(t, "from"), drawName.Draw(t, "to")} },
	"plant": func(t *rapid.T) Step {
		return Plant{rapid.SampledFrom(Plants).Draw(t, "what"), drawName.Draw(t, "id"), drawName.Draw(t, "on")}
	},
	"redrive": func(t *rapid.T) Step { return Redrive{drawName.Draw(t, "id")} },
	"discard": func(t *rapid.T) Step { return Discard{drawName.Draw(t, "id")} },
	"restore": func(t *rapid.T) Step {
		return Restore{drawName.Draw(t, "checkpoint"), rapid.Bool().Draw(t, "broker")}
	},
	"probe": func(t *rapid.T) Step { return Probe{"broker", drawMaybeName.Draw(t, "kind")} },
	"rewind": func(t *rapid.T) Step {
		return Rewind{drawName.Draw(t, "consumer"), drawName.Draw(t, "checkpoint"), rapid.SampledFrom([]string{ByTime, ByPosition}).Draw(t, "by")}
	},
	"elapse": func(t *rapid.T) Step { return Elapse{drawName.Draw(t, "id"), drawMaybeDuration.Draw(t, "margin")} },
}

func drawScenario(t *rapid.T) Scenario {
	s := Scenario{Name: drawName.Draw(t, "scenario"), Why: rapid.StringMatching(`([A-Z][a-z ,]{0,20}[a-z])?`).Draw(t, "why")}
	s.Needs = rapid.SliceOfN(drawName, 0, 3).Draw(t, "needs")
	s.Expect = rapid.SliceOfN(drawName, 0, 3).Draw(t, "expect")
	labels := map[string]bool{}
	for range rapid.IntRange(0, 6).Draw(t, "steps") {
		step := steps[rapid.SampledFrom(keys(steps)).Draw(t, "kind")](t)
		if f, ok := step.(Fault); ok {
			if labels[f.Label] {
				continue
			}
			labels[f.Label] = true
		}
		if rapid.Bool().Draw(t, "comment") {
			step = Comment{Lines: rapid.SliceOfN(rapid.StringMatching(`[a-z][a-z ]{0,8}[a-z]`), 1, 2).Draw(t, "lines"), Step: step}
		}
		s.Steps = append(s.Steps, step)
	}
	for range rapid.IntRange(0, 3).Draw(t, "reached") {
		s.Reached = append(s.Reached, drawCondition(t))
	}
	if len(s.Needs) == 0 {
		s.Needs = nil
	}
	if len(s.Expect) == 0 {
		s.Expect = nil
	}
	return s
}

// The property above draws every verb of the notation.
func TestEveryVerbIsDrawn(t *testing.T) {
	for verb := range verbs {
		if steps[verb] == nil {
			t.Errorf("no step is drawn for %q", verb)
		}
	}
}

// Publish.Message matches what the runner does for each message.
func TestOneMessageOfARange(t *testing.T) {
	s, err := Parse("", "scenario x\npublish o-3..o-7 by p1, size 0..100, keys 2, window 4")
	if err != nil {
		t.Fatal(err)
	}
	p := s.Steps[0].(Publish)
	var got []string
	for i := range p.Count() {
		got = append(got, Line(p.Message(i)))
	}
	want := []string{
		"publish o-3 by p1, key key-1, window 4",
		"publish o-4 by p1, size 25, key key-2, window 4",
		"publish o-5 by p1, size 50, key key-1, window 4",
		"publish o-6 by p1, size 75, key key-2, window 4",
		"publish o-7 by p1, size 100, key key-1, window 4",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestWhatAHandlerDoes(t *testing.T) {
	s, err := Parse("", "scenario x\nconsumer c1 on orders, takes 3s on o-9..o-11, fails o-1, fails o-3..o-5 2 times")
	if err != nil {
		t.Fatal(err)
	}
	c := s.Steps[0].(Consumer)
	for _, want := range []struct {
		id    string
		times int
		fails bool
		work  time.Duration
	}{
		{"o-1", 0, true, 0}, {"o-2", 0, false, 0}, {"o-3", 2, true, 0}, {"o-5", 2, true, 0}, {"o-05", 0, false, 0}, {"o-6", 0, false, 0},
		{"o-10", 0, false, 3 * time.Second}, {"o-", 0, false, 0}, {"p-3", 0, false, 0},
	} {
		times, fails := c.FailTimes(want.id)
		if times != want.times || fails != want.fails || c.Work(want.id) != want.work {
			t.Errorf("%s: fails %v %d times, takes %s; want %+v", want.id, fails, times, c.Work(want.id), want)
		}
	}
}

// A part of a scenario is located in its file, or in the printed script if it
// has none.
func TestErrorAtNamesFileLineAndWord(t *testing.T) {
	text := "\n# first\nscenario x\n\nproducer p1 to orders\n\npublish a by p2\nneeds rows,  rws\nexpect order\nreached fired f\nexpect survives, ordr\n"
	s, err := Parse("f.scenario", text)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.LineOf(1); got != 4 { // empty lines are not printed
		t.Errorf("the second step is printed on line %d, want 4:\n%s", got, Print(s))
	}
	goValue := s
	goValue.source = nil
	for _, c := range []struct {
		s    Scenario
		part Part
		i    int
		word string
		want string
	}{
		{s, PartStep, 1, "p2", "f.scenario: line 7, word 4: w"},
		{s, PartStep, 1, "nowhere", "f.scenario: line 7: w"},
		{s, PartNeeds, 1, "rws", "f.scenario: line 8, word 4: w"},
		{s, PartReached, 0, "f", "f.scenario: line 10, word 3: w"},
		{s, PartExpect, 2, "ordr", "f.scenario: line 11, word 4: w"},
		{goValue, PartStep, 1, "p2", "scenario x: line 4, word 4: w"},
		{goValue, PartExpect, 2, "ordr", "scenario x: line 6, word 6: w"},
	} {
		if got := c.s.ErrorAt(c.part, c.i, c.word, "w").Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
