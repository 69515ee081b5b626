package process_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/custodymq/custody/process"
)

// A family is struck as one, also those of its members that have sessions of
// their own.
func TestAFamilyIsStruckTogether(t *testing.T) {
	dir := t.TempDir()
	const parent = `setsid sh -c 'echo $$ >session; sleep 600' & sleep 600 & echo $! >child; wait`
	p, err := process.StartProgram(t.Context(), process.ProgramOptions{Path: "sh", Args: []string{"-c", parent}, Dir: dir, Family: true,
		Ready: func(context.Context) error {
			for _, name := range []string{"session", "child"} {
				if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.HasSuffix(b, []byte("\n")) {
					return errors.New("not yet")
				}
			}
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	state := func(name string) string {
		pid, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if err != nil {
			return "gone"
		}
		return string(stat[bytes.LastIndexByte(stat, ')')+2:][:1])
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(p.Pause(t.Context()))
	if s, c := state("session"), state("child"); s != "T" || c != "T" {
		t.Errorf("paused, its children are %s and %s, want T", s, c)
	}
	must(p.Continue(t.Context()))
	deadline := time.Now().Add(10 * time.Second)
	for state("session") == "T" || state("child") == "T" {
		if time.Now().After(deadline) {
			t.Fatal("they do not go on")
		}
	}
	must(p.Pause(t.Context()))
	must(p.Kill(t.Context()))
	for _, name := range []string{"session", "child"} {
		if s := state(name); s != "gone" && s != "Z" && s != "X" {
			t.Errorf("%s is still there after the kill: %s", name, s)
		}
	}
	if err := process.Strike(t.Context(), p, process.Process.Kill); !errors.Is(err, process.ErrNotRunning) {
		t.Errorf("killed again: %v", err)
	}
}

// An orderly end may have a signal of its own.
func TestAnEndBySignal(t *testing.T) {
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	p, err := process.StartProgram(t.Context(), process.ProgramOptions{Path: "sh", Dir: dir, End: syscall.SIGUSR1,
		Args:  []string{"-c", `trap 'exit 7' USR1; echo >ready; while :; do sleep 0.01; done`},
		Ready: func(context.Context) error { _, err := os.Stat(ready); return err }})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(t.Context()); err != nil || p.Exit().Code != 7 || !p.Exit().Ordered {
		t.Errorf("it ended with %+v, %v; want code 7, as ordered", p.Exit(), err)
	}
}
