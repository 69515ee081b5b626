package process_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
)

// history is a sink that keeps its events.
type history struct {
	mu     sync.Mutex
	events []evidence.Event
}

func (h *history) Record(e evidence.Event) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
	return uint64(len(h.events))
}

func (h *history) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for _, e := range h.events {
		b.WriteString(e.Kind.String())
		if e.Exit != nil && !e.Exit.Ordered {
			b.WriteString("!")
		}
		b.WriteString(" ")
	}
	return b.String()
}

// logFile counts how often it was closed.
type logFile struct {
	strings.Builder
	closed int
}

func (l *logFile) Close() error { l.closed++; return nil }

// shell starts a shell that prints something and then waits.
func shell(script string, ready func(context.Context) error) process.StartFunc {
	return func(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
		p, err := process.StartProgram(ctx, process.ProgramOptions{Path: "/bin/sh", Args: []string{"-c", script}, Log: log, Ready: ready, Exited: exited})
		return p, nil, err
	}
}

func atOnce(context.Context) error { return nil }

func never(context.Context) error { return errors.New("nobody answers") }

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestServerLives(t *testing.T) {
	ctx, h, log := bounded(t), &history{}, &logFile{}
	s := process.NewServer("broker", h, log, shell("exec sleep 100", atOnce))
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	if s.Running() || s.Untouched() {
		t.Error("it runs before it was started")
	}
	if s.Kill(ctx) == nil {
		t.Error("what was never started was killed")
	}
	must("start", s.Restart(ctx))
	if !s.Untouched() {
		t.Error("a started server counts as struck")
	}
	if s.Restart(ctx) == nil {
		t.Error("it was started twice")
	}
	must("pause", s.Pause(ctx))
	must("continue", s.Continue(ctx))
	if !s.Running() || s.Untouched() {
		t.Error("after a pause it runs and was struck")
	}
	must("kill", s.Kill(ctx))
	if s.Running() {
		t.Error("it runs after a kill")
	}
	must("start again", s.Restart(ctx))
	must("close", s.Close(ctx))
	if want := "process-started process-exited process-started process-exited "; h.String() != want {
		t.Errorf("recorded %q, want %q", h, want)
	}
	if log.closed != 1 {
		t.Errorf("the log was closed %d times", log.closed)
	}
}

func TestServerThatDoesNotStartHasNoLife(t *testing.T) {
	ctx, h := bounded(t), &history{}
	s := process.NewServer("broker", h, &logFile{}, shell("exit 1", never))
	if err := s.Restart(ctx); err == nil {
		t.Error("it was started")
	}
	if h.String() != "" || s.Running() {
		t.Errorf("recorded %q, running %v", h, s.Running())
	}
}

func TestServerTellsOfADeathThatNobodyOrdered(t *testing.T) {
	ctx, h := bounded(t), &history{}
	p, _, err := shell("exit 3", atOnce)(ctx, io.Discard, func(e process.Exit) {
		h.Record(evidence.Event{Kind: evidence.ProcessExited, Exit: &evidence.ExitInfo{Code: e.Code, Ordered: e.Ordered}})
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-ctx.Done():
		t.Fatal("it did not end")
	}
	if h.String() != "process-exited! " || p.Exit().Code != 3 {
		t.Errorf("recorded %q, exit %+v", h, p.Exit())
	}
}

func TestProgramThatDoesNotStop(t *testing.T) {
	ctx := bounded(t)
	deaf := filepath.Join(t.TempDir(), "deaf")
	isDeaf := func(context.Context) error { _, err := os.Stat(deaf); return err }
	p, _, err := shell("trap '' TERM; touch "+deaf+"; while :; do sleep 1; done", isDeaf)(ctx, io.Discard, func(process.Exit) {})
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := p.Stop(short); !errors.Is(err, process.ErrNoOrderlyEnd) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop gave %v", err)
	}
	if e := p.Exit(); e.Waited < 50*time.Millisecond || e.Signal != "killed" || !e.Ordered {
		t.Errorf("exit %+v", e)
	}
}

func TestProgramThatIsNotReady(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"ends first", "echo the port is taken >&2; exit 7", "the port is taken"},
		{"never answers", "exec sleep 100", "nobody answers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _, err := shell(c.script, never)(ctx, io.Discard, func(process.Exit) {})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
		})
	}
	_, err := process.StartProgram(bounded(t), process.ProgramOptions{Path: "/no/such/program", Ready: atOnce})
	if err == nil {
		t.Error("a program that does not exist was started")
	}
}

func TestPool(t *testing.T) {
	ctx, pool := bounded(t), process.NewPool()
	open := func() *process.Server {
		s := process.NewServer("broker", &history{}, &logFile{}, shell("exec sleep 100", atOnce))
		if err := s.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		return s
	}
	whole, struck := open(), open()
	if err := struck.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(whole.Detach(), pool.Put(ctx, "a", whole), pool.Put(ctx, "a", struck)); err != nil {
		t.Fatal(err)
	}
	if pool.Idle() != 1 {
		t.Errorf("%d servers wait, want the one that was not struck", pool.Idle())
	}
	if _, ok := process.Take[*process.Server](ctx, pool, "b"); ok {
		t.Error("a server of another key was given")
	}
	again, ok := process.Take[*process.Server](ctx, pool, "a")
	if !ok || again != whole {
		t.Fatal("the server that was put back was not given")
	}
	next := &history{}
	again.Attach(next, &logFile{})
	if err := again.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if want := "process-started process-exited "; next.String() != want {
		t.Errorf("the second run recorded %q, want %q", next, want)
	}
	if err := errors.Join(again.Close(ctx), pool.Put(ctx, "a", open()), pool.Close(ctx)); err != nil {
		t.Fatal(err)
	}
	late := open()
	if err := pool.Put(ctx, "a", late); err != nil || late.Running() {
		t.Errorf("a closed pool has kept a server (%v)", err)
	}
	var none *process.Pool
	if _, ok := process.Take[*process.Server](ctx, none, "a"); ok || none.Idle() != 0 || none.Close(ctx) != nil {
		t.Error("no pool keeps something")
	}
}
