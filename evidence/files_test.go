package evidence

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// golden copies a handmade run that represents every run of format 1 ever
// made. Never regenerate it: it must stay readable forever.
func golden(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "run-v1"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func rewrite(t testing.TB, dir, name string, change func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(b), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func replaced(old, new string) func([]byte) []byte {
	return func(b []byte) []byte { return bytes.Replace(b, []byte(old), []byte(new), 1) }
}

func noEnd(t testing.TB, dir string) {
	rewrite(t, dir, manifestFile, replaced(`"end"`, `"once"`))
}

func TestTheGoldenRunIsRead(t *testing.T) {
	dir := golden(t)
	h := history(t, dir)
	all := events(t, h)
	if len(all) != 9 || h.Truncated {
		t.Fatalf("%d events, truncated %v", len(all), h.Truncated)
	}
	if e := all[2]; e.Kind != PublishReturned || e.Acceptance != Accepted || e.HeldBy != HeldByStore || e.Call != 1 {
		t.Errorf("event 3: %+v", e)
	}
	if len(h.Snapshots) != 2 || len(h.Snapshots[1].Rows) != 2 || h.Snapshots[1].Rows[0].State != RowEffect {
		t.Errorf("snapshots %+v", h.Snapshots)
	}
	if m := h.Manifest; m.Run != "golden" || m.Claims[0].Under[1] != BrokerCrash || m.End.How != EndCompleted {
		t.Errorf("manifest %+v", m)
	}
	run, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := run.Script(); err != nil || !bytes.HasPrefix(s, []byte("scenario ack-lost\n")) {
		t.Errorf("script %q, %v", s, err)
	}
	if tail, err := run.LogTail("broker", 8); err != nil || string(tail) != "stopped\n" {
		t.Errorf("log %q, %v", tail, err)
	}
	for _, v := range []string{"one", "two"} {
		if err := run.WriteVerdict([]byte(v)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, verdictFile)); err != nil || string(got) != v {
			t.Errorf("verdict %q, %v", got, err)
		}
	}
}

func TestOpenRefusesWhatItCannotRead(t *testing.T) {
	whole := func(content string) func([]byte) []byte { return func([]byte) []byte { return []byte(content) } }
	for _, c := range []struct {
		name   string
		change func([]byte) []byte
		newer  bool
		want   []string
	}{
		{"newer, with another type", whole(fmt.Sprintf(`{"format": %d, "profile": "p"}`, FormatVersion+1)), true,
			[]string{manifestFile, fmt.Sprint("format ", FormatVersion+1), "use a newer custody"}},
		{"older than the oldest", replaced(`"format": 1`, `"format": 0`), false, []string{manifestFile, "format 0"}},
		{"no JSON", whole("{"), false, []string{manifestFile}},
		{"wrong type", replaced(`"seed": 7`, `"seed": "x"`), false, []string{manifestFile, "seed"}},
	} {
		dir := golden(t)
		rewrite(t, dir, manifestFile, c.change)
		_, err := Open(dir)
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q in it", c.name, err, w)
			}
		}
		if c.newer != errors.Is(err, ErrNewerFormat) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder: %v", err)
	}
}

func TestEveryCutOfAPlainFileIsReadable(t *testing.T) {
	source := golden(t)
	noEnd(t, source) // the harness was killed
	whole, err := os.ReadFile(filepath.Join(source, eventsFile))
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) + 1 {
		if err := os.WriteFile(filepath.Join(source, eventsFile), whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		h := history(t, source)
		want := bytes.Count(whole[:cut], []byte("\n"))
		torn := cut > 0 && whole[cut-1] != '\n'
		if got := events(t, h); len(got) != want || h.Truncated != torn {
			t.Fatalf("cut at %d: %d events, want %d; truncated %v, want %v", cut, len(got), want, h.Truncated, torn)
		}
	}
}

func TestEveryCutOfRowsGivesWholeSnapshotsOnly(t *testing.T) {
	dir := golden(t)
	noEnd(t, dir)
	whole, err := os.ReadFile(filepath.Join(dir, rowsFile))
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.IndexByte(whole, '\n') + 1
	for cut := range len(whole) + 1 {
		if err := os.WriteFile(filepath.Join(dir, rowsFile), whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		h := history(t, dir)
		want, truncated := 0, cut > 0
		if cut >= first {
			want, truncated = 1, cut > first
		}
		if cut == len(whole) {
			want, truncated = 2, false
		}
		if len(h.Snapshots) != want || h.Truncated != truncated {
			t.Fatalf("cut at %d: %d snapshots, want %d; truncated %v, want %v", cut, len(h.Snapshots), want, h.Truncated, truncated)
		}
	}
}

func firstError(dir string) error {
	run, err := Open(dir)
	if err != nil {
		return err
	}
	h, err := run.History()
	if err != nil {
		return err
	}
	if h.Damage != "" {
		return errors.New(h.Damage)
	}
	for _, err := range h.Events {
		if err != nil {
			return err
		}
	}
	return nil
}

func packed(t testing.TB, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(b, nil)
}

func TestDamageInTheMiddleNamesFileAndLine(t *testing.T) {
	for _, c := range []struct {
		name   string
		file   string
		change func([]byte) []byte
		want   string
	}{
		{"corrupt event", eventsFile, replaced(`"kind":"delivered"`, `"kind":"delivered`), "events.jsonl line 4:"},
		{"lost event", eventsFile, func(b []byte) []byte { return b[bytes.IndexByte(b, '\n')+1:] }, "events.jsonl line 1: event number 2 where 1 was expected"},
		{"lost last event", eventsFile, func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] }, "has 8 events and the manifest says 9"},
		{"endless line", eventsFile, replaced(`"reason":"end"`, `"reason":"`+strings.Repeat("x", maxLine)+`"`), "events.jsonl line 8: longer than the bound"},
		{"corrupt row", rowsFile, replaced(`{"state":"effect"`, `{"state":"efect"`), "rows.jsonl line 3:"},
		{"row without state", rowsFile, replaced(`{"state":"effect",`, `{`), "rows.jsonl line 3:"},
		{"row without snapshot", rowsFile, replaced(`"count":2`, `"count":1`), "rows.jsonl line 4: expected a snapshot"},
	} {
		for _, compressed := range []bool{false, true} {
			dir := golden(t)
			rewrite(t, dir, c.file, c.change)
			want := c.want
			if compressed {
				rewrite(t, dir, c.file, func(b []byte) []byte { return packed(t, b) })
				if err := os.Rename(filepath.Join(dir, c.file), filepath.Join(dir, c.file+packedSuffix)); err != nil {
					t.Fatal(err)
				}
				want = strings.Replace(want, ".jsonl", ".jsonl.zst", 1)
			}
			if err := firstError(dir); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, compressed %v: %v, want %q in it", c.name, compressed, err, want)
			}
		}
	}
}

func TestACutCompressedFileIsAnError(t *testing.T) {
	dir := golden(t)
	plain, err := os.ReadFile(filepath.Join(dir, eventsFile))
	if err != nil {
		t.Fatal(err)
	}
	z := packed(t, plain)
	for cut := range z {
		if err := os.WriteFile(filepath.Join(dir, eventsFile+packedSuffix), z[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		if err := firstError(dir); err == nil || !strings.Contains(err.Error(), eventsFile+packedSuffix) {
			t.Fatalf("cut at %d of %d: %v", cut, len(z), err)
		}
	}
}

// Close was killed either after the compressed file was renamed into place, or
// before.
func TestAnInterruptedCloseLeavesAReadableRun(t *testing.T) {
	dir := golden(t)
	plain, err := os.ReadFile(filepath.Join(dir, eventsFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{eventsFile + packedSuffix + tempSuffix, eventsFile + packedSuffix} {
		if err := os.WriteFile(filepath.Join(dir, name), packed(t, plain), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := events(t, history(t, dir)); len(got) != 9 {
			t.Errorf("with %s: %d events", name, len(got))
		}
	}
}

func TestHistorySaysWhichFileIsMissing(t *testing.T) {
	for _, name := range []string{eventsFile, rowsFile} {
		dir := golden(t)
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := firstError(dir); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// Breaking out of a range over Events closes the file.
func TestEventsMayBeLeftEarly(t *testing.T) {
	h := history(t, golden(t))
	for range 3 {
		for e, err := range h.Events {
			if err != nil || e.Seq != 1 {
				t.Fatalf("%+v, %v", e, err)
			}
			break
		}
	}
}

func BenchmarkDecodeFile(b *testing.B) {
	r := begin(b)
	const n = 200_000
	for i := range n {
		r.Record(benchEvent(i))
	}
	if err := r.Close(End{How: EndCompleted}); err != nil {
		b.Fatal(err)
	}
	h := history(b, r.Dir())
	b.ReportAllocs()
	for b.Loop() {
		read := 0
		for _, err := range h.Events {
			if err != nil {
				b.Fatal(err)
			}
			read++
		}
		if read != n {
			b.Fatalf("read %d", read)
		}
	}
	b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "events/s")
}
