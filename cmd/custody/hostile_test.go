package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
)

// foreign returns sealed evidence with an altered manifest.
func foreign(t *testing.T, change func(*evidence.Manifest)) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	const text = "scenario foreign\nproducer p1 to orders\nconsumer c1 on orders\npublish order-1 by p1\nexpect no-phantom\n"
	m := evidence.Manifest{Run: "run", System: "zeromq", Spec: "zeromq", Scenario: "foreign", Scale: 1, Seed: 1, Expect: []string{evidence.NoPhantom},
		Profile: evidence.Profile{Name: "at-least-once"}, Claims: []evidence.Claim{{Guarantee: evidence.NoPhantom}}}
	change(&m)
	rec, err := evidence.Create(dir, m, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	e := evidence.Event{Kind: evidence.PublishCalled, Actor: "p1", Destination: "orders", BusinessID: "order-1", PublishID: "p1-1-1", Digest: "d"}
	rec.Record(e)
	e.Kind, e.Actor, e.Session, e.Subscription = evidence.Delivered, "c1", "c1#1", "orders"
	rec.Record(e)
	if err := rec.Close(evidence.End{How: evidence.EndCompleted}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestReplayRunsNoCommandOfTheEvidence checks that a replay starts nothing named
// in the evidence: no command, image or file.
func TestReplayRunsNoCommandOfTheEvidence(t *testing.T) {
	struck := filepath.Join(t.TempDir(), "struck")
	profile := "system: redis:aof-always-claim\naddress: 127.0.0.1:1\nstart: [touch, " + struck + "]\nstop: [touch, " + struck + "]\nkill: [touch, " + struck + "]\n"
	elsewhere := filepath.Join(t.TempDir(), "evil.yaml")
	if err := os.WriteFile(elsewhere, []byte(profile), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*evidence.Manifest)
		args   func(dir string) []string
		want   string
	}{
		"a file that the manifest names": {func(m *evidence.Manifest) { m.Spec = elsewhere }, nil, "--profile FILE.yaml"},
		"a profile that is a file":       {func(m *evidence.Manifest) { m.System, m.Profile.Name = "x", elsewhere }, nil, "no system"},
		"an image":                       {func(m *evidence.Manifest) { m.Profile.Name += "@evil/image" }, nil, "no system"},
		"a file in the run's folder": {func(*evidence.Manifest) {}, func(dir string) []string {
			inside := filepath.Join(dir, "evil.yaml")
			if err := os.WriteFile(inside, []byte(profile), 0o644); err != nil {
				t.Fatal(err)
			}
			return []string{"--profile", inside}
		}, "lies in the folder of the run"},
		"a link to a file in the run's folder": {func(*evidence.Manifest) {}, func(dir string) []string {
			inside, link := filepath.Join(dir, "evil.yaml"), filepath.Join(t.TempDir(), "link.yaml")
			if err := os.WriteFile(inside, []byte(profile), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(inside, link); err != nil {
				t.Fatal(err)
			}
			return []string{"--profile", link}
		}, "lies in the folder of the run"},
	} {
		dir := foreign(t, c.change)
		args := []string{"replay", dir, "--out", filepath.Join(t.TempDir(), "out")}
		if c.args != nil {
			args = append(args, c.args(dir)...)
		}
		code, out, told := execute(t, args...)
		if code != guarantees.ExitUnmeasured || !strings.Contains(told, c.want) {
			t.Errorf("%s: exit %d\n%s%s", name, code, out, told)
		}
	}
	if _, err := os.Stat(struck); err == nil {
		t.Error("a command was run")
	}
}

// TestAVerdictThatCannotBeSavedIsTold checks that evidence can be judged in a
// read-only directory.
func TestAVerdictThatCannotBeSavedIsTold(t *testing.T) {
	dir := foreign(t, func(*evidence.Manifest) {})
	if err := os.MkdirAll(filepath.Join(dir, "verdict.json", "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	code, out, told := execute(t, "judge", dir)
	if code != guarantees.ExitHeld || !strings.Contains(told, "could not be saved") || !strings.Contains(out, "held") {
		t.Errorf("exit %d\n%s%s", code, out, told)
	}
}

func TestOneRunInTwoFoldersCountsOnce(t *testing.T) {
	dir := foreign(t, func(*evidence.Manifest) {})
	again := copied(t, dir, filepath.Join(t.TempDir(), "again"))
	code, out, told := execute(t, "report", dir, again, "--format", "json")
	if code != 0 || strings.Count(out, `"scenario": "foreign"`) != strings.Count(jsonOf(t, dir), `"scenario": "foreign"`) || !strings.Contains(told, again+" is the same run as "+dir) {
		t.Errorf("exit %d: %s\n%s", code, told, out)
	}
}

func jsonOf(t *testing.T, dir string) string {
	t.Helper()
	_, out, _ := execute(t, "report", dir, "--format", "json")
	return out
}

// TestTheScriptIsTheTruth checks that a manifest which expects less than its
// script is rejected, even if sealed.
func TestTheScriptIsTheTruth(t *testing.T) {
	for field, change := range map[string]func(*evidence.Manifest){
		"expect":   func(m *evidence.Manifest) { m.Expect = []string{evidence.Survives} },
		"reached":  func(m *evidence.Manifest) { m.Reached = []evidence.Condition{{Verb: evidence.CondFired, Subject: "f"}} },
		"faults":   func(m *evidence.Manifest) { m.Faults = []evidence.FaultLabel{{Label: "f", Verb: "drop"}} },
		"scenario": func(m *evidence.Manifest) { m.Scenario = "other" },
	} {
		dir := foreign(t, change)
		for _, command := range []string{"judge", "report", "verify"} {
			if code, out, told := execute(t, command, dir); code != guarantees.ExitUnmeasured || !strings.Contains(told, "manifest.json: "+field) {
				t.Errorf("%s, %s: exit %d\n%s%s", field, command, code, out, told)
			}
		}
	}
}

func TestAScenariosNameIsNoPath(t *testing.T) {
	here := t.TempDir()
	for _, name := range []string{"../../x", "a/b", "..", ".hidden", `a\b`} {
		file := filepath.Join(here, "s.scenario")
		if err := os.WriteFile(file, []byte("scenario "+name+"\nproducer p1 to orders\npublish order-1 by p1\nexpect survives\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if code, _, told := execute(t, "run", file, "--out", filepath.Join(here, "a", "b", "out")); code != guarantees.ExitUsage {
			t.Errorf("%s: exit %d: %s", name, code, told)
		}
	}
	actor := filepath.Join(here, "s.scenario")
	for _, name := range []string{"../../x", "a/b", ".hidden"} { // the name of an actor whose process has a log
		text := "scenario s\nproducer p1 to orders\nconsumer " + name + " on orders, child\npublish order-1 by p1\nexpect survives\n"
		if err := os.WriteFile(actor, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if code, _, told := execute(t, "run", actor, "--out", filepath.Join(here, "a", "b", "out")); code != guarantees.ExitUsage || !strings.Contains(told, "line 3") && !strings.Contains(told, ":3") {
			t.Errorf("%s: exit %d: %s", name, code, told)
		}
	}
	if entries, err := os.ReadDir(here); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestOnlyFilesAreRead checks that anything the caller names that is not a
// regular file is refused at once, with its name.
func TestOnlyFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	for kind, plant := range map[string]func(path string) error{
		"a FIFO":   func(path string) error { return syscall.Mkfifo(path, 0o644) },
		"a device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o755) },
		"a socket": func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		},
	} {
		named := func(name string) string {
			path := filepath.Join(dir, strings.ReplaceAll(kind, " ", "-")+"-"+name)
			if err := plant(path); err != nil {
				t.Fatal(err)
			}
			return path
		}
		script, profile, key, matrix := named("s.scenario"), named("p.yaml"), named("key.pem"), named("matrix.json")
		authority := filepath.Join(t.TempDir(), "tls.yaml")
		if err := os.WriteFile(authority, []byte("system: nats:memory\naddress: 127.0.0.1:1\ntls:\n  ca: "+key+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"run", script}, {"run", "business-success", "--profile", profile}, {"run", "business-success", "--system", profile},
			{"run", "business-success", "--sign", key}, {"run", "business-success", "--system", authority, "--out", filepath.Join(t.TempDir(), "out")},
			{"matrix", profile}, {"sweep", "--system", profile}, {"explore", "--system", profile},
			{"replay", foreign(t, func(*evidence.Manifest) {}), "--profile", profile},
			{"verify", foreign(t, func(*evidence.Manifest) {}), "--key", key}, {"diff", matrix, matrix}, {"broker", "--connections", script},
		} {
			code, _, told := execute(t, args...)
			if code != guarantees.ExitUnmeasured && code != guarantees.ExitUsage || !strings.Contains(told, "custody: ") || !strings.Contains(told, kind) {
				t.Errorf("custody %s, %s: exit %d: %s", strings.Join(args, " "), kind, code, told)
			}
		}
		if kind == "a folder" {
			continue // it may hold runs
		}
		for _, command := range []string{"judge", "report", "verify", "replay"} {
			if code, _, told := execute(t, command, script); code != guarantees.ExitUnmeasured || !strings.Contains(told, kind) {
				t.Errorf("custody %s, %s: exit %d: %s", command, kind, code, told)
			}
		}
	}
}

// TestAReportReplacesOnlyFiles checks that a report is written to a FIFO or a
// device rather than replacing it, with or without a reader.
func TestAReportReplacesOnlyFiles(t *testing.T) {
	dir := foreign(t, func(*evidence.Manifest) {})
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, told := execute(t, "report", dir, "--out", fifo); code != guarantees.ExitUnmeasured || !strings.Contains(told, fifo) {
		t.Errorf("nobody reads it: exit %d: %s", code, told)
	}
	null := filepath.Join(t.TempDir(), "null")
	if err := os.Symlink(os.DevNull, null); err != nil {
		t.Fatal(err)
	}
	if code, _, told := execute(t, "report", dir, "--out", null); code != guarantees.ExitHeld {
		t.Errorf("exit %d: %s", code, told)
	}
	for _, path := range []string{fifo, null} {
		if info, err := os.Stat(path); err != nil || info.Mode().IsRegular() {
			t.Errorf("%s was replaced: %v, %v", path, info.Mode(), err)
		}
	}
}

// TestASignalEndsReadingAtOnce checks that a signal interrupts reading evidence
// without delay.
func TestASignalEndsReadingAtOnce(t *testing.T) {
	dir := foreign(t, func(*evidence.Manifest) {})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, command := range []string{"judge", "report"} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
				t.Fatal(err)
			}
			reader := exec.CommandContext(ctx, "custody", command, dir, "--format", "html")
			reader.Stdout = w
			if err := reader.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Read(make([]byte, 1)); err != nil { // it has started writing and blocks until the pipe is read
				t.Fatal(err)
			}
			if err := reader.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = reader.Wait()
			if status, ok := reader.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != sig {
				t.Errorf("%s after %s: %s", command, sig, reader.ProcessState)
			}
			if err := errors.Join(r.Close(), w.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestResumeRemovesOnlyWhatItMade checks that --resume repeats an interrupted run
// and keeps files that the user added.
func TestResumeRemovesOnlyWhatItMade(t *testing.T) {
	scenario, err := scenarios.Find("business-success")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		scenario script.Scenario
		below    string
		args     []string
	}{
		{scenario, "business-success", []string{"run", "business-success"}},
		{scenario, "zeromq-at-least-once/business-success", []string{"matrix", "zeromq:at-least-once", "--scenarios", "business-success"}},
		{scenarios.SweepBase, "runs/" + scenarios.SweepBase.Name, []string{"sweep"}},
	} {
		out := t.TempDir()
		dir := filepath.Join(out, filepath.FromSlash(c.below))
		rec, err := evidence.Create(dir, evidence.Manifest{Run: "run", Scale: 1, Scenario: c.scenario.Name}, []byte(script.Print(c.scenario)))
		if err != nil {
			t.Fatal(err)
		}
		notes := filepath.Join(dir, "notes.txt")
		args := append(c.args, "--resume", "--out", out)
		if code, _, told := execute(t, args...); code != guarantees.ExitUnmeasured || !strings.Contains(told, "a run is being recorded in it") {
			t.Errorf("custody %s, while another goes on: exit %d: %s", strings.Join(args, " "), code, told)
		}
		if err := errors.Join(rec.Close(evidence.End{How: evidence.EndCancelled}), os.WriteFile(notes, []byte("mine"), 0o644)); err != nil {
			t.Fatal(err)
		}
		if code, _, told := execute(t, args...); code != guarantees.ExitUnmeasured || !strings.Contains(told, "it holds notes.txt") {
			t.Errorf("custody %s: exit %d: %s", strings.Join(args, " "), code, told)
		}
		if b, err := os.ReadFile(notes); err != nil || string(b) != "mine" {
			t.Errorf("custody %s: %q, %v", strings.Join(args, " "), b, err)
		}
		if c.args[0] == "sweep" {
			continue // the contents of hundreds of runs
		}
		if err := os.Remove(notes); err != nil {
			t.Fatal(err)
		}
		if code, _, told := execute(t, args...); code != guarantees.ExitHeld {
			t.Errorf("custody %s: exit %d: %s", strings.Join(args, " "), code, told)
		}
	}
}
