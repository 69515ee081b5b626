package evidence

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		child()
	}
	goleak.VerifyTestMain(m)
}

func begin(t testing.TB) *Recorder {
	t.Helper()
	r, err := Create(filepath.Join(t.TempDir(), "run"), Manifest{Run: "r", Scale: 1, Versions: map[string]string{"a": "1"}}, []byte("scenario s\n"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(End{How: EndCancelled}) })
	return r
}

func history(t testing.TB, dir string) *History {
	t.Helper()
	run, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	h, err := run.History()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// events returns copies of all events; an error fails the test.
func events(t testing.TB, h *History) (all []Event) {
	t.Helper()
	for e, err := range h.Events {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, *e)
	}
	return all
}

func TestARunIsReadableWhileItGoesOnAndAfterItsEnd(t *testing.T) {
	r := begin(t)
	first := r.Record(Event{Kind: PublishCalled, Actor: "p1", PublishID: "p1-1-1"})
	second := r.Record(Event{Kind: Noted, At: 42})
	if first != 1 || second != 2 {
		t.Fatalf("numbers %d and %d, want 1 and 2", first, second)
	}
	rows := []StoredRow{{State: RowPending, PublishID: "p1-1-1"}, {State: RowDead, Reason: "tried"}}
	for _, s := range []Snapshot{
		{Checkpoint: "start", Source: SourceBroker, Trust: CountsOnly, Count: 12},
		{Checkpoint: "end", Source: SourceBroker, Trust: Exact, Rows: rows},
		{Checkpoint: "end", Source: SourceBusiness, Trust: Exact},
	} {
		if err := r.WriteSnapshot(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.UpdateManifest(func(m *Manifest) { m.Versions["broker"] = "2" }); err != nil {
		t.Fatal(err)
	}
	check := func(when string, ended bool) {
		h := history(t, r.Dir())
		for pass := range 2 {
			got := events(t, h)
			if len(got) != 2 || got[0].PublishID != "p1-1-1" || got[0].At <= 0 || got[1].At != 42 {
				t.Fatalf("%s, pass %d: %+v", when, pass, got)
			}
		}
		if len(h.Snapshots) != 3 || h.Snapshots[0].Count != 12 || len(h.Snapshots[1].Rows) != 2 || h.Snapshots[1].Rows[1] != rows[1] {
			t.Fatalf("%s: snapshots %+v", when, h.Snapshots)
		}
		if h.Truncated || (h.Manifest.End != nil) != ended || h.Manifest.Versions["broker"] != "2" {
			t.Fatalf("%s: truncated %v, manifest %+v", when, h.Truncated, h.Manifest)
		}
	}
	check("plain", false)
	if err := r.Close(End{How: EndCompleted}); err != nil {
		t.Fatal(err)
	}
	check("compressed", true)
	for _, name := range []string{eventsFile, rowsFile} {
		if _, err := os.Stat(filepath.Join(r.Dir(), name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there beside the compressed file", name)
		}
	}
	if end := history(t, r.Dir()).Manifest.End; end.How != EndCompleted || end.Events != 2 || end.After <= 0 {
		t.Errorf("end %+v", end)
	}
	if n := r.Record(Event{Kind: Noted}); n != 0 || !errors.Is(r.Err(), ErrClosed) {
		t.Errorf("recorded as %d after the end, error %v", n, r.Err())
	}
}

func TestCreateRefusesAFolderThatIsNotItsOwn(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, want string }{
		{dir, "not empty (it holds file)"},
		{file, "could not be created"},
	} {
		if _, err := Create(c.dir, Manifest{Scale: 1}, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.dir, err, c.want)
		}
	}
}

func TestAFailedCreateLeavesTheFolderEmpty(t *testing.T) {
	dir := t.TempDir()
	// A year beyond 9999 is the one manifest value that JSON cannot hold.
	if _, err := Create(dir, Manifest{Scale: 1, StartedAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, nil); err == nil {
		t.Fatal("a manifest that cannot be written was")
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%s was left behind", left[0].Name())
	}
}

// fullDisk accepts left bytes, then fails in the middle of a write as a full
// disk does.
type fullDisk struct {
	io.WriteCloser
	left int
}

func (d *fullDisk) Write(p []byte) (int, error) {
	if len(p) <= d.left {
		d.left -= len(p)
		return d.WriteCloser.Write(p)
	}
	n, _ := d.WriteCloser.Write(p[:d.left])
	d.left = 0
	return n, syscall.ENOSPC
}

func TestAFullDiskEndsTheRunAsAFailure(t *testing.T) {
	r := begin(t)
	r.events.f = &fullDisk{r.events.f, 150}
	var last uint64
	for range 10 {
		if n := r.Record(Event{Kind: Noted, Reason: "some words"}); n > 0 {
			last = n
		}
	}
	select {
	case <-r.Failed():
	default:
		t.Fatal("Failed is not closed")
	}
	if !errors.Is(r.Err(), syscall.ENOSPC) || last == 0 || last == 10 {
		t.Fatalf("after %d events: %v", last, r.Err())
	}
	if h := history(t, r.Dir()); !h.Truncated || len(events(t, h)) != int(last) {
		t.Errorf("before the end: truncated %v, %d events of %d", h.Truncated, len(events(t, h)), last)
	}
	if err := r.WriteSnapshot(Snapshot{Source: SourceBroker}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a snapshot after the failure: %v", err)
	}
	if err := r.Close(End{How: EndCompleted}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Close: %v", err)
	}
	h := history(t, r.Dir())
	if got := events(t, h); uint64(len(got)) != last || h.Truncated {
		t.Errorf("%d events of %d, truncated %v", len(got), last, h.Truncated)
	}
	if end := h.Manifest.End; end.How != EndFailed || !strings.Contains(end.Reason, "disk full") {
		t.Errorf("end %+v", end)
	}
}

func TestACloseThatCannotCompressLeavesThePlainFiles(t *testing.T) {
	r := begin(t)
	r.Record(Event{Kind: Noted})
	r.events.size++ // as if the file had been truncated
	if err := r.Close(End{How: EndCompleted}); err == nil {
		t.Fatal("Close says that all is well")
	}
	h := history(t, r.Dir())
	if h.Damage != "" {
		t.Errorf("the plain files are not sealed: %s", h.Damage)
	}
	if len(events(t, h)) != 1 || h.Manifest.End == nil || h.Manifest.End.How != EndFailed {
		t.Errorf("manifest's end %+v", h.Manifest.End)
	}
}

func TestAnUnnamedValueIsNeverWritten(t *testing.T) {
	for _, e := range []Event{{}, {Kind: Kind(len(kindNames))}, {Kind: Noted, Phase: 99}, {Kind: Noted, Acceptance: 99},
		{Kind: Noted, Reason: strings.Repeat("x", maxLine)}} {
		r := begin(t)
		if n := r.Record(e); n != 0 || r.Err() == nil {
			t.Errorf("%s recorded as %d, error %v", e.Kind, n, r.Err())
		}
		if got := events(t, history(t, r.Dir())); len(got) != 0 {
			t.Errorf("on disk: %+v", got)
		}
	}
}

func TestObserversSeeEveryEventInOrderWhenItIsOnDisk(t *testing.T) {
	r := begin(t)
	const actors, each = 8, 50
	var seen []uint64
	onDisk := true
	cancel := r.Observe(func(e Event) {
		seen = append(seen, e.Seq)
		info, err := os.Stat(filepath.Join(r.Dir(), eventsFile))
		onDisk = onDisk && err == nil && info.Size() == r.events.size
	})
	var wg sync.WaitGroup
	for a := range actors {
		wg.Go(func() {
			for range each {
				r.Record(Event{Kind: Noted, Actor: fmt.Sprint(a)})
			}
		})
	}
	wg.Wait()
	cancel()
	r.Record(Event{Kind: Noted})
	if len(seen) != actors*each || !onDisk {
		t.Fatalf("saw %d events of %d, on disk %v", len(seen), actors*each, onDisk)
	}
	for i, n := range seen {
		if n != uint64(i+1) {
			t.Fatalf("event %d came as number %d", n, i+1)
		}
	}
	if got := events(t, history(t, r.Dir())); len(got) != actors*each+1 {
		t.Errorf("%d events on disk", len(got))
	}
}

func TestALogIsBoundedAndSaysSo(t *testing.T) {
	r := begin(t)
	open := func() io.WriteCloser {
		l, err := r.Log("broker")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	if _, err := r.Log("broker"); err == nil {
		t.Error("a log was opened twice")
	}
	chunk := bytes.Repeat([]byte("x"), maxLog/2+1)
	for range 3 {
		if n, err := l.Write(chunk); n != len(chunk) || err != nil {
			t.Fatalf("a log's write gives %d, %v", n, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open() // as for a restarted broker
	fmt.Fprintln(l, "too late")
	if err := r.Close(End{How: EndCompleted}); err != nil { // closes the log too
		t.Fatal(err)
	}
	run, err := Open(r.Dir())
	if err != nil {
		t.Fatal(err)
	}
	names, err := run.Logs()
	if err != nil || len(names) != 1 || names[0] != "broker" {
		t.Fatalf("logs %q, %v", names, err)
	}
	all, err := run.LogTail("broker", 2*maxLog)
	if err != nil || bytes.Count(all, []byte("x")) != maxLog || !bytes.HasSuffix(all, fmt.Appendf(nil, "\n[custody: log cut here, at its bound of %d bytes]\n", maxLog)) {
		t.Errorf("%d bytes, %v", len(all), err)
	}
	if tail, err := run.LogTail("broker", 8); string(tail) != " bytes]\n" {
		t.Errorf("tail %q, %v", tail, err)
	}
	for _, bad := range []string{"", "..", "a/b", ".hidden"} {
		if _, err := begin(t).Log(bad); err == nil {
			t.Errorf("%q names a log", bad)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	r := begin(b)
	e := benchEvent(2)
	b.ReportAllocs()
	for b.Loop() {
		r.Record(e)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	if err := r.Err(); err != nil {
		b.Fatal(err)
	}
}
