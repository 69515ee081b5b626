package runner

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// idle is a system in which nothing happens.
type idle struct{}

func (idle) Describe() systems.Description                                  { return systems.Description{System: "idle"} }
func (i idle) Start(context.Context, systems.Env) (systems.Instance, error) { return i, nil }
func (idle) Stop(context.Context) error                                     { return nil }
func (i idle) Producer(context.Context, systems.ProducerOptions) (systems.Producer, error) {
	return i, nil
}
func (i idle) Consumer(context.Context, systems.ConsumerOptions) (systems.Consumer, error) {
	return i, nil
}
func (idle) Receive(context.Context) (systems.Delivery, error)              { return nil, systems.ErrDisconnected }
func (idle) Send(context.Context, systems.Message) (systems.Pending, error) { return nil, nil }
func (idle) Close(context.Context) error                                    { return nil }

// jumping is a machine whose clock jumps after a while.
type jumping struct {
	*tasks.Real
	reads atomic.Int32
	by    time.Duration
}

func (j *jumping) Wall() time.Time {
	if j.reads.Add(1) < 10 {
		return time.Now()
	}
	return time.Now().Add(j.by)
}

func TestClockThatJumpsEndsTheRun(t *testing.T) {
	s, err := script.Parse("", "scenario clock\nproducer p1 to orders\nawait connected p1 at least 2 times within 30s\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range []time.Duration{3 * time.Hour, -3 * time.Hour} {
		began := time.Now()
		dir := filepath.Join(t.TempDir(), "run")
		err := runIn(t.Context(), Options{System: idle{}, Scenario: s, Dir: dir}, &jumping{Real: tasks.NewReal(func() time.Duration { return time.Since(began) }), by: by}, nil)
		if err == nil || !strings.Contains(err.Error(), "the machine's clock jumped by "+by.String()) {
			t.Errorf("%v: the run ended with %v", by, err)
		}
		kept, err := evidence.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if end := kept.Manifest().End; end == nil || end.How != evidence.EndFailed {
			t.Errorf("%v: the evidence ends with %+v", by, end)
		}
	}
}

// A stall too short to end the run is recorded.
func TestStandstillIsRecorded(t *testing.T) {
	s, err := script.Parse("", "scenario still\nproducer p1 to orders\nawait connected p1 at least 2 times within 30s\n")
	if err != nil {
		t.Fatal(err)
	}
	began, dir := time.Now(), filepath.Join(t.TempDir(), "run")
	var reads atomic.Int32
	now := func() time.Duration {
		if reads.Add(1) < 20 {
			return time.Since(began)
		}
		return time.Since(began) + 400*time.Millisecond
	}
	rt := &jumping{Real: tasks.NewReal(now), by: 3 * time.Hour} // the clock jump ends the run
	rt.reads.Store(-100)
	if err := runIn(t.Context(), Options{System: idle{}, Scenario: s, Dir: dir, Scale: 1}, rt, nil); err == nil {
		t.Fatal("the run did not end as its clock jumped")
	}
	kept, err := evidence.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	h, err := kept.History()
	if err != nil {
		t.Fatal(err)
	}
	stood := 0
	for e, err := range h.Events {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == evidence.ProcessPaused && e.Actor == "harness" {
			stood++
		}
	}
	if stood != 1 {
		t.Errorf("%d standstills are on record, and there was one", stood)
	}
}
