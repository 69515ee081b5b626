package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/custodymq/custody/guarantees"
)

// running starts a long run and returns once it has a private folder in temp.
func running(t *testing.T, ctx context.Context, temp string) (harness *exec.Cmd, private string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	harness = exec.CommandContext(ctx, "custody", "run", "expiry", "--out", dir)
	harness.Env = append(os.Environ(), "TMPDIR="+temp)
	harness.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := harness.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, ctx, "its first delivery", func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "expiry", "events.jsonl"))
		return err == nil && bytes.Contains(b, []byte(`"kind":"delivered"`))
	})
	found, err := filepath.Glob(filepath.Join(temp, "custody-run-*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("private folders %q, %v", found, err)
	}
	return harness, found[0]
}

func doctorSays(t *testing.T, ctx context.Context, temp string) string {
	t.Helper()
	doctor := exec.CommandContext(ctx, "custody", "doctor", "--clean")
	doctor.Env = append(os.Environ(), "TMPDIR="+temp)
	out, err := doctor.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestDoctorKnowsALivingRun checks that age does not matter: a run suspended for
// a day is alive, one killed a moment ago is not.
func TestDoctorKnowsALivingRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	temp := t.TempDir()
	harness, private := running(t, ctx, temp)
	if err := harness.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	aged(t, private, 24*time.Hour)
	if said := doctorSays(t, ctx, temp); strings.Contains(said, private) {
		t.Errorf("of a run that stands still:\n%s", said)
	}
	if _, err := os.Stat(private); err != nil {
		t.Fatalf("the folder of a run that lives: %v", err)
	}
	if err := harness.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = harness.Wait() // it was killed
	if said := doctorSays(t, ctx, temp); !strings.Contains(said, "removed  left behind       "+private) {
		t.Errorf("of a run that was killed:\n%s", said)
	}
	if _, err := os.Stat(private); err == nil {
		t.Error("the folder of a dead run is there")
	}
}

func aged(t *testing.T, dir string, by time.Duration) {
	t.Helper()
	then := time.Now().Add(-by)
	err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(name, then, then))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDoctorLeavesAloneWhatItDoesNotKnow covers a run of another PID namespace,
// runs of unknown state, and entries that are not a run's folder.
func TestDoctorLeavesAloneWhatItDoesNotKnow(t *testing.T) {
	temp := t.TempDir()
	elsewhere := t.TempDir()
	unknown := map[string]string{
		"another-namespace": `{"pid":1073741824,"started":1,"namespace":"boot pid:[1]"}`,
		"no-mark":           "",
		"no-json":           "?",
		"no-process":        "{}",
	}
	for name, mark := range unknown {
		dir := filepath.Join(temp, "custody-run-"+name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if mark != "" {
			if err := os.WriteFile(filepath.Join(dir, "custody-harness.json"), []byte(mark), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		aged(t, dir, 24*time.Hour)
	}
	waits := filepath.Join(temp, "custody-run-waits")
	if err := errors.Join(os.Mkdir(waits, 0o755), syscall.Mkfifo(filepath.Join(waits, "custody-harness.json"), 0o600),
		os.Mkdir(filepath.Join(temp, "other"), 0o755), os.Symlink(elsewhere, filepath.Join(temp, "custody-run-link"))); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temp)
	code, said, told := execute(t, "doctor", "--clean")
	if code != guarantees.ExitHeld {
		t.Fatalf("exit %d\n%s%s", code, said, told)
	}
	for name := range unknown {
		if !strings.Contains(said, "custody-run-"+name+" is left alone") {
			t.Errorf("nothing is said of %s:\n%s", name, said)
		}
	}
	if after, err := os.ReadDir(temp); err != nil || len(after) != len(before) {
		t.Errorf("%d of %d are there, %v", len(after), len(before), err)
	}
}

// TestEverySignalThatEndsARunLeavesNothing checks that a run ended by a signal
// leaves nothing in the temporary folder, and evidence that says what happened.
func TestEverySignalThatEndsARunLeavesNothing(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			temp := t.TempDir()
			harness, _ := running(t, ctx, temp)
			if err := syscall.Kill(-harness.Process.Pid, sig); err != nil { // signal the whole process group, as a terminal does
				t.Fatal(err)
			}
			var ended *exec.ExitError
			if err := harness.Wait(); !errors.As(err, &ended) || ended.ExitCode() != guarantees.ExitUnmeasured {
				t.Errorf("it ended with %v, want exit %d", err, guarantees.ExitUnmeasured)
			}
			if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestNohupIsObeyed checks that a run started with SIGHUP ignored survives it.
func TestNohupIsObeyed(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "run")
	harness := exec.CommandContext(ctx, "sh", "-c", `trap "" HUP; exec custody run baseline --out "$0"`, dir)
	if err := harness.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, ctx, "its first event", func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "baseline", "events.jsonl"))
		return err == nil && len(b) > 0
	})
	if err := harness.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := harness.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
