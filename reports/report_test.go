package reports

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

func outcomes(os ...guarantees.Outcome) Report {
	var r Report
	for _, o := range os {
		r.Runs = append(r.Runs, Run{Judgement: guarantees.Judgement{Outcome: o}})
	}
	return r
}

func TestExitIsTheWorstOfWhatWasJudged(t *testing.T) {
	failed := Run{Judgement: guarantees.Judgement{Error: "no space left"}}
	with := func(r Report, more ...Run) Report { r.Runs = append(r.Runs, more...); return r }
	for name, c := range map[string]struct {
		report Report
		exit   int
	}{
		"no runs":                               {Report{}, guarantees.ExitInconclusive},
		"held":                                  {outcomes(guarantees.Held, guarantees.Held), guarantees.ExitHeld},
		"held and not applicable":               {outcomes(guarantees.NotApplicable, guarantees.Held, guarantees.NotClaimed), guarantees.ExitHeld},
		"nothing claimed":                       {outcomes(guarantees.NotClaimed, guarantees.NotApplicable), guarantees.ExitInconclusive},
		"inconclusive before held":              {outcomes(guarantees.Held, guarantees.Inconclusive), guarantees.ExitInconclusive},
		"unmeasured before inconclusive":        {with(outcomes(guarantees.Inconclusive), failed), guarantees.ExitUnmeasured},
		"violated before unmeasured":            {with(outcomes(guarantees.Violated), failed), guarantees.ExitViolated},
		"a violation stands in a failed run":    {Report{Runs: []Run{{Judgement: guarantees.Judgement{Outcome: guarantees.Violated, Error: "x"}}}}, guarantees.ExitViolated},
		"an outcome from the future is no pass": {outcomes(guarantees.Outcome(99)), guarantees.ExitInconclusive},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.report.Exit(); got != c.exit {
				t.Errorf("exit %d, want %d", got, c.exit)
			}
		})
	}
}

// A CI system that reads the JUnit file must never be greener than the exit code.
func TestJUnitAgreesWithExit(t *testing.T) {
	reports := hostileReports("text")
	reports["sample"] = sample()
	for o := range ofOutcome {
		reports["bare "+o.String()] = outcomes(o)
	}
	for name, r := range reports {
		t.Run(name, func(t *testing.T) {
			var got junitSuites
			if err := xml.Unmarshal(render(t, format(t, "junit"), r), &got); err != nil {
				t.Fatal(err)
			}
			n := r.Counts()
			if (n[StatusViolated] > 0) != (got.Failures > 0) {
				t.Errorf("%d runs violated, %d failures", n[StatusViolated], got.Failures)
			}
			if n[StatusInconclusive]+n[StatusUnmeasured] > 0 && got.Errors == 0 {
				t.Error("something was not proven, and there is no error")
			}
			if r.Exit() == guarantees.ExitHeld && got.Failures+got.Errors > 0 {
				t.Error("everything held, and there is a failure")
			}
		})
	}
}

func TestCompare(t *testing.T) {
	a := sample()
	if d := Compare(a, sample()); len(d) != 0 {
		t.Errorf("a report differs from itself: %v", d)
	}
	b := sample()
	b.Runs[1].Judgement.Verdicts[0].Instances = 99 // a count, not a verdict
	b.Runs[2].Judgement.Verdicts[0].Outcome = guarantees.Held
	b.Runs[2].Judgement.Outcome = guarantees.Inconclusive
	b.Runs = append(b.Runs[:6:6], b.Runs[7], sampleBaseline())
	want := []string{
		"broker-killed on zeromq:sqlite: the run was violated and is inconclusive",
		"broker-killed on zeromq:sqlite: no-accepted-loss was violated and is held",
		"expiry-clock on zeromq:sqlite: the run was not claimed and is absent",
		"expiry-clock on zeromq:sqlite: expiry-honoured was violated and is absent",
		"baseline on zeromq:sqlite (run 2): the run was absent and is held",
	}
	var got []string
	for _, d := range Compare(a, b) {
		got = append(got, d.String())
	}
	if len(got) < len(want) || !reflect.DeepEqual(got[:len(want)], want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(Compare(b, a)) != len(got) {
		t.Error("the other way round there are not as many differences")
	}
}

func TestTimelineShowsTheStruckMessageFirst(t *testing.T) {
	if got := tellingFirst(sampleAckLost(), 2); len(got) != 2 || got[0].BusinessID != "order-1" {
		t.Errorf("got %v, want order-1 and one more", got)
	}
	p := draw(tellingFirst(sampleAckLost(), 1)[0], sampleAckLost().Fired)
	if len(p.Strikes) != 1 || p.Strikes[0].Title != "fault lost struck at 251 ms" {
		t.Errorf("strikes %+v, want the one at 251 ms", p.Strikes)
	}
	if p = draw(guarantees.Message{Custody: []guarantees.Interval{{Party: "client", From: 5, To: 5}}}, nil); len(p.Bars) != 1 || strings.Contains(p.Bars[0].X1, "NaN") {
		t.Errorf("an interval of no length: %+v", p.Bars)
	}
}

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"order-1 → é 漢": "order-1 → é 漢", "\x1b[2J": `\x1b[2J`, "a\nb": `a\x0ab`, "\u202ex": `\u202ex`, "\xff": "\ufffd",
		strings.Repeat("y", maxText+3): strings.Repeat("y", maxText) + "… (3 more bytes)",
	} {
		if got := Visible(in); got != want {
			t.Errorf("Visible(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestHuman(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 850 * time.Microsecond: "850 µs", 12300 * time.Microsecond: "12.3 ms", 2410 * time.Millisecond: "2.41 s",
		125 * time.Second: "2 min 05 s", 90 * time.Minute: "1 h 30 min", -time.Second: "-1 s",
	} {
		if got := human(d); got != want {
			t.Errorf("human(%d) = %q, want %q", d, got, want)
		}
	}
}

func TestReplayIsOneShellWord(t *testing.T) {
	for dir, want := range map[string]string{"runs/a-1": "custody replay runs/a-1", "a b": "custody replay 'a b'", "it's $(x)": `custody replay 'it'\''s $(x)'`, "": "custody replay ''"} {
		if got := (Run{Dir: dir}).Replay(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	made := Run{Dir: "a", Manifest: evidence.Manifest{Spec: "adapter/default:python3 it's.py"}}
	if got, want := made.Replay(), `custody replay a --adapter 'python3 it'\''s.py'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// saved records the evidence of a run in which nothing was lost.
func saved(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	const text = "scenario s\nproducer p1 to orders\nconsumer c1 on orders\nfault lost: drop once frame ack of order-1 on c1\npublish order-1 by p1\nexpect no-phantom\n"
	m := evidence.Manifest{Run: "run", System: "sys", Scenario: "s", Scale: 1, Expect: []string{evidence.NoPhantom}, Profile: evidence.Profile{Name: "p"},
		Claims: []evidence.Claim{{Guarantee: evidence.NoPhantom, Under: evidence.Classes()}}, Faults: []evidence.FaultLabel{{Label: "lost", Verb: "drop", Class: evidence.Link}}}
	rec, err := evidence.Create(dir, m, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	e := evidence.Event{Kind: evidence.PublishCalled, Actor: "p1", Destination: "orders", BusinessID: "order-1", PublishID: "p1-1-1", Digest: "d"}
	rec.Record(e)
	e.Kind, e.Acceptance = evidence.PublishReturned, evidence.Accepted
	rec.Record(e)
	e.Kind, e.Actor, e.Session, e.Subscription, e.Acceptance = evidence.Delivered, "c1", "c1#1", "orders", evidence.Unknown
	rec.Record(e)
	rec.Record(evidence.Event{Kind: evidence.FaultFired, Fault: "lost"})
	if err := rec.Close(evidence.End{How: evidence.EndCompleted, After: time.Second}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLoad(t *testing.T) {
	dir := saved(t)
	load := func(dirs ...string) Report {
		t.Helper()
		r, err := Load(dirs)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := load(dir)
	got := first.Runs[0]
	if got.Status() != StatusHeld || !strings.HasPrefix(got.Script, "scenario s\n") || len(got.Fired) != 1 || got.Fired[0].Fault != "lost" {
		t.Fatalf("%s: %s; script %q, fired %+v", got.Status(), got.why(), got.Script, got.Fired)
	}

	// A saved verdict is ignored: only the evidence decides.
	forged := got.Judgement
	forged.Outcome, forged.Exit = guarantees.Violated, guarantees.ExitViolated
	verdict, err := json.Marshal(forged)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{verdict, []byte("{")} {
		if err := os.WriteFile(filepath.Join(dir, "verdict.json"), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if r := load(dir); !reflect.DeepEqual(r, first) {
			t.Errorf("with a forged verdict: %+v", r.Runs[0].Judgement)
		}
	}

	// A run in two folders is one trial; a damaged copy is not a copy of the
	// run.
	again, damaged := filepath.Join(t.TempDir(), "again"), filepath.Join(t.TempDir(), "damaged")
	for _, to := range []string{again, damaged} {
		if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(damaged, "rows.jsonl.zst"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := load(dir, damaged, again, dir)
	if len(r.Runs) != 2 || len(r.Copies) != 2 || r.Copies[0] != (Copy{Dir: again, Of: dir}) {
		t.Errorf("%d runs, copies %v", len(r.Runs), r.Copies)
	}
	if told := r.Damaged(); len(told) != 1 || !strings.Contains(told[0], damaged) || !strings.Contains(told[0], "rows.jsonl.zst: it has 0 bytes") {
		t.Errorf("damaged: %q", told)
	}
	if r.Runs[1].Status() != StatusUnmeasured || len(r.Runs[1].Judgement.Broken) > 0 {
		t.Errorf("damaged: %+v", r.Runs[1].Judgement)
	}

	if _, err = Load([]string{filepath.Join(dir, "none")}); err == nil {
		t.Error("a folder that is not there loads")
	}
}
