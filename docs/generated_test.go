package docs_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/amqp"
	"github.com/custodymq/custody/links/kafka"
	"github.com/custodymq/custody/links/mqtt"
	"github.com/custodymq/custody/links/mysql"
	"github.com/custodymq/custody/links/nats"
	"github.com/custodymq/custody/links/postgres"
	"github.com/custodymq/custody/links/resp"
	"github.com/custodymq/custody/links/zmtp"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/registry"
)

// generated are the parts of pages that are generated from code. Each stands in
// a page between "<!-- generated: NAME -->" and "<!-- end -->".
var generated = map[string]func() string{
	"guarantees": guaranteeSections,
	"claims":     claimsTable,
	"profiles":   profilesTable,
	"oldest":     oldestTable,
	"faults":     faultsTable,
	"frames":     framesTable,
	"scenarios":  scenariosTable,
	"classes":    classesList,
	"matrix":     matrixTable,
	"losses":     lossesTable,
	"systems":    systemsTable,
	"patterns":   patternSections,
	"policies":   policySections,
	"operations": operationsTable,
	"ablations":  ablationsTable,
}

var part = regexp.MustCompile(`(?s)(<!-- generated: ([a-z]+) -->\n).*?(<!-- end -->)`)

func TestGeneratedPartsAreUpToDate(t *testing.T) {
	used := map[string]bool{}
	for _, page := range documents(t) {
		had := read(t, page)
		has := part.ReplaceAllStringFunc(had, func(whole string) string {
			m := part.FindStringSubmatch(whole)
			generate, ok := generated[m[2]]
			if !ok {
				t.Errorf("%s: nothing generates %q", page, m[2])
				return whole
			}
			used[m[2]] = true
			return m[1] + "\n" + strings.TrimSpace(generate()) + "\n\n" + m[3]
		})
		switch {
		case has == had:
		case *update:
			if err := os.WriteFile(filepath.Join(root, page), []byte(has), 0o644); err != nil {
				t.Fatal(err)
			}
		default:
			t.Errorf("%s is behind the code: run go test ./docs -update", page)
		}
	}
	for name := range generated {
		if !used[name] {
			t.Errorf("no page holds the generated part %q", name)
		}
	}
}

func guaranteeSections() string {
	var b strings.Builder
	for _, g := range guarantees.Guarantees() {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n*Also known as:* %s.\n\n*How it is judged.* %s\n\n", g.Name, g.Text, g.Usual, g.Rule)
		var in []string
		for _, s := range append(scenarios.All(), scenarios.Application()...) {
			if slices.Contains(s.Expect, g.Name) {
				in = append(in, "`"+s.Name+"`")
			}
		}
		fmt.Fprintf(&b, "*Put to the test in* %s.\n\n", cmp.Or(strings.Join(in, ", "), "no scenario of the catalogue"))
	}
	return b.String()
}

// measured is the output of custody matrix from which the documentation's
// tables are made: go test ./docs -update -matrix FILE.
var measured = flag.String("matrix", "", "matrix.json of a run; with -update it becomes the documentation's")

// matrixFile is its committed form, without reasons and directories.
const matrixFile = "docs/matrix.json"

func TestMain(m *testing.M) {
	flag.Parse()
	if *update && *measured != "" {
		if err := takeMatrix(*measured); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func takeMatrix(file string) error {
	g, err := readMatrix(file)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(root, matrixFile))
	if err != nil {
		return err
	}
	return errors.Join(reports.WriteGridJSON(f, g.Plain()), f.Close())
}

func readMatrix(file string) (g reports.Grid, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return g, err
	}
	if err := json.Unmarshal(b, &g); err != nil {
		return g, fmt.Errorf("%s: %w", file, err)
	}
	return g, nil
}

func oldestTable() string {
	var b strings.Builder
	b.WriteString("| system | server | oldest |\n|---|---|---|\n")
	seen := map[string]bool{}
	for _, s := range registry.Systems(1) {
		d := s.Describe()
		for _, server := range slices.Sorted(maps.Keys(d.Oldest)) {
			if row := fmt.Sprintf("| `%s` | %s | %s |\n", d.System, server, d.Oldest[server]); !seen[row] {
				seen[row] = true
				b.WriteString(row)
			}
		}
	}
	return b.String()
}

func matrixTable() string { return gridTable(func(g reports.Grid) reports.Grid { return g }) }

// lossesTable is the part of the matrix about losses.
func lossesTable() string {
	return gridTable(func(g reports.Grid) reports.Grid { return g.Only(evidence.NoAcceptedLoss) })
}

// systemsTable is lossesTable for the first profile of each system, as run on
// this machine.
func systemsTable() string {
	return gridTable(func(g reports.Grid) reports.Grid {
		g = g.Only(evidence.NoAcceptedLoss)
		seen := map[string]bool{}
		g.Rows = slices.DeleteFunc(slices.Clone(g.Rows), func(r reports.GridRow) bool {
			system, _, _ := strings.Cut(r.Name, ":")
			again := seen[system]
			seen[system] = true
			return again
		})
		return g
	})
}

func gridTable(part func(reports.Grid) reports.Grid) string {
	g, err := readMatrix(filepath.Join(root, matrixFile))
	if err != nil {
		panic(err) // a file of this repository
	}
	var b strings.Builder
	_ = reports.WriteGridMarkdown(&b, part(g)) // a Builder never fails
	return b.String()
}

func profiles() []systems.Description {
	var found []systems.Description
	for _, s := range registry.Systems(1) {
		found = append(found, s.Describe())
	}
	return found
}

func profileName(d systems.Description) string { return "`" + d.System + ":" + d.Profile.Name + "`" }

func profilesTable() string {
	var rows [][]string
	for _, d := range profiles() {
		rows = append(rows, []string{profileName(d), d.Profile.Summary})
	}
	return table([]string{"profile", "what it is"}, rows)
}

// claimsTable shows, by profile, under which classes each guarantee is claimed.
// Classes without claims are left out.
func claimsTable() string {
	var classes []evidence.Class
	for _, class := range evidence.Classes() {
		if slices.ContainsFunc(profiles(), func(d systems.Description) bool {
			return slices.ContainsFunc(d.Claims, func(c evidence.Claim) bool { return slices.Contains(c.Under, class) })
		}) {
			classes = append(classes, class)
		}
	}
	heads := []string{"guarantee", "no fault"}
	for _, class := range classes {
		heads = append(heads, string(class))
	}
	var b strings.Builder
	for _, d := range profiles() {
		var rows [][]string
		for _, c := range d.Claims {
			row := []string{c.Guarantee, "✓"}
			for _, class := range classes {
				row = append(row, map[bool]string{true: "✓"}[slices.Contains(c.Under, class)])
			}
			rows = append(rows, row)
		}
		fmt.Fprintf(&b, "### %s\n\n%s\n", profileName(d), table(heads, rows))
	}
	return b.String()
}

func faultsTable() string {
	var rows [][]string
	for _, f := range faults.All() {
		rows = append(rows, []string{"`" + f.Verb + "`", string(f.Strikes), string(f.Class), f.Text, "`" + f.Example + "`"})
	}
	return table([]string{"fault", "strikes", "class", "what it does", "as in"}, rows)
}

var protocols = []links.Protocol{zmtp.Protocol{}, amqp.Protocol{}, kafka.New(), mqtt.Protocol{}, nats.Protocol{}, resp.Protocol{}, postgres.Protocol{}, mysql.Protocol{}}

func framesTable() string {
	var rows [][]string
	for _, p := range protocols {
		for _, k := range p.Kinds() {
			rows = append(rows, []string{p.Name(), "`" + k.Name + "`", "to the " + k.To.String(), k.Text})
		}
	}
	return table([]string{"protocol", "frame", "way", "what it is"}, rows)
}

// Scripts may name exactly the frame kinds that some protocol has.
func TestFrameKindsAreThoseOfTheProtocols(t *testing.T) {
	var want []string
	for _, p := range protocols {
		for _, k := range p.Kinds() {
			want = append(want, k.Name)
		}
	}
	slices.Sort(want)
	got := links.FrameKinds()
	slices.Sort(got)
	if want = slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("links.FrameKinds is %q\nthe protocols have %q", got, want)
	}
}

func scenariosTable() string {
	var rows [][]string
	for _, s := range scenarios.All() {
		rows = append(rows, []string{"`" + s.Name + "`", s.Why})
	}
	return table([]string{"scenario", "what happens in it"}, rows)
}

func classesList() string {
	var b strings.Builder
	for _, c := range evidence.Classes() {
		fmt.Fprintf(&b, "- `%s`\n", c)
	}
	return b.String()
}

func table(heads []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		b.WriteString("|")
		for _, c := range cells {
			b.WriteString(" " + strings.ReplaceAll(c, "|", `\|`) + " |")
		}
		b.WriteString("\n")
	}
	line(heads)
	b.WriteString("|" + strings.Repeat("---|", len(heads)) + "\n")
	for _, r := range rows {
		line(r)
	}
	return b.String()
}
