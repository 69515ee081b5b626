package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
)

// TestKilledHarness checks that a harness killed in any phase leaves readable
// evidence, is never held, and takes its processes with it.
func TestKilledHarness(t *testing.T) {
	for _, c := range []struct{ phase, scenario, event string }{
		{"prepare", "expiry", `"kind":"process-started"`},
		{"act", "expiry", `"kind":"delivered"`},
		{"heal", "broker-killed", `"phase":"heal"`},
		{"drain", "expiry", `"phase":"drain"`},
		{"watch", "expiry", `"phase":"watch"`},
	} {
		t.Run(c.phase, func(t *testing.T) {
			t.Parallel()
			killed(t, c.scenario, c.event)
		})
	}
}

func killed(t *testing.T, scenario, event string) {
	dir := filepath.Join(t.TempDir(), "run")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	harness := exec.CommandContext(ctx, "custody", "run", scenario, "--out", dir)
	harness.Env = append(os.Environ(), "TMPDIR="+t.TempDir()) // nothing else removes the run's private directory
	if err := harness.Start(); err != nil {
		t.Fatal(err)
	}
	events := filepath.Join(dir, scenario, "events.jsonl")
	until(t, ctx, event, func() bool {
		b, err := os.ReadFile(events)
		return err == nil && bytes.Contains(b, []byte(event))
	})
	children := childrenOf(t, harness.Process.Pid)
	if len(children) == 0 {
		t.Fatal("the run has no process of the system under test")
	}
	if err := harness.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = harness.Wait() // it was killed
	until(t, ctx, "its processes are gone", func() bool {
		for _, pid := range children {
			if syscall.Kill(pid, 0) == nil {
				return false
			}
		}
		return true
	})

	run, err := evidence.Open(filepath.Join(dir, scenario))
	if err != nil {
		t.Fatal(err)
	}
	if run.Manifest().End != nil {
		t.Error("the manifest says that the run ended")
	}
	out, err := exec.CommandContext(ctx, "custody", "judge", filepath.Join(dir, scenario)).CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != guarantees.ExitUnmeasured {
		t.Errorf("judging it: %v, want exit %d\n%s", err, guarantees.ExitUnmeasured, out)
	}
	if bytes.Contains(out, []byte("✓ held")) {
		t.Errorf("it is held:\n%s", out)
	}
}

// TestHarnessThatStoodStill checks that a harness that was suspended claims
// nothing about lateness.
func TestHarnessThatStoodStill(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	harness := exec.CommandContext(ctx, "custody", "run", "expiry", "--out", dir)
	harness.Stdout, harness.Stderr = &out, &out
	if err := harness.Start(); err != nil {
		t.Fatal(err)
	}
	events := filepath.Join(dir, "expiry", "events.jsonl")
	until(t, ctx, "its first delivery", func() bool {
		b, err := os.ReadFile(events)
		return err == nil && bytes.Contains(b, []byte(`"kind":"delivered"`))
	})
	if err := harness.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Duration(2 * runner.DefaultScale * float64(time.Second))) // twice the bound of a frame in flight
	if err := harness.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var ended *exec.ExitError
	if err := harness.Wait(); !errors.As(err, &ended) || ended.ExitCode() != guarantees.ExitUnmeasured {
		t.Errorf("it ended with %v, want exit %d", err, guarantees.ExitUnmeasured)
	}
	if !strings.Contains(out.String(), "the harness stood still for") || strings.Contains(out.String(), "✓ held") {
		t.Errorf("it says:\n%s", &out)
	}
}

// childrenOf lists the child processes of a process.
func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	lists, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var children []int
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue // a thread that has ended meanwhile
		}
		for _, word := range strings.Fields(string(b)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			children = append(children, child)
		}
	}
	return children
}

func until(t *testing.T, ctx context.Context, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not in time", what)
		}
	}
}
