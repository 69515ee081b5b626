package custodytest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/scenarios"
)

// recorder is a testing.TB that records calls.
type recorder struct {
	testing.TB
	did  []string
	text strings.Builder
}

func (r *recorder) note(what, format string, args ...any) {
	r.did = append(r.did, what)
	fmt.Fprintf(&r.text, format+"\n", args...)
}

func (r *recorder) Helper()                       {}
func (r *recorder) Name() string                  { return "TestBroker/tiny:memory/ack-lost" }
func (r *recorder) Log(args ...any)               { r.note("log", "%s", fmt.Sprint(args...)) }
func (r *recorder) Logf(format string, a ...any)  { r.note("log", format, a...) }
func (r *recorder) Errorf(f string, a ...any)     { r.note("error", f, a...) }
func (r *recorder) Fatalf(f string, a ...any)     { r.note("fatal", f, a...) }
func (r *recorder) Skipf(format string, a ...any) { r.note("skip", format, a...) }

func TestReport(t *testing.T) {
	finding := guarantees.Finding{Guarantee: "no-accepted-loss", Kind: "lost-suffix", Text: "order-3 was lost", BusinessID: "order-3",
		PublishID: "p1-3-1", MessageID: "m-3", Subscription: "orders", HandOver: guarantees.BrokerToConsumer, Events: []uint64{17, 21}}
	broken := guarantees.Judgement{Outcome: guarantees.Violated, Why: "broken: no-accepted-loss", Broken: []guarantees.Finding{finding}}
	trail := []string{"custody judge evidence/ack-lost", "go test -count=1 -run '^TestBroker$/^tiny:memory$/^ack-lost$' (seed 7)"}
	for _, c := range []struct {
		name      string
		judgement guarantees.Judgement
		err       error
		did       string
		says      []string
	}{
		{"held", guarantees.Judgement{Outcome: guarantees.Held, Why: "held: order"}, nil, "log", []string{"held: order"}},
		{"held, and something else was seen", guarantees.Judgement{Outcome: guarantees.Held, Why: "held: order", Verdicts: []guarantees.Verdict{
			{Guarantee: "single-effect", Outcome: guarantees.Violated, Why: "order-1 has 2 effects"}}}, nil, "log log",
			[]string{"seen broken, not claimed: single-effect: order-1 has 2 effects"}},
		{"violated often", guarantees.Judgement{Outcome: guarantees.Violated, Broken: []guarantees.Finding{finding, finding, finding}}, nil, "error",
			[]string{"order-3 was lost", "and 2 more like it"}},
		{"violated", broken, nil, "error", append([]string{"violated: broken: no-accepted-loss", "no-accepted-loss (lost-suffix): order-3 was lost", "broker → consumer",
			"business ID  order-3", "publish ID   p1-3-1", "message ID   m-3", "subscription orders", "events       17 21"}, trail...)},
		{"violated, then not measured", broken, errors.New("disk gone"), "error fatal", []string{"order-3 was lost", "disk gone"}},
		{"inconclusive", guarantees.Judgement{Why: "fault lost did not fire"}, nil, "error", append([]string{"inconclusive: fault lost did not fire"}, trail...)},
		{"not measured", guarantees.Judgement{}, errors.New("no port"), "fatal", append([]string{"could not measure: no port"}, trail...)},
		{"not measured, by the evidence", guarantees.Judgement{Error: "the run has no end"}, nil, "fatal", []string{"could not measure: the run has no end"}},
		{"not applicable", guarantees.Judgement{Outcome: guarantees.NotApplicable, Why: "tiny has no links"}, nil, "skip", []string{"tiny has no links"}},
		{"not claimed", guarantees.Judgement{Outcome: guarantees.NotClaimed, Why: "nothing is claimed"}, nil, "log", []string{"not claimed: nothing is claimed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &recorder{}
			report(r, scenarios.Outcome{Name: "ack-lost", Dir: "evidence/ack-lost", Judgement: c.judgement, Err: c.err}, 7)
			if did := strings.Join(r.did, " "); did != c.did {
				t.Errorf("did %q, want %q", did, c.did)
			}
			for _, want := range c.says {
				if !strings.Contains(r.text.String(), want) {
					t.Errorf("does not say %q:\n%s", want, r.text.String())
				}
			}
		})
	}
}
