package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// edit makes a mutant by hand.
func edit(t *testing.T, root, file, was, is string) Mutant {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(text, []byte(was)) != 1 {
		t.Fatalf("%s holds %q %d times, once is wanted: the test is behind the code", file, was, bytes.Count(text, []byte(was)))
	}
	return Mutant{Identity: Identity{File: file, Line: is}, src: bytes.Replace(text, []byte(was), []byte(is), 1)}
}

// Without any stage every mutant would survive.
func TestStagesThatDoNotExist(t *testing.T) {
	for _, text := range []string{"", "talks", "with history"} {
		if err := knownStages(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := knownStages("talk-s"); err == nil || !strings.Contains(err.Error(), `-stages "talk-s"`) || !strings.Contains(err.Error(), "talks, explore") {
		t.Errorf("says %v", err)
	}
}

// TestMachinery checks that defects are killed, the original survives, and what
// does not compile is no mutant.
func TestMachinery(t *testing.T) {
	defer goleak.VerifyNone(t)
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	judge := &Judge{Root: root, Work: t.TempDir(), Stages: func(string) []Stage {
		return []Stage{
			{"explore", []string{"explore", "--runs", "300"}, time.Minute},
			{"one scenario", []string{"run", "ack-lost"}, time.Minute},
		}
	}}
	if _, err := judge.Control(t.Context(), []string{"broker/core"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, file, was, is string
		outcome             Outcome
		stage               string
	}{
		{"seen by exploring", "broker/core/deliver.go", "\tm.topic.queue.push(m)\n", "\tif false { m.topic.queue.push(m) }\n", Killed, "explore"},
		{"seen by the checklist", "business/database.go", "\t\t\tif repeat {\n", "\t\t\tif repeat && false {\n", Killed, "one scenario"},
		{"the same in other words", "broker/core/deliver.go", "s.inFlight+size <= c.cfg.Limits.InFlightBytes", "!(s.inFlight+size > c.cfg.Limits.InFlightBytes)", Survived, ""},
		{"no Go", "broker/core/deliver.go", "s.inFlight+size <= c.cfg.Limits.InFlightBytes", `s.inFlight+size <= ""`, Stillborn, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := judge.Mutant(t.Context(), edit(t, root, c.file, c.was, c.is))
			if err != nil {
				t.Fatal(err)
			}
			if r.Outcome != c.outcome || r.Stage != c.stage {
				t.Errorf("%s by %q (%s), and %s by %q is wanted", r.Outcome, r.Stage, r.By, c.outcome, c.stage)
			}
			if r.Outcome == Killed && r.By == "" {
				t.Error("nothing says what killed it")
			}
		})
	}
	if left, err := os.ReadDir(judge.Work); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestOutcomes runs stages on a program with prescribed exit codes.
func TestOutcomes(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	script := `#!/bin/sh
case $1 in
hang) sleep 60 & sleep 60 ;;
once) test -e ` + dir + `/before && exit 0; touch ` + dir + `/before; exit 2 ;;
panic) echo 'panic: index out of range'; exit 2 ;;
broken) echo 'ack-lost   ✗ violated  no-accepted-loss'; exit 1 ;;
flaky) test -e ` + dir + `/broken && exit 0; touch ` + dir + `/broken; echo 'ack-lost   ✗ violated  no-accepted-loss'; exit 1 ;;
*) exit $1 ;;
esac
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		stages  string
		outcome Outcome
		stage   string
		by      string
	}{
		{"0 0", Survived, "", ""},
		{"0 broken 2", Killed, "broken", "ack-lost"},
		{"2 0 broken", Killed, "broken", "ack-lost"}, // an inconclusive stage hides no verdict
		{"flaky 0", Noticed, "flaky", "violated once, and not again: ack-lost"},
		{"0 3 2", Noticed, "3", "exit code 3"},
		{"once 0", Survived, "", ""},
		{"panic 0", Noticed, "panic", "exit code 2: panic: index out of range"},
		{"hang 0", Noticed, "hang", "timed out"},
	} {
		var stages []Stage
		for _, s := range strings.Fields(c.stages) {
			timeout := time.Minute
			if s == "hang" {
				timeout = 200 * time.Millisecond
			}
			stages = append(stages, Stage{s, []string{s}, timeout})
		}
		outcome, stage, by, err := new(Judge).stages(t.Context(), program, dir, stages)
		if err != nil || outcome != c.outcome || stage != c.stage || by != c.by {
			t.Errorf("%s: %s by %q, %q, %v", c.stages, outcome, stage, by, err)
		}
	}
	if _, _, _, err := new(Judge).stages(t.Context(), program, dir, []Stage{{"64", []string{"64"}, time.Minute}}); err == nil {
		t.Error("invalid usage is no outcome of a mutant, and no error was returned")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, _, _, err := new(Judge).stages(ctx, program, dir, []Stage{{"hang", []string{"hang"}, time.Minute}}); err == nil {
		t.Error("cancelled, and no error was returned")
	}
}
