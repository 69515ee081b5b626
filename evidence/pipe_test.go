package evidence

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childVariable makes this test binary the child of
// TestAKilledChildLeavesItsEvidence; it holds the run's base.
const childVariable = "CUSTODY_EVIDENCE_TEST_CHILD"

const childEvents = 100

// child records to the inherited pipe, then blocks until it is killed.
func child() {
	base, err := strconv.ParseInt(os.Getenv(childVariable), 10, 64)
	if err != nil {
		os.Exit(2)
	}
	pipe := os.NewFile(3, "evidence")
	sink := NewPipeSink(pipe, base)
	for i := range childEvents {
		sink.Record(Event{Kind: Delivered, Call: uint64(i + 1), Items: []FrameItem{{PublishID: strconv.Itoa(i)}}})
	}
	if sink.Err() != nil {
		os.Exit(3)
	}
	_, _ = pipe.WriteString(`{"seq":0,"at":1,"ki`) // dies in the middle of a write
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func TestAKilledChildLeavesItsEvidence(t *testing.T) {
	r := begin(t)
	var kept [][]FrameItem
	defer r.Observe(func(e Event) { kept = append(kept, e.Items) })()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+strconv.FormatInt(r.Base(), 10))
	cmd.ExtraFiles = []*os.File{write}
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child was to die of SIGKILL: %v", err)
	}
	// Read the evidence only now that the child is dead.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.Adopt(ctx, read, "c1"); err != nil {
		t.Fatal(err)
	}
	now, err := monotonic()
	if err != nil {
		t.Fatal(err)
	}
	got := events(t, history(t, r.Dir()))
	if len(got) != childEvents+1 {
		t.Fatalf("%d events, want %d and one torn", len(got), childEvents)
	}
	for i, e := range got[:childEvents] {
		if e.Call != uint64(i+1) || e.Actor != "c1" || e.At <= 0 || e.At > time.Duration(now-r.Base()) {
			t.Fatalf("event %d: %+v", i, e)
		}
		if kept[i][0].PublishID != strconv.Itoa(i) {
			t.Fatalf("what an observer kept of event %d became %q", i, kept[i][0].PublishID)
		}
	}
	if torn := got[childEvents]; torn.Kind != Noted || !strings.Contains(torn.Reason, `ki"`) {
		t.Errorf("the torn line was recorded as %+v", torn)
	}
}

func TestAdoptRefusesWhatIsNoEvent(t *testing.T) {
	for name, in := range map[string]string{
		"no JSON":      "{\"kind\":\"noted\"}\nhello\n{\"kind\":\"noted\"}\n",
		"unknown kind": "{\"kind\":\"noted\"}\n{\"kind\":\"never-heard-of\"}\n",
		"no kind":      "{\"kind\":\"noted\"}\n{}\n",
		"too long":     "{\"kind\":\"noted\"}\n" + strings.Repeat("x", maxLine+1),
	} {
		r := begin(t)
		if err := r.Adopt(t.Context(), strings.NewReader(in), "c1"); err == nil {
			t.Errorf("%s: adopted", name)
		}
		if got := events(t, history(t, r.Dir())); len(got) != 1 {
			t.Errorf("%s: %d events on disk, want the one before", name, len(got))
		}
	}
}

func TestAdoptEndsWithItsContext(t *testing.T) {
	r := begin(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan struct{})
	defer r.Observe(func(Event) { close(seen) })()
	done := make(chan error, 1)
	go func() { done <- r.Adopt(ctx, read, "c1") }()
	NewPipeSink(write, r.Base()).Record(Event{Kind: Noted})
	<-seen // Adopt is reading, and waits for more
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("still reading a pipe that nobody writes")
	}
}

func TestAPipeSinkThatFailsStopsWriting(t *testing.T) {
	var b bytes.Buffer
	sink := NewPipeSink(&fullDisk{nopCloser{&b}, 10}, 0)
	sink.Record(Event{Kind: Noted})
	sink.Record(Event{Kind: Noted})
	if sink.Err() == nil || b.Len() != 10 {
		t.Errorf("error %v, wrote %q", sink.Err(), b.String())
	}
	if sink := NewPipeSink(&b, 0); sink.Record(Event{}) != 0 || sink.Err() == nil {
		t.Error("an event without a kind was sent")
	}
}

type nopCloser struct{ *bytes.Buffer }

func (nopCloser) Close() error { return nil }
