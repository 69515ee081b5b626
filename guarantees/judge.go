package guarantees

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// JudgeVersion changes whenever the same evidence may be judged differently.
const JudgeVersion = "3"

// MaxMessages bounds the publishes shown in a judgement's table.
const MaxMessages = ledger.MaxTimelines

// maxAnomalies bounds each of the two lists of findings of a run.
const maxAnomalies = 200

// Judge reads a history once and reports what it proves. It depends on nothing
// else: the same evidence gives the same judgement anywhere.
//
// An error means that the history cannot be judged (a newer format, no events,
// a guarantee that this version does not know). If the run was cancelled or
// failed, Judgement.Error says why: then nothing is Held, but violations
// proven by its events stand. Incomplete evidence (damaged, with a gap,
// without an end) gives no verdict at all: a flipped bit must not accuse a
// system.
func Judge(h *evidence.History) (Judgement, error) {
	m := &h.Manifest
	if m.Format > evidence.FormatVersion {
		return Judgement{}, fmt.Errorf("guarantees: run %s has evidence of format %d, this version reads up to %d: judge it with a newer custody", m.Run, m.Format, evidence.FormatVersion)
	}
	j := Judgement{Judge: JudgeVersion, Run: m.Run, System: m.System, Profile: m.Profile.Name, Scenario: m.Scenario}
	if m.End != nil {
		j.Seal = m.End.Seal
	}
	if m.Inapplicable != "" && h.Damage == "" {
		j.Outcome, j.Why, j.Verdicts = NotApplicable, m.Inapplicable, []Verdict{}
		j.Exit = ExitCode(j)
		return j, nil
	}
	if h.Events == nil {
		return Judgement{}, fmt.Errorf("guarantees: run %s has no events", m.Run)
	}
	all := Guarantees()
	for _, name := range m.Expect {
		if !slices.ContainsFunc(all, func(g Guarantee) bool { return g.Name == name }) && h.Damage == "" {
			return Judgement{}, fmt.Errorf("guarantees: run %s expects %q, which this version does not know", m.Run, name)
		}
	}
	newJudge(h, all).judge(&j)
	return j, nil
}

// judge is the state of judging one run.
type judge struct {
	history    *evidence.History
	ledger     *ledger.Ledger
	view       view
	guarantees []Guarantee
	checkers   []checker
	rulings    []ruling
	observers  [evidence.RecordCommitted + 1][]watching
	conditions *evidence.Conditions
	faults     []FaultResult
	byLabel    map[string]int
	unlisted   bool // a fault fired that the manifest does not list
	cutShort   string
	failure    string
	damage     string // why the evidence is incomplete; also reported as the failure
	lastSeq    uint64
	read       uint64
	seen       int // snapshots already shown to the conditions
}

type watching struct {
	observer
	*ruling
}

func newJudge(h *evidence.History, all []Guarantee) *judge {
	l := ledger.New(h)
	j := &judge{
		history: h, ledger: l, view: view{&l.View}, guarantees: all,
		checkers: make([]checker, len(all)), rulings: make([]ruling, len(all)),
		conditions: evidence.NewConditions(h.Manifest.Reached),
		byLabel:    make(map[string]int),
	}
	for i, g := range all {
		j.checkers[i] = g.new()
		j.rulings[i].guarantee = g.Name
		if o, ok := j.checkers[i].(observer); ok {
			for _, k := range o.on() {
				j.observers[k] = append(j.observers[k], watching{o, &j.rulings[i]})
			}
		}
	}
	for i, f := range h.Manifest.Faults {
		j.faults = append(j.faults, FaultResult{Label: f.Label, Class: f.Class, Line: f.Line})
		j.byLabel[f.Label] = i
	}
	return j
}

func (j *judge) judge(out *Judgement) {
	j.failure, j.damage = j.ending(), j.torn()
	if err := j.readEvents(); err != nil && j.damage == "" {
		j.damage = err.Error()
	}
	if end := j.history.Manifest.End; j.damage == "" && end.Events != 0 && end.Events != j.read {
		j.damage = fmt.Sprintf("the run recorded %d events, and %d are there: the evidence is not whole", end.Events, j.read)
	}
	if j.damage != "" {
		j.failure = j.damage
	}
	if who := j.view.Escaped; who != "" && j.failure == "" {
		j.failure = fmt.Sprintf("%s was accepted, and no frame of it passed the link of its producer: it escaped observation", who)
	}
	for i := range j.rulings {
		j.rulings[i].unfinished = j.failure != ""
	}
	j.close()
	j.conclude(out)
}

// ending says why a run did not complete; empty if it did.
func (j *judge) ending() string {
	end := j.history.Manifest.End
	if end != nil && end.How != evidence.EndCompleted {
		return "the run " + quoteEnd(end)
	}
	return ""
}

// torn says why the evidence is incomplete, as far as can be told before
// reading its events.
func (j *judge) torn() string {
	switch h := j.history; {
	case h.Damage != "":
		return h.Damage
	case h.Manifest.End == nil:
		return "the run has no end: the harness died, or it is still going on"
	case h.Truncated:
		return "the record of events ends in the middle of one"
	}
	return ""
}

var errOrder = errors.New("events are not in order of their numbers: the evidence was altered or mixed up")

func (j *judge) readEvents() error {
	var observed []watching
	tell := func(e *evidence.Event, m *message, r *receipt) {
		for _, o := range observed {
			o.observe(j.view, e, m, r, o.ruling)
		}
	}
	watchConditions := j.conditions.Len() > 0
	for e, err := range j.history.Events {
		if err != nil {
			return fmt.Errorf("event after number %d: %w", j.lastSeq, err)
		}
		if e.Seq <= j.lastSeq {
			return fmt.Errorf("event %d after %d: %w", e.Seq, j.lastSeq, errOrder)
		}
		j.lastSeq = e.Seq
		j.read++
		if watchConditions {
			j.conditions.Observe(e)
			j.showSnapshots(e.Seq)
		}
		observed = nil
		if int(e.Kind) < len(j.observers) {
			observed = j.observers[e.Kind]
		}
		switch e.Kind {
		case evidence.FaultFired:
			j.fired(e)
		case evidence.FaultMissed:
			if i, ok := j.byLabel[e.Fault]; ok {
				j.faults[i].Missed = ledger.Words(e)
			}
		case evidence.AwaitEnded:
			if !e.OK && j.cutShort == "" {
				j.cutShort = cutShort(e)
			}
		case evidence.ProcessExited:
			if e.Actor != ledger.Broker || e.Exit == nil || j.failure != "" {
				break
			}
			switch { // neither says anything about how the system handles messages
			case !e.Exit.Ordered && e.Exit.Signal == "killed":
				j.failure = fmt.Sprintf("the broker was killed by something outside the run (event %d)", e.Seq)
			case e.Exit.Waited > 0 && j.view.Drain.Seq == 0:
				j.failure = fmt.Sprintf("the broker was told to stop, did not within %v, and was killed (event %d)", e.Exit.Waited.Round(time.Millisecond), e.Seq)
			}
		}
		j.ledger.Apply(e, tell)
	}
	j.showSnapshots(^uint64(0))
	return nil
}

// showSnapshots passes the snapshots up to an event to the conditions, in order.
func (j *judge) showSnapshots(seq uint64) {
	for ; j.seen < len(j.view.Snapshots) && j.view.Snapshots[j.seen].Seq <= seq; j.seen++ {
		j.conditions.ObserveSnapshot(j.view.Snapshots[j.seen])
	}
}

// cutShort says where an await's deadline ended the script, so that its later
// steps did not run.
func cutShort(e *evidence.Event) string {
	where, left := "", ""
	if e.Line > 0 {
		where = fmt.Sprintf(" at line %d", e.Line)
	}
	switch {
	case e.Left == 1:
		left = "; 1 step was not run"
	case e.Left > 1:
		left = fmt.Sprintf("; %d steps were not run", e.Left)
	}
	return fmt.Sprintf("the script was cut short%s%s%s", where, quote(e), left)
}

// maxFaultEvents bounds the listed events of one fault; all are counted.
const maxFaultEvents = 20

func (j *judge) fired(e *evidence.Event) {
	i, ok := j.byLabel[e.Fault]
	if !ok {
		j.unlisted = true
		return
	}
	f := &j.faults[i]
	if f.Fired++; len(f.Events) < maxFaultEvents {
		f.Events = append(f.Events, e.Seq)
	}
}

func (j *judge) close() {
	j.ledger.ReadRows()
	type closing struct {
		closer
		*ruling
	}
	var closers []closing
	for i, c := range j.checkers {
		if c, ok := c.(closer); ok {
			closers = append(closers, closing{c, &j.rulings[i]})
		}
	}
	j.view.Each(func(m *message) {
		for _, c := range closers {
			c.close(j.view, m, c.ruling)
		}
	})
	for i, c := range j.checkers {
		if c, ok := c.(concluder); ok {
			c.conclude(j.view, &j.rulings[i])
		}
	}
}

func (j *judge) conclude(out *Judgement) {
	m := &j.history.Manifest
	out.Faults = j.faults
	out.Reached = true
	missing := ""
	for i, c := range m.Reached {
		r := ConditionResult{Line: c.Line, OK: j.conditions.Met(i), Missing: j.conditions.Missing(i)}
		if !r.OK {
			out.Reached = false
			missing = fmt.Sprintf("the situation was not reached: %s: %s", c.Line, r.Missing)
		}
		out.Conditions = append(out.Conditions, r)
	}
	var classes []evidence.Class
	for _, f := range j.faults {
		if f.Fired == 0 && f.Missed != "" {
			missing = fmt.Sprintf("fault %s struck nothing: %s", f.Label, f.Missed)
		} else if f.Fired == 0 {
			missing = fmt.Sprintf("fault %s did not fire", f.Label)
		} else if f.Class != "" && !slices.Contains(classes, f.Class) {
			classes = append(classes, f.Class)
		}
	}
	if j.cutShort != "" { // the cause of whatever else is missing
		out.Reached, out.CutShort, missing = false, j.cutShort, j.cutShort
	}
	if j.view.Restarted && !slices.Contains(classes, evidence.BrokerRestart) {
		classes = append(classes, evidence.BrokerRestart) // by a script step rather than a fault
	}
	if j.unlisted {
		classes = append(classes, "unlisted")
	}
	out.Verdicts = []Verdict{}
	for i := range j.rulings {
		v := j.rulings[i].verdict()
		v.Claimed, v.Covered, v.Owner = coverage(m.Claims, v.Guarantee, classes)
		expected := slices.Contains(m.Expect, v.Guarantee)
		if j.damage != "" {
			v.Outcome = Inconclusive // its findings remain anomalies
		}
		if !expected && v.Outcome != Violated {
			continue
		}
		if v.Outcome == Held || v.Outcome == Inconclusive {
			switch {
			case j.failure != "":
				v.Outcome, v.Why = Inconclusive, "could not be measured: "+j.failure
			case missing != "":
				v.Outcome, v.Why = Inconclusive, missing
			}
		}
		if v.Outcome == Violated && v.Counts() {
			v.Known = known(m, v.Guarantee)
		}
		out.Verdicts = append(out.Verdicts, v)
		for _, f := range v.Findings {
			if len(out.Anomalies) < maxAnomalies {
				out.Anomalies = append(out.Anomalies, f)
			}
			if v.Counts() && j.damage == "" && !f.Unconfirmed && len(out.Broken) < maxAnomalies {
				out.Broken = append(out.Broken, f)
			}
		}
	}
	out.Error, out.Damaged = j.failure, j.damage != ""
	if out.Outcome = Combine(out.Verdicts); out.Damaged {
		out.Outcome = Inconclusive
	}
	out.Why = j.why(out, missing)
	out.Exit = ExitCode(*out)
	out.Messages, out.MessagesLeftOut = j.view.table(out.Anomalies)
}

// known says why a violation does not count on the day of the run; empty if it
// counts.
func known(m *evidence.Manifest, guarantee string) string {
	day := m.StartedAt.UTC().Format(evidence.Day)
	for _, k := range m.Known {
		if k.Guarantee == guarantee && day <= k.Until {
			return quoteKnown(&k)
		}
	}
	return ""
}

// why states the reason for the run's outcome in one sentence.
func (j *judge) why(out *Judgement, missing string) string {
	var names, reasons []string
	for _, v := range out.Verdicts {
		if v.Counts() && v.Outcome == out.Outcome {
			names, reasons = append(names, v.Guarantee), append(reasons, v.Why)
		}
	}
	list := strings.Join(names, ", ")
	switch {
	case out.Outcome == Violated:
		return fmt.Sprintf("broken: %s. %s", list, out.Broken[0].Text)
	case out.Error != "":
		return "could not measure: " + out.Error
	case out.Outcome == NotClaimed:
		return "nothing that this run exercised is claimed for the faults that fired"
	case missing != "":
		return missing
	case out.Outcome == Inconclusive:
		for i, name := range names {
			names[i] = name + " (" + reasons[i] + ")"
		}
		return "could not be decided: " + strings.Join(names, ", ")
	}
	return "held: " + list
}
