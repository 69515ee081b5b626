package reports

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

// Bounds of the page, whatever the evidence holds. The page counts what it
// omits; JSON has everything.
const (
	htmlRows      = 1000 // of the matrix
	htmlRuns      = 60   // shown in full, worst first
	htmlPictures  = 12   // per run
	htmlMessages  = 100  // in a run's table
	htmlFindings  = 50   // per list of a run
	htmlScript    = 300  // lines
	htmlEventsOf  = 16   // firings per run
	htmlSnapshots = 24
	htmlNotes     = 30
	htmlLikeIt    = 20 // further findings of a kind
)

//go:embed page.gohtml
var pageText string

//go:embed page.css
var pageStyle string

// page is parsed once. Only our own style sheet is marked as safe;
// html/template escapes all evidence by context.
var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"style":     func() template.CSS { return template.CSS(pageStyle) },
	"v":         Visible,
	"events":    events,
	"layer":     layer,
	"measure":   measure,
	"words":     func(s Status) string { return s.words() },
	"plural":    plural,
	"list":      func(s []string) string { return strings.Join(s, ", ") },
	"condition": condition,
	"cellIcon":  func(s State) string { return cellIcons[s] },
	"cellWords": State.words,
}).Parse(pageText))

// WriteHTML writes one page without scripts or external resources, fit for
// mail, archives and print.
func WriteHTML(w io.Writer, r Report) error {
	return writePage(w, page, viewOf(r))
}

// writePage writes the whole page, or nothing if its template fails.
func writePage(w io.Writer, page *template.Template, view any) error {
	var b bytes.Buffer
	if err := page.Execute(&b, view); err != nil {
		return fmt.Errorf("reports: html: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}

type pageView struct {
	Title, Command, Headline string
	Status                   Status
	Defects                  string // seeded
	Failed                   []Failure
	Notes, Proofs            []string // expected but not claimed; what the verdicts rest on
	Exit                     int
	ExitText                 string
	Total                    int
	Counts                   []countView
	Carriers                 []guarantees.Layer
	Facts                    []factView
	Guarantees               []string
	Groups                   []groupView
	RowsLeftOut              int
	Runs                     []runView
	RunsLeftOut              int
	NotesLeftOut             int
	ProofsLeftOut            int
}

type countView struct {
	Status Status
	N      int
	X, W   string // of the bar
}

type factView struct{ Name, Value string }

// groupView is one system and profile in the matrix.
type groupView struct {
	Target string
	Rows   []rowView
}

type rowView struct {
	Anchor   string // of the run's section; may be empty
	Scenario string
	Status   Status
	Took     string
	Cells    []cellView
}

type cellView struct {
	Status  Status // empty: not tested
	Claimed bool
	Why     string
	Anchor  string
}

type runView struct {
	Run
	Anchor       string
	Status       Status
	Target       string
	Why          string
	Took         string
	Open         bool
	Tally        string
	Carriers     []guarantees.Layer
	Verdicts     []verdictView
	Broken, Seen findingsView
	CutShort     string
	Faults       []faultView
	Pictures     []picture
	Messages     []messageView
	MessagesLeft int
	Checkpoints  []evidence.Snapshot
	Script       []scriptLine
	Facts        []factView
}

// MorePictures counts the pictures after the first.
func (v runView) MorePictures() int { return len(v.Pictures) - 1 }

type verdictView struct {
	guarantees.Verdict
	Anchor  string
	Status  Status
	Claimed bool
}

type faultView struct {
	guarantees.FaultResult
	Where []string
}

type messageView struct {
	guarantees.Message
	Struck, Suspect bool
}

type scriptLine struct {
	Word, Rest string
	Comment    bool
}

func viewOf(r Report) pageView {
	st := r.Status()
	v := pageView{
		Title: r.title(), Command: r.Command, Headline: r.headline(), Status: st, Exit: r.Exit(), ExitText: statuses[st].exitText,
		Total: r.total(), Facts: reportFacts(r), Defects: r.defects(), Failed: r.Failed,
	}
	for _, s := range r.standings() {
		v.Notes = append(v.Notes, s.String())
	}
	v.Notes, v.NotesLeftOut = bounded(v.Notes, htmlNotes)
	all := r.trials()
	for _, t := range rare(all) {
		v.Proofs = append(v.Proofs, t.String())
	}
	v.Proofs, v.ProofsLeftOut = bounded(v.Proofs, htmlNotes)
	v.Proofs = append(v.Proofs, proofs(all)...)
	if v.Total == 0 {
		v.ExitText = "nothing was run"
	}
	v.Counts = countViews(r)
	v.Carriers = carriersOf(r)
	v.Guarantees = columns(r)

	anchors := map[int]string{}
	for _, i := range worstFirst(r.Runs, htmlRuns) {
		anchors[i] = fmt.Sprintf("run-%d", i+1)
		v.Runs = append(v.Runs, runViewOf(r.Runs[i], anchors[i]))
	}
	v.RunsLeftOut = len(r.Runs) - len(v.Runs)

	at := map[string]int{}
	rows := worstFirst(r.Runs, htmlRows)
	for _, i := range rows {
		t := r.Runs[i].subject()
		n, ok := at[t]
		if !ok {
			n = len(v.Groups)
			at[t] = n
			v.Groups = append(v.Groups, groupView{Target: t})
		}
		v.Groups[n].Rows = append(v.Groups[n].Rows, rowViewOf(r.Runs[i], anchors[i], v.Guarantees))
	}
	v.RowsLeftOut = len(r.Runs) - len(rows)
	return v
}

func countViews(r Report) []countView {
	var views []countView
	n, done := r.Counts(), 0
	for _, s := range Statuses() {
		if n[s] == 0 {
			continue
		}
		all := float64(len(r.Runs))
		views = append(views, countView{s, n[s], percent(float64(done) / all), percent(float64(n[s]) / all)})
		done += n[s]
	}
	return views
}

// carriersOf sums the layers that carried held verdicts, over all runs.
func carriersOf(r Report) []guarantees.Layer {
	const most = 12
	var all []guarantees.Layer
	at := map[[2]string]int{}
	for _, run := range r.Runs {
		for _, l := range carriers(run.Judgement) {
			k := [2]string{l.Name, l.Did}
			if i, ok := at[k]; ok {
				all[i].Count += l.Count
			} else if len(all) < most {
				at[k] = len(all)
				all = append(all, l)
			}
		}
	}
	return all
}

// columns returns the matrix's columns: every guarantee of any run, in judging
// order. Runs have different subsets, so each guarantee is placed after its
// predecessor in its run.
func columns(r Report) []string {
	const most = 40
	var names []string
	for _, run := range r.Runs {
		after := len(names)
		for _, v := range run.Judgement.Verdicts {
			if i := slices.Index(names, v.Guarantee); i >= 0 {
				after = i + 1
				continue
			}
			if len(names) == most {
				return names
			}
			names = slices.Insert(names, after, v.Guarantee)
			after++
		}
	}
	return names
}

func rowViewOf(run Run, anchor string, names []string) rowView {
	row := rowView{Anchor: anchor, Scenario: run.Judgement.Scenario, Status: run.Status(), Took: took(run), Cells: make([]cellView, len(names))}
	for n, v := range run.Judgement.Verdicts {
		i := slices.Index(names, v.Guarantee)
		if i < 0 {
			continue // too many columns
		}
		row.Cells[i] = cellView{Status: statusOf(v.Outcome), Claimed: v.Counts(), Why: v.Why}
		if anchor != "" {
			row.Cells[i].Anchor = fmt.Sprintf("%s-%d", anchor, n+1)
		}
	}
	return row
}

func runViewOf(run Run, anchor string) runView {
	j, st := run.Judgement, run.Status()
	v := runView{
		Run: run, Anchor: anchor, Status: st, Target: run.subject(), Why: run.why(), Took: took(run),
		Open:  st == StatusViolated || st == StatusUnmeasured || st == StatusInconclusive,
		Tally: tally(j), Carriers: carriers(j),
		Facts: runFacts(run),
	}
	for n, w := range j.Verdicts {
		v.Verdicts = append(v.Verdicts, verdictView{w, fmt.Sprintf("%s-%d", anchor, n+1), statusOf(w.Outcome), w.Counts()})
	}
	v.Broken = findingsViewOf("Claims broken", brokenOf(j))
	v.Seen = findingsViewOf("Seen, breaks no claim", seenOf(j))
	if run.why() != j.CutShort {
		v.CutShort = upperFirst(j.CutShort)
	}
	v.Checkpoints, _ = bounded(run.Snapshots, htmlSnapshots)
	for _, f := range j.Faults {
		v.Faults = append(v.Faults, faultViewOf(f, run.Fired))
	}
	for _, m := range tellingFirst(run, htmlPictures) {
		v.Pictures = append(v.Pictures, draw(m, run.Fired))
	}
	suspect := map[string]bool{}
	for _, f := range j.Broken {
		suspect[f.PublishID] = true
	}
	messages, left := bounded(j.Messages, htmlMessages)
	for _, m := range messages {
		mv := messageView{Message: m, Suspect: m.PublishID != "" && suspect[m.PublishID]}
		for _, i := range m.Custody {
			mv.Struck = mv.Struck || i.Mark != ""
		}
		v.Messages = append(v.Messages, mv)
	}
	v.MessagesLeft = left + j.MessagesLeftOut
	if run.Script != "" {
		for _, l := range visibleLines(run.Script, htmlScript) {
			v.Script = append(v.Script, scriptLineOf(l))
		}
	}
	return v
}

// findingsView is one list of findings, grouped by kind.
type findingsView struct {
	Heading string
	Groups  []groupOfFindings
	LeftOut int
}

type groupOfFindings struct {
	guarantees.Finding // represents the others
	More               string
	Others             []guarantees.Finding
	OthersLeftOut      int
}

func findingsViewOf(heading string, fs findings) findingsView {
	v := findingsView{Heading: fs.heading(heading), LeftOut: fs.Left}
	for i, g := range fs.Groups {
		if i >= htmlFindings {
			v.LeftOut += len(g.Findings)
			continue
		}
		others, left := bounded(g.Rest(), htmlLikeIt)
		v.Groups = append(v.Groups, groupOfFindings{g.First(), g.more(), others, left})
	}
	return v
}

func bounded[T any](all []T, n int) (some []T, left int) {
	if len(all) <= n {
		return all, 0
	}
	return all[:n], len(all) - n
}

func scriptLineOf(l string) scriptLine {
	if strings.HasPrefix(strings.TrimSpace(l), "#") {
		return scriptLine{Rest: l, Comment: true}
	}
	word, rest, _ := strings.Cut(l, " ")
	if rest != "" {
		rest = " " + rest
	}
	return scriptLine{Word: word, Rest: rest}
}

// faultViewOf describes where a fault struck: time, frame, link and messages.
func faultViewOf(f guarantees.FaultResult, fired []evidence.Event) faultView {
	v := faultView{FaultResult: f}
	for _, e := range fired {
		if e.Fault != f.Label {
			continue
		}
		if len(v.Where) == htmlEventsOf {
			v.Where = append(v.Where, "…")
			break
		}
		words := []string{"at " + human(e.At)}
		if e.Struck != "" || e.Frame != "" {
			words = append(words, strings.TrimSpace(e.Struck+" "+e.Frame))
		}
		if e.Link != "" {
			words = append(words, "on "+e.Link)
		}
		for _, i := range e.Items[:min(len(e.Items), 4)] {
			words = append(words, "of "+i.BusinessID)
		}
		if left := len(e.Items) - 4; left > 0 {
			words = append(words, fmt.Sprintf("and %d more", left))
		}
		v.Where = append(v.Where, strings.Join(words, " ")+fmt.Sprintf(" (event %d)", e.Seq))
	}
	return v
}

// reportFacts are facts common to all runs, or their range.
func reportFacts(r Report) []factView {
	var facts []factView
	var first, last time.Time
	var total time.Duration
	targets, machines := newDistinct(), newDistinct()
	versions := map[string]*distinct{}
	for _, run := range r.Runs {
		m := run.Manifest
		targets.add(run.subject())
		if m.Machine.OS != "" {
			machines.add(fmt.Sprintf("%s/%s, %s", m.Machine.OS, m.Machine.Arch, plural(m.Machine.Cores, "core")))
		}
		for name, version := range m.Versions {
			if versions[name] == nil {
				versions[name] = newDistinct()
			}
			versions[name].add(version)
		}
		if t := m.StartedAt; !t.IsZero() {
			if first.IsZero() || t.Before(first) {
				first = t
			}
			if t.After(last) {
				last = t
			}
		}
		if m.End != nil {
			total += m.End.After
		}
	}
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, factView{name, value})
		}
	}
	add("System", targets.String())
	if !first.IsZero() {
		const day = "2 January 2006, 15:04 MST"
		when := first.UTC().Format(day)
		if l := last.UTC().Format(day); l != when {
			when += " to " + l
		}
		add("Started", when)
	}
	if total > 0 {
		add("Time of all runs", human(total))
	}
	add("Machine", machines.String())
	var words []string
	for _, name := range sortedKeys(versions) {
		words = append(words, named(name, versions[name].String()))
	}
	add("Versions", strings.Join(words, " · "))
	add("Rendered by", named("custody", r.Custody))
	return facts
}

func named(what, value string) string {
	if value == "" || strings.HasPrefix(value, what) { // as in "go1.26"
		return value
	}
	return what + " " + value
}

func runFacts(run Run) []factView {
	m := run.Manifest
	facts := []factView{{"Run", run.Judgement.Run}, {"Seed", fmt.Sprint(m.Seed)}}
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, factView{name, value})
		}
	}
	if m.Scale != 0 && m.Scale != 1 {
		add("Time limits", fmt.Sprintf("scaled ×%g", m.Scale))
	}
	add("Seeded defect", m.Defect)
	add("Profile", m.Profile.Summary)
	var settings []string
	for _, s := range m.Profile.Settings {
		settings = append(settings, s.Name+"="+s.Value)
	}
	add("Settings", strings.Join(settings, " · "))
	switch {
	case m.End == nil:
		add("End", "the run did not end: nothing in it can be held")
	case m.End.How != evidence.EndCompleted:
		add("End", strings.TrimSpace(string(m.End.How)+" "+m.End.Reason))
	default:
		add("Evidence", plural(int(min(m.End.Events, 1<<53)), "event"))
	}
	if run.Truncated {
		add("Evidence", "the event file ends in the middle of a record")
	}
	add("Judge", run.Judgement.Judge)
	return facts
}

// distinct collects distinct values in order and prints a few of them.
type distinct struct {
	order []string
	seen  map[string]bool
}

func newDistinct() *distinct { return &distinct{seen: map[string]bool{}} }

func (d *distinct) add(s string) {
	if !d.seen[s] {
		d.seen[s] = true
		d.order = append(d.order, s)
	}
}

func (d *distinct) String() string {
	const most = 6
	some, left := bounded(d.order, most)
	s := strings.Join(some, ", ")
	if left > 0 {
		s += fmt.Sprintf(" and %d more", left)
	}
	return s
}
