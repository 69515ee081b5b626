package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
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

// A replay starts nothing that the evidence names: no command, no image, no file.
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

// Evidence can be judged where nothing can be written.
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

// A manifest that expects less than its script is rejected, even if sealed.
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
	if entries, err := os.ReadDir(here); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// Arguments that are not regular files are refused at once.
func TestNoFIFOIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	fifo := func(name string) string {
		path := filepath.Join(dir, name)
		if err := syscall.Mkfifo(path, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	script, profile, key, matrix := fifo("s.scenario"), fifo("p.yaml"), fifo("key.pem"), fifo("matrix.json")
	for _, args := range [][]string{
		{"run", script}, {"run", "business-success", "--profile", profile}, {"run", "business-success", "--sign", key},
		{"judge", script}, {"verify", dir, "--key", key}, {"diff", matrix, matrix}, {"replay", profile},
	} {
		if code, _, told := execute(t, args...); code != guarantees.ExitUnmeasured && code != guarantees.ExitUsage || !strings.Contains(told, "custody: ") {
			t.Errorf("custody %s: exit %d: %s", strings.Join(args, " "), code, told)
		}
	}
}
