package reports

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

var extensions = map[string]string{"terminal": "txt", "json": "json", "junit": "xml", "markdown": "md", "html": "html"}

func TestGolden(t *testing.T) {
	reports := map[string]Report{"sample": sample(), "empty": {}}
	for _, f := range Formats() {
		for name, r := range reports {
			t.Run(f.Name+"/"+name, func(t *testing.T) {
				got := render(t, f, r)
				if f.Name == "html" { // a change of style must not touch the golden pages
					if n := bytes.Count(got, []byte(pageStyle)); n != 1 {
						t.Fatalf("the page holds page.css %d times, want once", n)
					}
					got = bytes.Replace(got, []byte(pageStyle), []byte("/* page.css */\n"), 1)
				}
				path := filepath.Join("testdata", name+"."+extensions[f.Name])
				if *update {
					if err := os.WriteFile(path, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatalf("%v (go test -update writes it)", err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%s differs from what is rendered; first difference:\n%s", path, firstDifference(got, want))
				}
			})
		}
	}
}

func render(t testing.TB, f Format, r Report) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b, r); err != nil {
		t.Fatalf("%s: %v", f.Name, err)
	}
	return b.Bytes()
}

func firstDifference(got, want []byte) string {
	g, w := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(g), len(w)) {
		if !bytes.Equal(g[i], w[i]) {
			return "got  " + string(g[i]) + "\nwant " + string(w[i])
		}
	}
	return "one ends before the other"
}
