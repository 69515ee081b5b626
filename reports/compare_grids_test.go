package reports_test

import (
	"strings"
	"testing"

	"github.com/custodymq/custody/reports"
)

const gridText = `{"columns":[{"group":"order","name":"link"},{"name":"drop"}],"rows":[
	{"name":"a:p","cells":[{"state":"claimed-held","why":"once"},{"state":"inconclusive"}]},
	{"name":"b:p","cells":[{},{"state":"claimed-held"}]},
	{"name":"c:p","absent":"not installed"}]}`

func readGrid(t *testing.T, text string) reports.Grid {
	t.Helper()
	g, err := reports.ReadGrid(strings.NewReader(text), "grid.json")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestCompareGrids(t *testing.T) {
	a := readGrid(t, gridText)
	for _, c := range []struct {
		name, old, new string
		want           []string
	}{
		{"another reason is no difference", `"why":"once"`, `"why":"twice"`, nil},
		{"another state", `"state":"inconclusive"`, `"state":"claimed-violated"`, []string{"a:p, drop: was inconclusive and is claimed and violated"}},
		{"no longer empty", `{},`, `{"state":"unclaimed-violated"},`, []string{"b:p, order (link): was not exercised and is not claimed, and shown violated"}},
		{"a row less and a row more", `"c:p"`, `"d:p"`, []string{"c:p: was there and is not there", "d:p: was not there and is there"}},
		{"another column", `{"name":"drop"}`, `{"name":"cut"}`, []string{
			"a:p, drop: was inconclusive and is not exercised", "a:p, cut: was not exercised and is inconclusive",
			"b:p, drop: was claimed and held and is not exercised", "b:p, cut: was not exercised and is claimed and held"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, d := range reports.CompareGrids(a, readGrid(t, strings.Replace(gridText, c.old, c.new, 1))) {
				got = append(got, d.String())
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestReadGridRefusesWhatIsNone(t *testing.T) {
	for _, text := range []string{"", "[]", `{"columns":[{"name":"a"}],"rows":[{"name":"x","cells":[]}]}`} {
		if _, err := reports.ReadGrid(strings.NewReader(text), "grid.json"); err == nil || !strings.Contains(err.Error(), "grid.json") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
