package reports

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/fatih/color"
	"github.com/mattn/go-isatty"
	"github.com/mattn/go-runewidth"
	"golang.org/x/term"

	"github.com/custodymq/custody/guarantees"
)

const (
	terminalRows     = 200 // in the table
	terminalDetails  = 40  // runs shown with their findings
	terminalFindings = 10  // kinds of findings per run
	terminalTrials   = 10
	terminalNotes    = 12
)

// Line width in cells: the terminal's within bounds, or usualWidth without a
// terminal.
const (
	narrowest  = 40
	usualWidth = 100
	widest     = 120
)

// Width is the maximum width of a line printed to w, in cells.
func Width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return usualWidth
	}
	cells, _, err := term.GetSize(int(f.Fd()))
	if err != nil || cells <= 0 {
		return usualWidth
	}
	return min(max(cells, narrowest), widest)
}

// WriteTerminal writes a summary for people. Lines fit the terminal, or 100
// cells without one, except commands to copy.
func WriteTerminal(w io.Writer, r Report) error {
	t := terminal{paint: onTerminal(w), columns: columnsFor(Width(w))}
	return t.write(w, r)
}

// columnsOf are the table's column widths in cells; columns are two cells
// apart.
type columnsOf struct {
	width                               int // of a line
	scenario, outcome, guarantees, time int
	stacked                             bool // too narrow for a table: details stand below a run's name
}

func columnsFor(width int) columnsOf {
	const tabular = 90
	c := columnsOf{width: width, scenario: 26, outcome: 16, time: 12}
	if c.stacked = width < tabular; c.stacked {
		c.time = 8
		c.scenario = width - c.outcome - c.time - 4
		c.guarantees = width - 2
		return c
	}
	c.guarantees = width - c.scenario - c.outcome - c.time - 6
	return c
}

func (t *terminal) write(w io.Writer, r Report) error {
	t.wrapped("", t.bold, Visible(r.title()))
	t.table(r)
	t.details(r)
	t.failed(r)
	t.totals(r)
	_, err := w.Write(t.out.Bytes())
	return err
}

// onTerminal reports whether colour is supported and wanted.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

type terminal struct {
	out     bytes.Buffer
	paint   bool
	columns columnsOf
}

var statusColour = map[Status]color.Attribute{
	StatusViolated:      color.FgRed,
	StatusUnmeasured:    color.FgMagenta,
	StatusInconclusive:  color.FgYellow,
	StatusHeld:          color.FgGreen,
	StatusNotClaimed:    color.Faint,
	StatusNotApplicable: color.Faint,
}

func (t *terminal) colour(s string, as ...color.Attribute) string {
	if !t.paint {
		return s
	}
	c := color.New(as...)
	c.EnableColor()
	return c.Sprint(s)
}

func (t *terminal) bold(s string) string              { return t.colour(s, color.Bold) }
func (t *terminal) faint(s string) string             { return t.colour(s, color.Faint) }
func (t *terminal) status(st Status, s string) string { return t.colour(s, statusColour[st]) }

func (t *terminal) line(format string, a ...any) {
	t.out.WriteString(strings.TrimRight(fmt.Sprintf(format, a...), " "))
	t.out.WriteByte('\n')
}

func (t *terminal) table(r Report) {
	shown, subject := worstFirst(r.Runs, terminalRows), ""
	for _, i := range shown {
		run := r.Runs[i]
		if now := run.subject(); now != subject || subject == "" {
			subject = now
			t.line("")
			t.wrapped("", t.bold, Visible(subject))
			t.wrapped("", t.faint, Visible(run.made()))
			if c := t.columns; !c.stacked {
				t.line("%s", t.faint(cell("SCENARIO", c.scenario)+"  "+cell("OUTCOME", c.outcome)+"  "+
					cell("GUARANTEES", c.guarantees)+"  "+right("TIME", c.time)))
			}
		}
		t.row(run)
	}
	if left := len(r.Runs) - len(shown); left > 0 {
		t.line("… and %s, none of them worse than these", plural(left, "more run"))
	}
}

func (t *terminal) row(run Run) {
	c, st := t.columns, run.Status()
	lines := pack(tallies(run.Judgement), ", ", c.guarantees)
	if len(run.Judgement.Verdicts) == 0 {
		lines = Wrap(Visible(run.why()), c.guarantees)
	}
	layers := restored(run.Judgement)
	for _, l := range carriers(run.Judgement) {
		if l.Count > 0 { // layers that were not exercised are in the run's own report
			layers = append(layers, Visible(layer(l)))
		}
	}
	if len(layers) > 0 {
		lines = append(lines, pack(layers, ", ", c.guarantees)...)
	}
	const most = 4 // names and errors can be long; the findings have the rest
	if len(lines) > most {
		lines = append(lines[:most-1], fit(lines[most-1]+" …", c.guarantees))
	}
	name := cell(Visible(run.Judgement.Scenario), c.scenario)
	outcome, took := t.status(st, cell(st.mark()+" "+st.words(), c.outcome)), right(took(run), c.time)
	if c.stacked {
		t.line("%s  %s  %s", name, outcome, took)
		for _, l := range lines {
			t.line("  %s", l)
		}
		return
	}
	for i, l := range lines {
		if i > 0 {
			name, outcome, took = cell("", c.scenario), cell("", c.outcome), ""
		}
		t.line("%s  %s  %s  %s", name, outcome, cell(l, c.guarantees), took)
	}
}

func (t *terminal) details(r Report) {
	var open []Run
	for _, run := range r.Runs {
		if s := run.Status(); s != StatusHeld && s != StatusNotApplicable {
			open = append(open, run)
		}
	}
	shown := worstFirst(open, terminalDetails)
	for _, i := range shown {
		t.run(open[i])
	}
	if left := len(open) - len(shown); left > 0 {
		t.line("")
		t.line("… and %s of which the details are in the other formats", plural(left, "more run"))
	}
}

func (t *terminal) run(run Run) {
	st, j := run.Status(), run.Judgement
	t.line("")
	t.wrapped("", func(s string) string { return t.status(st, s) }, st.mark()+" "+Visible(j.Scenario+" on "+run.subject())+": "+st.words())
	t.text("  ", run.why())
	if run.why() != j.CutShort {
		t.text("  ", upperFirst(j.CutShort))
	}
	if run.Manifest.End == nil {
		t.text("  ", "The run did not end: nothing in it can be held.")
	}
	for _, c := range j.Conditions {
		if !c.OK {
			t.text("  ", "Not reached: "+condition(c)+" ("+c.Missing+")")
		}
	}
	for _, f := range j.Faults {
		if f.Fired == 0 {
			t.text("  ", "Did not fire: "+f.Line)
		}
	}
	t.findings("Breaks a claim", brokenOf(j))
	t.findings("Seen, breaks no claim", seenOf(j))
	t.line("  %s  %s", t.faint("evidence"), Visible(run.Dir))
	t.line("  %s  %s", t.faint("replay  "), Visible(run.Replay()))
}

func (t *terminal) findings(heading string, fs findings) {
	if fs.Total == 0 {
		return
	}
	t.wrapped("  ", t.bold, fs.heading(heading))
	told := 0
	for i, g := range fs.Groups {
		if i == terminalFindings {
			break
		}
		told += len(g.Findings)
		f := g.First()
		t.text("  • ", f.Guarantee+": "+f.Text)
		if f.HandOver != "" {
			t.text("    ", "at "+string(f.HandOver))
		}
		var ids []string
		for _, id := range identifiers(f) {
			ids = append(ids, Visible(id))
		}
		for _, l := range pack(ids, " · ", t.columns.width-4) {
			t.line("    %s", l)
		}
		if len(f.Follows) > 0 {
			t.text("    ", "the same cause may break "+strings.Join(f.Follows, ", "))
		}
		t.text("    ", g.more())
	}
	if left := fs.Total - told; left > 0 {
		t.line("  … and %s", plural(left, "more finding"))
	}
}

// failed lists the runs without evidence.
func (t *terminal) failed(r Report) {
	for _, f := range r.Failed {
		t.line("")
		t.wrapped("", func(s string) string { return t.status(StatusUnmeasured, s) },
			StatusUnmeasured.mark()+" "+Visible(f.Name)+": "+StatusUnmeasured.words()+", and nothing of it can be judged")
		t.text("  ", f.Why)
	}
}

func (t *terminal) totals(r Report) {
	st := r.Status()
	summary := plural(r.total(), "run")
	if c := counts(r.Counts()); c != "" {
		summary += ": " + c
	}
	exit := fmt.Sprintf("exit %d: %s", r.Exit(), statuses[st].exitText)
	if r.total() == 0 {
		exit = fmt.Sprintf("exit %d: nothing was run", r.Exit())
	}
	t.line("")
	notes, left := bounded(r.standings(), terminalNotes)
	for _, s := range notes {
		t.text("", s.String())
	}
	if left > 0 {
		t.line("… and %s of this kind", plural(left, "more line"))
	}
	if seen := seenIn(r); len(seen) > 0 {
		lead := "not expected, and seen broken without a claim: "
		t.wrapped("", t.faint, lead+strings.Join(seen, ", "))
	}
	all := r.trials()
	broken, left := bounded(rare(all), terminalTrials)
	for _, b := range broken {
		t.text("", b.String())
	}
	if left > 0 {
		t.line("… and %s in the other formats", plural(left, "more rate"))
	}
	for _, p := range proofs(all) {
		t.text("", p)
	}
	if d := r.defects(); d != "" {
		t.text("", "a seeded defect was switched on: "+d+"; violations say nothing about the system without it")
	}
	for _, l := range pack([]string{summary, exit}, " · ", t.columns.width) {
		t.line("%s", t.status(st, l))
	}
}

// seenIn counts, for each guarantee neither claimed nor expected, the runs that
// broke it.
func seenIn(r Report) []string {
	runs := map[string]int{}
	for _, run := range r.Runs {
		seen := map[string]bool{}
		for _, f := range seenOnly(run.Judgement) {
			if !seen[f.Guarantee] && !run.expected(f.Guarantee) {
				seen[f.Guarantee] = true
				runs[f.Guarantee]++
			}
		}
	}
	var all []string
	for _, name := range sortedKeys(runs) {
		all = append(all, Visible(name)+" ("+plural(runs[name], "run")+")")
	}
	return all
}

// text writes untrusted text wrapped, the first line after lead and the others
// aligned with it.
func (t *terminal) text(lead, s string) {
	if s == "" {
		return
	}
	t.wrapped(lead, func(s string) string { return s }, Visible(s))
}

// wrapped is like text, for safe text and with a style.
func (t *terminal) wrapped(lead string, style func(string) string, s string) {
	margin := strings.Repeat(" ", runewidth.StringWidth(lead))
	for _, l := range Wrap(s, t.columns.width-len(margin)) {
		t.line("%s%s", lead, style(l))
		lead = margin
	}
}

// identifiers lists a finding's IDs with their kinds.
func identifiers(f guarantees.Finding) []string {
	var words []string
	for _, p := range [...][2]string{
		{"business", f.BusinessID}, {"publish", f.PublishID}, {"message", f.MessageID}, {"subscription", f.Subscription},
	} {
		if p[1] != "" {
			words = append(words, p[0]+" "+p[1])
		}
	}
	if e := events(f.Events); e != "" {
		words = append(words, e)
	}
	return words
}

// fit truncates s to width cells.
func fit(s string, width int) string { return runewidth.Truncate(s, width, "…") }

// cell pads or truncates s to width cells.
func cell(s string, width int) string { return runewidth.FillRight(fit(s, width), width) }

// right is cell, right-aligned.
func right(s string, width int) string { return runewidth.FillLeft(fit(s, width), width) }

// Wrap breaks s at blanks into lines of at most width cells.
func Wrap(s string, width int) []string { return pack(strings.Fields(s), " ", width) }

// pack fills lines with phrases separated by sep. It breaks phrases wider than
// a line at blanks, and words wider than a line anywhere. It returns at least
// one line.
func pack(phrases []string, sep string, width int) []string {
	var lines []string
	line, used, gap := "", 0, runewidth.StringWidth(sep)
	for i, phrase := range phrases {
		room := width
		if i < len(phrases)-1 {
			room -= runewidth.StringWidth(strings.TrimRight(sep, " "))
		}
		for n, part := range broken(phrase, width) {
			wide := runewidth.StringWidth(part)
			switch {
			case i == 0 && n == 0:
			case n > 0:
				lines, line, used = append(lines, line), "", 0
			case used+gap+wide > room:
				lines, line, used = append(lines, line+strings.TrimRight(sep, " ")), "", 0
			default:
				line, used = line+sep, used+gap
			}
			line, used = line+part, used+wide
		}
	}
	return append(lines, line)
}

// broken breaks a phrase that is wider than a line.
func broken(phrase string, width int) []string {
	switch words := strings.Fields(phrase); {
	case runewidth.StringWidth(phrase) <= width:
		return []string{phrase}
	case len(words) > 1:
		return pack(words, " ", width)
	}
	return strings.Split(runewidth.Wrap(phrase, width), "\n")
}
