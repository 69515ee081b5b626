package reports

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/mattn/go-runewidth"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// hostile is text that a malicious broker could put anywhere.
const hostile = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m\x00\r\n| `x` [a](http://evil.example) @someone \u202egnp.exe \xff ]]> {{.}} "

// fill puts text into every string of v and a non-zero value into every other
// field, so that a field which some format forgets to escape is found. Slices
// get n elements; our own enumerations stay valid.
func fill(v reflect.Value, text string, n int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(v.Index(i), text, n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, text, n)
		fill(value, text, n)
		v.SetMapIndex(key, value)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text, n)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(started))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), text, n)
		}
	default:
		panic("no filling for " + v.Type().String())
	}
}

func filled(text string, n int) Report {
	var r Report
	fill(reflect.ValueOf(&r).Elem(), text, n)
	for i := range r.Runs {
		for s := range r.Runs[i].Snapshots {
			r.Runs[i].Snapshots[s].Rows = nil
		}
	}
	return r
}

// hostileReports covers every outcome, since each is rendered by different
// code.
func hostileReports(text string) map[string]Report {
	reports := map[string]Report{}
	for outcome := range ofOutcome {
		for _, failed := range []bool{false, true} {
			r := filled(text, 2)
			for i := range r.Runs {
				j := &r.Runs[i].Judgement
				j.Outcome = outcome
				if !failed {
					j.Error = ""
				}
				for k := range j.Verdicts {
					j.Verdicts[k].Outcome, j.Verdicts[k].Covered = outcome, k == 0
				}
				for k := range j.Conditions {
					j.Conditions[k].OK = k == 0
				}
				j.Faults[0].Fired, j.Broken = 0, j.Broken[:1]
				j.Anomalies[0].Text += "!"
			}
			reports[fmt.Sprintf("%s/failed=%v", outcome, failed)] = r
		}
	}
	return reports
}

func TestHostileTextIsHarmless(t *testing.T) {
	// Text that must not appear verbatim, by format. In JSON it is data.
	forbidden := map[string][]string{
		"terminal": {"\x1b", "\r"},
		"junit":    {"<script", "<img"},
		"markdown": {"<script", "<img", "](http", "@someone", "`x`", "| `"},
		"html":     {"<script", "<img", "onerror=alert(2)>", "javascript:", "ZgotmplZ"},
	}
	for name, r := range hostileReports(hostile) {
		for _, f := range Formats() {
			t.Run(f.Name+"/"+name, func(t *testing.T) {
				out := string(render(t, f, r))
				for _, bad := range forbidden[f.Name] {
					if strings.Contains(out, bad) {
						t.Errorf("%q in the output: %s", bad, around(out, bad))
					}
				}
				for _, c := range out {
					if f.Name != "json" && c != '\n' && !unicode.IsPrint(c) {
						t.Fatalf("control or invisible character %U in the output: %s", c, around(out, string(c)))
					}
				}
			})
		}
	}
}

func around(s, part string) string {
	i := strings.Index(s, part)
	return fmt.Sprintf("%q", s[max(0, i-80):min(len(s), i+80)])
}

func TestOutputIsWellFormed(t *testing.T) {
	reports := hostileReports(hostile)
	reports["sample"], reports["empty"] = sample(), Report{}
	for name, r := range reports {
		t.Run(name, func(t *testing.T) {
			d := xml.NewDecoder(bytes.NewReader(render(t, format(t, "junit"), r)))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("JUnit: %v", err)
				}
			}
			page := string(render(t, format(t, "html"), r))
			for _, fetch := range []string{"<script", "<link", "<iframe", "<img", "<object", "<form", "url(", "@import"} {
				if strings.Contains(page, fetch) {
					t.Errorf("the page is not self-contained: %s", around(page, fetch))
				}
			}
		})
	}
}

func TestJSONIsAsDocumented(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile("../docs/reports/report.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	reports := hostileReports("text")
	reports["sample"], reports["empty"] = sample(), Report{}
	for name, r := range reports {
		t.Run(name, func(t *testing.T) {
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(render(t, format(t, "json"), r)))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(value); err != nil {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("refuses", func(t *testing.T) { // a schema that takes anything documents nothing
		for _, bad := range []string{`{}`, `{"format":2,"title":"","outcome":"held","exit":0,"counts":{},"runs":[]}`} {
			var value any
			if err := json.Unmarshal([]byte(bad), &value); err != nil {
				t.Fatal(err)
			}
			if schema.Validate(value) == nil {
				t.Errorf("the schema accepts %s", bad)
			}
		}
	})
}

func TestTerminalIsNoWiderThanItSays(t *testing.T) {
	reports := map[string]Report{"sample": sample(), "hostile": filled(hostile, 2), "wide": filled(strings.Repeat("漢字", 300), 2), "long ID": filled(strings.Repeat("x", 5000), 2)}
	for name, r := range reports {
		t.Run(name, func(t *testing.T) {
			for line := range strings.Lines(string(render(t, format(t, "terminal"), r))) {
				line = strings.TrimSuffix(line, "\n")
				copied := strings.HasPrefix(line, "  evidence") || strings.HasPrefix(line, "  replay")
				if n := runewidth.StringWidth(line); n > usualWidth && !copied {
					t.Errorf("%d cells: %s", n, line)
				}
			}
		})
	}
}

func TestThousandRunsStayBounded(t *testing.T) {
	one := sample()
	r := Report{Title: "a thousand"}
	for i := range 1000 {
		run := one.Runs[i%len(one.Runs)]
		run.Dir = fmt.Sprintf("runs/%d", i)
		r.Runs = append(r.Runs, run)
	}
	limit := map[string]int{"terminal": 200 << 10, "markdown": 1 << 20, "html": 8 << 20, "junit": 8 << 20, "json": 32 << 20}
	for _, f := range Formats() {
		t.Run(f.Name, func(t *testing.T) {
			if n := len(render(t, f, r)); n > limit[f.Name] {
				t.Errorf("%d bytes, more than %d", n, limit[f.Name])
			}
		})
	}
	t.Run("violations are never among those left out", func(t *testing.T) {
		quiet := Report{}
		for range 2000 {
			quiet.Runs = append(quiet.Runs, sampleBaseline())
		}
		quiet.Runs = append(quiet.Runs, sampleBrokerKilled())
		for _, f := range Formats() {
			if !bytes.Contains(render(t, f, quiet), []byte("broker-killed")) {
				t.Errorf("%s leaves out the one run that matters", f.Name)
			}
		}
	})
}

func format(t *testing.T, name string) Format {
	t.Helper()
	for _, f := range Formats() {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no format %q", name)
	return Format{}
}
