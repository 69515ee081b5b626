package scenarios_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/custodymq/custody/scenarios"
)

func TestChoose(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[a] folder")
	empty := t.TempDir()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"b.scenario": "scenario second\nproducer p1 to orders\n",
		"a.scenario": "scenario first\nproducer p1 to orders\n",
		"notes.txt":  "not a script",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		names []string
		want  string // names, or a part of the error
	}{
		{[]string{"ack-lost"}, "ack-lost"},
		{[]string{dir, "baseline"}, "first second baseline"},
		{[]string{filepath.Join(dir, "b.scenario")}, "second"},
		{[]string{dir, filepath.Join(dir, "b.scenario")}, "second is named twice"},
		{[]string{empty + "/"}, "holds no *.scenario"},
		{[]string{"./absent.scenario"}, "read a script: "},
		{[]string{filepath.Join(dir, "notes.txt")}, "notes.txt: line 1"},
		{[]string{"ack-lots"}, "ack-lost"},
	} {
		chosen, err := scenarios.Choose(c.names...)
		var got []string
		for _, s := range chosen {
			got = append(got, s.Name)
		}
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v; want %q", c.names, err, c.want)
			}
		} else if strings.Join(got, " ") != c.want {
			t.Errorf("%v: %v; want %q", c.names, got, c.want)
		}
	}
}
