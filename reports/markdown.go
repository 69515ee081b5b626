package reports

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// Bounds: a CI job summary above 1 MiB is rejected.
const (
	markdownRows     = 200
	markdownDetails  = 25
	markdownFindings = 5
	markdownText     = 400 // cells per sentence or identifier
)

// WriteMarkdown writes a summary for a CI job or pull request: the table first,
// then what did not hold.
func WriteMarkdown(w io.Writer, r Report) error {
	var b bytes.Buffer
	st := r.Status()
	fmt.Fprintf(&b, "## %s\n\n", md(r.title()))
	fmt.Fprintf(&b, "%s **%s.** ", badges[st], md(r.headline()))
	fmt.Fprintf(&b, "%s", plural(r.total(), "run"))
	if c := counts(r.Counts()); c != "" {
		fmt.Fprintf(&b, ": %s", c)
	}
	fmt.Fprintf(&b, ". Exit code %d.\n", r.Exit())
	if d := r.defects(); d != "" {
		fmt.Fprintf(&b, "\n> A seeded defect was switched on: %s. Violations say nothing about the system without it.\n", mdCode(d))
	}
	if r.Command != "" {
		fmt.Fprintf(&b, "\n%s\n", mdCode(r.Command))
	}
	if len(r.Runs) > 0 {
		markdownTable(&b, r)
	}
	markdownSummary(&b, r)
	markdownDetail(&b, r)
	_, err := w.Write(b.Bytes())
	return err
}

var badges = map[Status]string{
	StatusViolated: "❌", StatusUnmeasured: "💥", StatusInconclusive: "❔",
	StatusHeld: "✅", StatusNotClaimed: "⚪", StatusNotApplicable: "➖",
}

func markdownTable(b *bytes.Buffer, r Report) {
	b.WriteString("\n| Scenario | System | Outcome | Guarantees | Held by | Time |\n|---|---|---|---|---|--:|\n")
	shown := worstFirst(r.Runs, markdownRows)
	for _, i := range shown {
		run, layers := r.Runs[i], restored(r.Runs[i].Judgement)
		for _, l := range carriers(run.Judgement) {
			if l.Count > 0 {
				layers = append(layers, layer(l))
			}
		}
		st := run.Status()
		fmt.Fprintf(b, "| %s | %s | %s %s | %s | %s | %s |\n", mdCode(run.Judgement.Scenario), mdCode(run.subject()),
			badges[st], st.words(), tally(run.Judgement), md(strings.Join(layers, ", ")), took(run))
	}
	if left := len(r.Runs) - len(shown); left > 0 {
		fmt.Fprintf(b, "\n… and %s, none of them worse than these.\n", plural(left, "more run"))
	}
}

// markdownSummary lists what the verdicts rest on.
func markdownSummary(b *bytes.Buffer, r Report) {
	var items []string
	add := func(all []string) {
		some, left := bounded(all, markdownFindings)
		for _, s := range some {
			items = append(items, md(s))
		}
		if left > 0 {
			items = append(items, fmt.Sprintf("… and %d more", left))
		}
	}
	for _, f := range r.Failed {
		items = append(items, fmt.Sprintf("%s %s: %s, and nothing of it can be judged: %s", badges[StatusUnmeasured], mdCode(f.Name), StatusUnmeasured.words(), md(f.Why)))
	}
	var notes, rates []string
	for _, s := range r.standings() {
		notes = append(notes, s.String())
	}
	all := r.trials()
	for _, t := range rare(all) {
		rates = append(rates, t.String())
	}
	add(notes)
	add(rates)
	add(proofs(all))
	if len(r.Runs) > 0 {
		add([]string{"Made by " + r.Runs[0].made()})
	}
	if len(items) > 0 {
		fmt.Fprintf(b, "\n- %s\n", strings.Join(items, "\n- "))
	}
}

func markdownDetail(b *bytes.Buffer, r Report) {
	var open []Run
	for _, run := range r.Runs {
		if s := run.Status(); s == StatusViolated || s == StatusUnmeasured || s == StatusInconclusive {
			open = append(open, run)
		}
	}
	shown := worstFirst(open, markdownDetails)
	for _, i := range shown {
		run := open[i]
		j, st := run.Judgement, run.Status()
		fmt.Fprintf(b, "\n### %s %s on %s: %s\n\n%s\n", badges[st], mdCode(j.Scenario), mdCode(run.subject()), st.words(), md(run.why()))
		var items []string
		if j.CutShort != "" && run.why() != j.CutShort {
			items = append(items, md(upperFirst(j.CutShort)))
		}
		for _, c := range j.Conditions {
			if !c.OK {
				items = append(items, fmt.Sprintf("Not reached: %s (%s)", mdCode(condition(c)), md(c.Missing)))
			}
		}
		for _, f := range j.Faults {
			if f.Fired == 0 {
				items = append(items, "Did not fire: "+mdCode(f.Line))
			}
		}
		items = append(items, markdownFindingList(brokenOf(j), "")...)
		items = append(items, markdownFindingList(seenOf(j), " (breaks no claim)")...)
		if len(items) > 0 {
			fmt.Fprintf(b, "\n- %s\n", strings.Join(items, "\n- "))
		}
		fmt.Fprintf(b, "\n%s\n", mdCode(run.Replay()))
	}
	if left := len(open) - len(shown); left > 0 {
		fmt.Fprintf(b, "\n… and %s with details.\n", plural(left, "more run"))
	}
}

func markdownFindingList(fs findings, note string) []string {
	some, _ := bounded(fs.Groups, markdownFindings)
	var items []string
	left := fs.Total
	for _, g := range some {
		f := g.First()
		left -= len(g.Findings)
		item := fmt.Sprintf("**%s**%s: %s", md(f.Guarantee), note, md(f.Text))
		if f.HandOver != "" {
			item += fmt.Sprintf(" At *%s*.", md(string(f.HandOver)))
		}
		if ids := identifiers(f); len(ids) > 0 {
			item += "<br>" + mdCode(strings.Join(ids, " · "))
		}
		if more := g.more(); more != "" {
			item += "<br>" + more
		}
		items = append(items, item)
	}
	if left > 0 {
		items = append(items, "… and "+plural(left, "more finding")+note)
	}
	return items
}

// md escapes untrusted text so that Markdown shows it literally: no link,
// markup or mention. Entities are never parsed as syntax.
func md(s string) string { return mdEntities.Replace(fit(Visible(s), markdownText)) }

// mdCode shows untrusted text as code. It uses an element because a pipe inside
// backticks still ends a table cell.
func mdCode(s string) string { return "<code>" + md(s) + "</code>" }

var mdEntities = func() *strings.Replacer {
	var pairs []string
	for _, c := range "&<>\"'`*_[]()|~#!@\\{}$" {
		pairs = append(pairs, string(c), fmt.Sprintf("&#%d;", c))
	}
	return strings.NewReplacer(append(pairs, "://", "&#58;//", "www.", "www&#46;")...)
}()
