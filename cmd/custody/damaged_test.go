package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/systems/registry"
)

// execute runs a command in this process, the way main does.
func execute(t *testing.T, args ...string) (code int, out, told string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := rootCommand()
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	var e exit
	var failed unmeasured
	switch {
	case err == nil:
	case errors.As(err, &e):
		code = int(e)
	case errors.As(err, &failed):
		code = guarantees.ExitUnmeasured
		fmt.Fprintln(&stderr, "custody:", err)
	default:
		code = guarantees.ExitUsage
		fmt.Fprintln(&stderr, "custody:", err)
	}
	return code, stdout.String(), stderr.String()
}

// made returns the evidence of a real run of a scenario.
func made(t *testing.T, scenario, defect string, want guarantees.Outcome) string {
	t.Helper()
	s, err := scenarios.Find(scenario)
	if err != nil {
		t.Fatal(err)
	}
	system, err := registry.Find("zeromq", runner.DefaultScale)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), scenario)
	j, err := scenarios.Run(t.Context(), runner.Options{System: system, Spec: "zeromq", Scenario: s, Dir: dir, Seed: 1, Scale: runner.DefaultScale, Defect: defect})
	if err != nil || j.Outcome != want {
		t.Fatalf("%s: %v: %s, %v", scenario, j.Outcome, j.Why, err)
	}
	return dir
}

func copied(t *testing.T, dir, to string) string {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func change(t *testing.T, name string, by func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, by(b), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// relined edits the lines of a compressed file and renumbers its events, so that
// none appears to be missing.
func relined(t *testing.T, name string, by func([]string) []string) {
	t.Helper()
	change(t, name, func(b []byte) []byte {
		in, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		plain, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		lines := by(strings.Split(strings.TrimSuffix(string(plain), "\n"), "\n"))
		var out bytes.Buffer
		for i, line := range lines {
			if rest, ok := strings.CutPrefix(line, `{"seq":`); ok {
				line = fmt.Sprintf(`{"seq":%d%s`, i+1, rest[strings.IndexByte(rest, ','):])
			}
			fmt.Fprintln(&out, line)
		}
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		return z.EncodeAll(out.Bytes(), nil)
	})
}

// TestAThousandDamagedCopies checks that damaged evidence yields exit code 3 and
// names the file, whatever was damaged and whatever the outcome was; it is never
// held or violated.
func TestAThousandDamagedCopies(t *testing.T) {
	draw := rand.New(rand.NewPCG(7, 7))
	held := made(t, "business-success", "", guarantees.Held)
	violated := made(t, "ack-lost", "redelivery-with-new-id", guarantees.Violated)
	files := []string{"manifest.json", "script.custody", "events.jsonl.zst", "rows.jsonl.zst"}
	anyFile := func(dir string) string {
		logs, err := filepath.Glob(filepath.Join(dir, "logs", "*"))
		if err != nil || len(logs) == 0 {
			t.Fatalf("%s has no logs: %v", dir, err)
		}
		if i := draw.IntN(len(files) + len(logs)); i < len(logs) {
			return "logs/" + filepath.Base(logs[i])
		}
		return files[draw.IntN(len(files))]
	}
	const events, rows = "events.jsonl.zst", "rows.jsonl.zst"
	damages := []struct {
		name string
		do   func(dir, other string) (file string)
	}{
		{"a flipped bit", func(dir, _ string) string {
			file := anyFile(dir)
			change(t, filepath.Join(dir, file), func(b []byte) []byte {
				if len(b) == 0 {
					return []byte{1}
				}
				b[draw.IntN(len(b))] ^= 1 << draw.IntN(8)
				return b
			})
			return file
		}},
		{"a cut", func(dir, _ string) string {
			file := files[draw.IntN(len(files))]
			change(t, filepath.Join(dir, file), func(b []byte) []byte { return b[:draw.IntN(len(b))] })
			return file
		}},
		{"something added", func(dir, _ string) string {
			file := files[draw.IntN(len(files))]
			change(t, filepath.Join(dir, file), func(b []byte) []byte { return append(b, b[len(b)-1-draw.IntN(len(b)):]...) })
			return file
		}},
		{"a file of another run", func(dir, other string) string {
			file := files[draw.IntN(len(files))]
			b, err := os.ReadFile(filepath.Join(other, file))
			if err != nil {
				t.Fatal(err)
			}
			change(t, filepath.Join(dir, file), func([]byte) []byte { return b })
			if file == "manifest.json" {
				return "events" // every other file then belongs to another run
			}
			return file
		}},
		{"a file removed", func(dir, _ string) string {
			file := anyFile(dir)
			if err := os.Remove(filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
			return file
		}},
		{"a file added", func(dir, _ string) string {
			file := []string{"events.jsonl", "rows.jsonl", "logs/more.log"}[draw.IntN(3)]
			if err := os.WriteFile(filepath.Join(dir, file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			return file
		}},
		{"a line removed", func(dir, _ string) string {
			relined(t, filepath.Join(dir, events), func(l []string) []string { i := draw.IntN(len(l)); return slices.Delete(l, i, i+1) })
			return events
		}},
		{"a line doubled", func(dir, _ string) string {
			relined(t, filepath.Join(dir, events), func(l []string) []string { i := draw.IntN(len(l)); return slices.Insert(l, i, l[i]) })
			return events
		}},
		{"a line moved", func(dir, _ string) string {
			relined(t, filepath.Join(dir, events), func(l []string) []string {
				i := draw.IntN(len(l))
				line := l[i]
				return slices.Insert(slices.Delete(l, i, i+1), (i+1+draw.IntN(len(l)-1))%len(l), line)
			})
			return events
		}},
		{"snapshots removed", func(dir, _ string) string {
			relined(t, filepath.Join(dir, rows), func(l []string) []string {
				i := draw.IntN(len(l))
				for !strings.Contains(l[i], `"checkpoint"`) {
					i--
				}
				end := i + 1
				for end < len(l) && !strings.Contains(l[end], `"checkpoint"`) {
					end++
				}
				return slices.Delete(l, i, end)
			})
			return rows
		}},
		{"a claim changed", func(dir, _ string) string {
			change(t, filepath.Join(dir, "manifest.json"), func(b []byte) []byte {
				lines := bytes.Split(b, []byte("\n"))
				i := 1 + draw.IntN(len(lines)-3)
				return bytes.Join(slices.Delete(lines, i, i+1), []byte("\n"))
			})
			return "manifest.json"
		}},
	}
	root := t.TempDir()
	const copies = 1000
	for i := range copies {
		dir, other := held, violated
		if i%2 == 1 {
			dir, other = violated, held
		}
		dir = copied(t, dir, filepath.Join(root, fmt.Sprint(i)))
		d := damages[i%len(damages)]
		file := d.do(dir, other)
		report, err := reports.Load([]string{dir})
		if err != nil { // the manifest is unreadable
			if !strings.Contains(err.Error(), file) {
				t.Errorf("copy %d, %s of %s: %v", i, d.name, file, err)
			}
		} else if j := report.Runs[0].Judgement; j.Outcome != guarantees.Inconclusive || j.Exit != guarantees.ExitUnmeasured || len(j.Broken) > 0 || !strings.Contains(j.Error, file) {
			t.Errorf("copy %d, %s of %s: %v, exit %d, error %q, broken %v", i, d.name, file, j.Outcome, j.Exit, j.Error, j.Broken)
		}
		if i < 2*len(damages) { // every command agrees
			whole := held
			for _, args := range [][]string{{"judge", dir}, {"report", dir}, {"verify", dir}, {"diff", whole, dir}, {"replay", dir, "--out", filepath.Join(root, "never")}} {
				code, out, told := execute(t, args...)
				if code != guarantees.ExitUnmeasured || !strings.Contains(told, file) || strings.Contains(out, "✓ held") || strings.Contains(out, "✗ violated") {
					t.Errorf("copy %d, %s of %s: custody %s: exit %d\n%s%s", i, d.name, file, args[0], code, out, told)
				}
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{held, violated} { // the originals are intact
		if code, out, told := execute(t, "verify", dir); code != 0 {
			t.Errorf("%s%s", out, told)
		}
	}
}
