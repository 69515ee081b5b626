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

	"github.com/custodymq/custody/guarantees"
)

const (
	terminalWidth    = 100
	terminalRows     = 200 // of the table
	terminalDetails  = 40  // runs shown with their findings
	terminalFindings = 10  // a run
)

// The columns of the table, in cells; the gap between two is two.
const (
	scenarioWidth   = 26
	outcomeWidth    = 16
	guaranteesWidth = 40
	timeWidth       = terminalWidth - scenarioWidth - outcomeWidth - guaranteesWidth - 6
)

// WriteTerminal is the summary that people read where they ran it. No line is
// wider than 100 cells but one that holds a command to copy.
func WriteTerminal(w io.Writer, r Report) error {
	t := terminal{paint: onTerminal(w)}
	t.line("%s", t.bold(fit(Visible(r.title()), terminalWidth)))
	t.table(r)
	t.details(r)
	t.totals(r)
	_, err := w.Write(t.out.Bytes())
	return err
}

// onTerminal reports whether colour would be seen, and is wanted.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

type terminal struct {
	out   bytes.Buffer
	paint bool
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
	shown, target := worstFirst(r.Runs, terminalRows), ""
	for _, i := range shown {
		run := r.Runs[i]
		if now := run.target(); now != target || target == "" {
			target = now
			t.line("")
			t.line("%s", t.bold(fit(Visible(target), terminalWidth)))
			t.line("%s", t.faint(cell("SCENARIO", scenarioWidth)+"  "+cell("OUTCOME", outcomeWidth)+"  "+
				cell("GUARANTEES", guaranteesWidth)+"  "+right("TIME", timeWidth)))
		}
		t.row(run)
	}
	if left := len(r.Runs) - len(shown); left > 0 {
		t.line("… and %s, none of them worse than these", plural(left, "more run"))
	}
}

func (t *terminal) row(run Run) {
	st := run.Status()
	lines := wrap(tally(run.Judgement), guaranteesWidth)
	if len(run.Judgement.Verdicts) == 0 {
		lines = wrap(Visible(run.why()), guaranteesWidth)
	}
	var layers []string
	for _, l := range carriers(run.Judgement) {
		if l.Count > 0 { // one that was not exercised is told in the run's own report
			layers = append(layers, Visible(layer(l)))
		}
	}
	if len(layers) > 0 {
		lines = append(lines, pack(layers, ", ", guaranteesWidth)...)
	}
	const most = 4 // a scenario name or an error can be long; the findings tell the rest
	if len(lines) > most {
		lines = append(lines[:most-1], fit(lines[most-1]+" …", guaranteesWidth))
	}
	took := took(run)
	for i, l := range lines {
		name, outcome := "", cell("", outcomeWidth)
		if i == 0 {
			name, outcome = Visible(run.Judgement.Scenario), t.status(st, cell(st.mark()+" "+st.words(), outcomeWidth))
		} else {
			took = ""
		}
		t.line("%s  %s  %s  %s", cell(name, scenarioWidth), outcome, cell(l, guaranteesWidth), right(took, timeWidth))
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
	t.line("%s", t.status(st, fit(st.mark()+" "+Visible(j.Scenario+" on "+run.target())+": "+st.words(), terminalWidth)))
	t.text("  ", run.why())
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
	t.findings("Breaks a claim", j.Broken)
	t.findings("Seen, breaks no claim", seenOnly(j))
	t.line("  %s  %s", t.faint("evidence"), Visible(run.Dir))
	t.line("  %s  %s", t.faint("replay  "), Visible(run.Replay()))
}

func (t *terminal) findings(heading string, fs []guarantees.Finding) {
	for i, f := range fs {
		if i == terminalFindings {
			t.line("  … and %s", plural(len(fs)-i, "more finding"))
			return
		}
		if i == 0 {
			t.line("  %s", t.bold(heading))
		}
		t.text("  • ", f.Guarantee+": "+f.Text)
		if f.HandOver != "" {
			t.text("    ", "at "+string(f.HandOver))
		}
		var ids []string
		for _, id := range identifiers(f) {
			ids = append(ids, Visible(id))
		}
		for _, l := range pack(ids, " · ", terminalWidth-4) {
			t.line("    %s", l)
		}
		if len(f.Follows) > 0 {
			t.text("    ", "the same cause may break "+strings.Join(f.Follows, ", "))
		}
	}
}

func (t *terminal) totals(r Report) {
	st := r.Status()
	summary := plural(len(r.Runs), "run")
	if c := counts(r.Counts()); c != "" {
		summary += ": " + c
	}
	exit := fmt.Sprintf("exit %d: %s", r.Exit(), statuses[st].exitText)
	if len(r.Runs) == 0 {
		exit = fmt.Sprintf("exit %d: nothing was run", r.Exit())
	}
	t.line("")
	if seen := seenIn(r); len(seen) > 0 {
		lead := "seen, breaks no claim: "
		for i, l := range pack(seen, ", ", terminalWidth-len(lead)) {
			if i > 0 {
				lead = strings.Repeat(" ", len(lead))
			}
			t.line("%s", t.faint(lead+l))
		}
	}
	for _, l := range pack([]string{summary, exit}, " · ", terminalWidth) {
		t.line("%s", t.status(st, l))
	}
}

// seenIn counts, for each guarantee that nobody promised, the runs that have
// shown it broken.
func seenIn(r Report) []string {
	runs := map[string]int{}
	for _, run := range r.Runs {
		seen := map[string]bool{}
		for _, f := range seenOnly(run.Judgement) {
			if !seen[f.Guarantee] {
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

// text writes untrusted words wrapped, the first line after lead, the others
// under it.
func (t *terminal) text(lead, s string) {
	if s == "" {
		return
	}
	margin := strings.Repeat(" ", runewidth.StringWidth(lead))
	for _, l := range wrap(Visible(s), terminalWidth-len(margin)) {
		t.line("%s%s", lead, l)
		lead = margin
	}
}

// identifiers of a finding, each with what it is.
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

// fit cuts s to width cells.
func fit(s string, width int) string { return runewidth.Truncate(s, width, "…") }

// cell is s in exactly width cells.
func cell(s string, width int) string { return runewidth.FillRight(fit(s, width), width) }

// right is cell, to the right.
func right(s string, width int) string { return runewidth.FillLeft(fit(s, width), width) }

// wrap breaks s at blanks.
func wrap(s string, width int) []string { return pack(strings.Fields(s), " ", width) }

// pack puts phrases on lines, with sep between them, and breaks those that are
// wider than a line anywhere. It gives at least one line.
func pack(phrases []string, sep string, width int) []string {
	var lines []string
	line, used, gap := "", 0, runewidth.StringWidth(sep)
	for i, phrase := range phrases {
		room := width
		if i < len(phrases)-1 {
			room -= runewidth.StringWidth(strings.TrimRight(sep, " "))
		}
		for n, part := range strings.Split(runewidth.Wrap(phrase, width), "\n") {
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
