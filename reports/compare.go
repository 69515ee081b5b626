package reports

import "fmt"

// Difference is one verdict that differs between two reports.
type Difference struct {
	System    string `json:"system"`
	Profile   string `json:"profile"`
	Scenario  string `json:"scenario"`
	Nth       int    `json:"nth"`                 // number of the run among those of its scenario, from 1
	Guarantee string `json:"guarantee,omitempty"` // empty: the run's outcome
	A         Status `json:"a"`
	B         Status `json:"b"`
}

// String returns one sentence.
func (d Difference) String() string {
	what := d.Guarantee
	if what == "" {
		what = "the run"
	}
	nth := ""
	if d.Nth > 1 {
		nth = fmt.Sprintf(" (run %d)", d.Nth)
	}
	return Visible(fmt.Sprintf("%s on %s:%s%s: %s was %s and is %s",
		d.Scenario, d.System, d.Profile, nth, what, d.A.words(), d.B.words()))
}

// Compare lists the verdicts of b that differ from those of a, by system,
// profile, scenario and guarantee, in the order of a and then b. Counts, times
// and event numbers are not compared: no two runs of a real system share them.
func Compare(a, b Report) []Difference {
	left, right := verdictsOf(a), verdictsOf(b)
	diffs := []Difference{}
	for _, k := range left.order {
		if l, r := left.status[k], right.at(k); l != r {
			diffs = append(diffs, k.difference(l, r))
		}
	}
	for _, k := range right.order {
		if left.at(k) == StatusAbsent {
			diffs = append(diffs, k.difference(StatusAbsent, right.status[k]))
		}
	}
	return diffs
}

type verdictKey struct {
	identity
	guarantee string
}

func (k verdictKey) difference(a, b Status) Difference {
	return Difference{k.System, k.Profile, k.Scenario, k.Nth, k.guarantee, a, b}
}

type verdictTable struct {
	order  []verdictKey
	status map[verdictKey]Status
}

func (t verdictTable) at(k verdictKey) Status {
	if s, ok := t.status[k]; ok {
		return s
	}
	return StatusAbsent
}

func verdictsOf(r Report) verdictTable {
	t := verdictTable{status: map[verdictKey]Status{}}
	put := func(k verdictKey, s Status) {
		if _, again := t.status[k]; !again {
			t.order = append(t.order, k)
		}
		t.status[k] = s
	}
	ids := r.identities()
	for i, run := range r.Runs {
		put(verdictKey{ids[i], ""}, run.Status())
		for _, v := range run.Judgement.Verdicts {
			put(verdictKey{ids[i], v.Guarantee}, statusOf(v.Outcome))
		}
	}
	return t
}

// CompareVersions returns a sentence for each system or client whose version
// differs between two reports.
func CompareVersions(a, b Report) []string {
	left, right := versionsIn(a), versionsIn(b)
	diffs := []string{}
	for _, part := range sortedKeys(left) {
		if now := right[part]; now != "" && now != left[part] {
			diffs = append(diffs, Visible(fmt.Sprintf("%s was %s and is %s", part, left[part], now)))
		}
	}
	return diffs
}

// versionsIn lists a report's versions by system and part; several of one part
// are joined.
func versionsIn(r Report) map[string]string {
	all := map[string]*distinct{}
	for _, run := range r.Runs {
		for part, version := range run.Manifest.Versions {
			key := run.Judgement.System + ": " + part
			if all[key] == nil {
				all[key] = newDistinct()
			}
			all[key].add(version)
		}
	}
	texts := map[string]string{}
	for key, versions := range all {
		texts[key] = versions.String()
	}
	return texts
}
