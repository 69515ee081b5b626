package reports

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/guarantees"
)

// WriteJUnit writes JUnit XML for CI systems: a suite per system and profile,
// with a case per scenario and guarantee and one per run, so that no CI system
// is greener than the exit code. Only a broken claim is a failure. A run that
// could not be measured or proved nothing is an error, since neither is a
// pass; what is not claimed or not applicable is skipped.
func WriteJUnit(w io.Writer, r Report) error {
	doc := junitSuites{Name: Visible(r.title())}
	ids, at := r.identities(), map[string]int{}
	for i, run := range r.Runs {
		name := run.subject()
		n, ok := at[name]
		if !ok {
			n = len(doc.Suites)
			at[name] = n
			doc.Suites = append(doc.Suites, junitSuite{Name: Visible(name)})
		}
		doc.Suites[n].add(run, ids[i])
	}
	if len(r.Failed) > 0 {
		s := junitSuite{Name: "runs without evidence"}
		for _, f := range r.Failed {
			c := junitCase{ClassName: Visible(f.Name), Name: "run", Time: seconds(0)}
			c.set(StatusUnmeasured, f.Why, "")
			s.count(c)
		}
		doc.Suites = append(doc.Suites, s)
	}
	for i := range doc.Suites {
		s := &doc.Suites[i]
		s.Time = seconds(s.took)
		doc.Tests, doc.Failures, doc.Errors, doc.Skipped = doc.Tests+s.Tests, doc.Failures+s.Failures, doc.Errors+s.Errors, doc.Skipped+s.Skipped
		doc.took += s.took
	}
	doc.Time = seconds(doc.took)

	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

type junitSuites struct {
	XMLName  xml.Name `xml:"testsuites"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Skipped  int      `xml:"skipped,attr"`
	Time     string   `xml:"time,attr"`
	Suites   []junitSuite
	took     time.Duration
}

type junitSuite struct {
	XMLName    xml.Name         `xml:"testsuite"`
	Name       string           `xml:"name,attr"`
	Tests      int              `xml:"tests,attr"`
	Failures   int              `xml:"failures,attr"`
	Errors     int              `xml:"errors,attr"`
	Skipped    int              `xml:"skipped,attr"`
	Time       string           `xml:"time,attr"`
	Timestamp  string           `xml:"timestamp,attr,omitempty"`
	Properties *junitProperties `xml:"properties"` // nil rather than empty
	Cases      []junitCase      `xml:"testcase"`
	took       time.Duration
}

type junitProperties struct {
	Property []junitProperty `xml:"property"`
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitCase struct {
	ClassName string       `xml:"classname,attr"`
	Name      string       `xml:"name,attr"`
	Time      string       `xml:"time,attr"`
	Failure   *junitResult `xml:"failure"`
	Error     *junitResult `xml:"error"`
	Skipped   *junitResult `xml:"skipped"`
	Out       string       `xml:"system-out,omitempty"`
}

type junitResult struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Body    string `xml:",chardata"`
}

func (s *junitSuite) add(run Run, id identity) {
	m := run.Manifest
	class := id.Scenario
	if id.Nth > 1 {
		class = fmt.Sprintf("%s#%d", class, id.Nth)
	}
	class = Visible(class)
	if s.Timestamp == "" && !m.StartedAt.IsZero() {
		s.Timestamp = m.StartedAt.UTC().Format("2006-01-02T15:04:05")
	}
	s.property(class+".seed", fmt.Sprint(m.Seed))
	s.property(class+".evidence", run.Dir)
	if m.Defect != "" {
		s.property(class+".defect", m.Defect)
	}
	for _, name := range sortedKeys(m.Versions) {
		s.property("version."+name, m.Versions[name])
	}

	var after time.Duration
	if m.End != nil {
		after = m.End.After
	}
	s.took += after
	cutShort := ""
	if c := run.Judgement.CutShort; c != "" {
		cutShort = Visible(c) + "\n"
	}
	whole := junitCase{ClassName: class, Name: "run", Time: seconds(after), Out: cutShort + "evidence: " + Visible(run.Dir) + "\nreplay: " + Visible(run.Replay())}
	st := run.Status()
	whole.set(st, run.why(), "")
	told := false // reported by the case of a guarantee
	for _, v := range run.Judgement.Verdicts {
		told = told || v.Counts() && statusOf(v.Outcome) == st
	}
	if told && st != StatusUnmeasured {
		whole.Failure, whole.Error = nil, nil // already reported by that case
	}
	s.count(whole)
	for _, v := range run.Judgement.Verdicts {
		c := junitCase{ClassName: class, Name: Visible(v.Guarantee), Time: seconds(0)}
		if st == StatusUnmeasured || !v.Counts() && v.Outcome != guarantees.NotApplicable {
			c.skip(v, st)
		} else {
			c.set(statusOf(v.Outcome), v.Why, findingsText(v))
		}
		s.count(c)
	}
}

func (c *junitCase) set(st Status, why, body string) {
	why, kind := Visible(why), string(st)
	switch st {
	case StatusViolated:
		c.Failure = &junitResult{why, kind, body}
	case StatusInconclusive, StatusUnmeasured:
		c.Error = &junitResult{why, kind, body}
	case StatusNotApplicable, StatusNotClaimed:
		c.Skipped = &junitResult{Message: st.words() + ": " + why}
	}
}

// skip marks a verdict that does not count, with what was seen.
func (c *junitCase) skip(v guarantees.Verdict, run Status) {
	reason := "not claimed for the faults that fired"
	if run == StatusUnmeasured {
		reason = "the run could not be measured"
	}
	c.Skipped = &junitResult{Message: Visible(fmt.Sprintf("%s; seen: %s: %s", reason, statusOf(v.Outcome).words(), v.Why))}
}

func (s *junitSuite) count(c junitCase) {
	s.Tests++
	switch {
	case c.Failure != nil:
		s.Failures++
	case c.Error != nil:
		s.Errors++
	case c.Skipped != nil:
		s.Skipped++
	}
	s.Cases = append(s.Cases, c)
}

// property sets a suite's property; differing values are joined.
func (s *junitSuite) property(name, value string) {
	p := junitProperty{Visible(name), Visible(value)}
	if s.Properties == nil {
		s.Properties = &junitProperties{}
	}
	if !strings.HasPrefix(name, "version.") || !slices.Contains(s.Properties.Property, p) {
		s.Properties.Property = append(s.Properties.Property, p)
	}
}

// findingsText is the body of a failure, a paragraph per finding.
func findingsText(v guarantees.Verdict) string {
	var b strings.Builder
	for _, f := range v.Findings {
		fmt.Fprintf(&b, "\n%s", Visible(f.Text))
		if f.HandOver != "" {
			fmt.Fprintf(&b, "\n  at %s", Visible(string(f.HandOver)))
		}
		if ids := identifiers(f); len(ids) > 0 {
			fmt.Fprintf(&b, "\n  %s", Visible(strings.Join(ids, " · ")))
		}
		b.WriteByte('\n')
	}
	if v.FindingsLeftOut > 0 {
		fmt.Fprintf(&b, "\n… and %d more\n", v.FindingsLeftOut)
	}
	return b.String()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
