package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Outcome is the result for a mutant.
type Outcome string

const (
	// Killed: exit code 1, a claim was violated, also when what violated it is
	// run again. Nothing else is proof.
	Killed Outcome = "killed"
	// Noticed: no claim was violated, but a stage was inconclusive, could not
	// measure, crashed or hung. A person would look; no verdict says why.
	Noticed Outcome = "noticed"
	// Survived: every stage passed.
	Survived Outcome = "survived"
	// Stillborn: it does not compile, so it is no mutant.
	Stillborn Outcome = "stillborn"
)

// Stage is one invocation of the command under test.
type Stage struct {
	Name    string
	Args    []string
	Timeout time.Duration
}

// Stages, cheapest and deadliest first. The profiles history and at-most-once
// exercise other paths.
var (
	exploring = []Stage{
		{"talks", []string{"run", "bounds", "periods", "crowds", "store-troubles", "store-slow", "--simulated", "--parallel", "1"}, time.Minute},
		{"explore", []string{"explore", "--runs", "2000", "--seed", "1", "--parallel", "1"}, time.Minute},
		{"simulated checklist", []string{"run", "--simulated", "--parallel", "1"}, time.Minute},
		{"explore with history", []string{"explore", "--system", "zeromq:at-least-once-history", "--runs", "1000", "--seed", "1", "--parallel", "1"}, time.Minute},
		{"explore at most once", []string{"explore", "--system", "zeromq:at-most-once", "--runs", "500", "--seed", "1", "--parallel", "1"}, time.Minute},
	}
	// The store's own: its probes, and exploring with it in files. Each schedule
	// opens them at least once, which takes some milliseconds.
	storage = []Stage{
		{"storage probes", []string{"run", "storage-files", "--parallel", "4"}, 45 * time.Second},
		{"explore on disk", []string{"explore", "--disk", "--runs", "300", "--seed", "1", "--parallel", "1"}, time.Minute},
	}
	prelude = []Stage{
		{"first scenarios", []string{"run", "baseline", "ack-lost", "restart-replay", "poison-message", "late-consumer", "competing-consumers", "publisher-retries", "limits",
			"--parallel", "8"}, 45 * time.Second},
	}
	// The outbox and the patterns of consumers, which only an application has.
	application = []Stage{
		{"application", []string{"run", "--group", "application", "--simulated", "--parallel", "1"}, time.Minute},
		{"application with a database", []string{"run", "--group", "application", "--parallel", "12"}, 75 * time.Second},
	}
	checklist = []Stage{
		{"checklist", []string{"run", "--parallel", "12"}, 75 * time.Second},
		{"checklist with history", []string{"run", "--system", "zeromq:at-least-once-history", "--parallel", "12"}, 75 * time.Second},
		{"checklist at most once", []string{"run", "--system", "zeromq:at-most-once", "--parallel", "12"}, 75 * time.Second},
	}
)

// stagesFor puts first the stages that reach a package: the simulation uses the
// broker's core and codec, on disk its store, and never the real clients.
func stagesFor(pkg string) []Stage {
	var s []Stage
	switch pkg {
	case "broker/core", "broker/wire":
		s = append(append(append(s, exploring...), prelude...), storage...)
	case "broker/store/sqlite":
		return append(append(append(append(s, storage...), prelude...), checklist...), exploring...)
	case "business":
		s = append(append(s, prelude...), application...)
	default:
		s = append(append(append(s, prelude...), exploring...), storage...)
	}
	return append(s, checklist...)
}

// Result is a mutant's result: a line of the results file.
type Result struct {
	Identity
	Row     int     `json:"row"`
	Outcome Outcome `json:"outcome"`
	Stage   string  `json:"stage,omitempty"` // that killed it, or first noticed it
	By      string  `json:"by,omitempty"`    // scenarios, or the stage's output
	Seconds float64 `json:"seconds"`
	Diff    string  `json:"diff"`
}

// Judge runs the stages on mutants. Safe for concurrent use.
type Judge struct {
	Root   string // module root
	Work   string // private directory for builds and evidence
	Stages func(pkg string) []Stage
}

// extraTime bounds the stages after the first that noticed a mutant: one that
// hangs in every scenario would take a quarter of an hour.
const extraTime = 2 * time.Minute

// memory limits a mutant, so that a runaway one does not exhaust the machine.
const memory = 3 << 20 // KiB

// Mutant judges one mutant. An error means that nothing was measured.
func (j *Judge) Mutant(ctx context.Context, m Mutant) (Result, error) {
	began := time.Now()
	r := Result{Identity: m.Identity, Row: m.Row, Diff: m.Diff}
	dir, err := os.MkdirTemp(j.Work, "mutant-")
	if err != nil {
		return r, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary, compiles, err := j.build(ctx, dir, map[string][]byte{m.File: m.src})
	if err != nil {
		return r, err
	}
	if !compiles {
		r.Outcome = Stillborn
		return r, nil
	}
	r.Outcome, r.Stage, r.By, err = j.stages(ctx, binary, dir, j.Stages(m.Package()))
	r.Seconds = time.Since(began).Seconds()
	return r, err
}

// Control judges the unmodified code, which must pass every stage, and returns
// a digest of the command.
func (j *Judge) Control(ctx context.Context, packages []string) (string, error) {
	dir, err := os.MkdirTemp(j.Work, "control-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary, compiles, err := j.build(ctx, dir, nil)
	if err != nil {
		return "", err
	}
	if !compiles {
		return "", errors.New("the unmodified code does not compile: go build ./cmd/custody says why")
	}
	passed := map[string]bool{}
	var all []Stage
	for _, pkg := range packages {
		for _, s := range j.Stages(pkg) {
			if !passed[s.Name] {
				passed[s.Name], all = true, append(all, s)
			}
		}
	}
	outcome, stage, by, err := j.stages(ctx, binary, dir, all)
	if err != nil {
		return "", err
	}
	if outcome != Survived {
		return "", fmt.Errorf("the stage %q fails without any mutant (%s): fix that first", stage, by)
	}
	text, err := os.ReadFile(binary)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// build builds the command with some files replaced by an overlay. The build
// cache is shared.
func (j *Judge) build(ctx context.Context, dir string, files map[string][]byte) (binary string, compiles bool, err error) {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range files {
		at := filepath.Join(dir, strconv.Itoa(len(overlay.Replace))+".go")
		if err := os.WriteFile(at, text, 0o600); err != nil {
			return "", false, err
		}
		overlay.Replace[filepath.Join(j.Root, filepath.FromSlash(name))] = at
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return "", false, err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		return "", false, err
	}
	binary = filepath.Join(dir, "custody")
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", list, "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, "./cmd/custody")
	cmd.Dir = j.Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	said, err := cmd.CombinedOutput()
	switch exit := (*exec.ExitError)(nil); {
	case err == nil:
		return binary, true, nil
	case ctx.Err() != nil:
		return "", false, context.Cause(ctx)
	case errors.As(err, &exit) && bytes.HasPrefix(said, []byte("# ")): // a compiler error begins with its package
		return "", false, nil
	}
	return "", false, fmt.Errorf("go build: %w: %s", err, firstLine(said))
}

// stages runs stages until one kills. One that did not pass is run once more: on
// a busy machine a deadline may pass through no fault of the mutant.
func (j *Judge) stages(ctx context.Context, binary, dir string, stages []Stage) (outcome Outcome, stage, by string, err error) {
	outcome = Survived
	began := time.Now()
	for _, s := range stages {
		if outcome == Noticed && time.Since(began) > extraTime {
			break
		}
		exit, said, err := run(ctx, binary, dir, s)
		broken := ""
		switch {
		case err != nil:
		case exit == 1:
			broken = names(said, scenarioBroken, scheduleBroken)
			exit, said, err = run(ctx, binary, dir, s.confirming(said))
		case exit != 0 && exit != hanging && outcome == Survived:
			exit, said, err = run(ctx, binary, dir, s)
		}
		switch {
		case err != nil:
			return "", "", "", err
		case exit == usage:
			return "", "", "", fmt.Errorf("custody %s: invalid usage: %s", strings.Join(s.Args, " "), firstLine(said))
		case exit == 1 && broken != "":
			return Killed, s.Name, broken, nil
		case broken != "" && outcome == Survived:
			outcome, stage, by = Noticed, s.Name, "violated once, and not again: "+broken
		case exit != 0 && outcome == Survived:
			outcome, stage, by = Noticed, s.Name, ended(exit, said)
		}
	}
	return outcome, stage, by, nil
}

const (
	usage   = 64
	hanging = -1 // exit code of a process that was killed on time-out
)

// confirming is the stage again with the violated scenarios alone: a single
// violation is no proof of the mutant.
func (s Stage) confirming(said []byte) Stage {
	broken := scenarioBroken.FindAllSubmatch(said, maxConfirmed)
	if len(broken) == 0 || s.Args[0] != "run" { // exploring is deterministic
		return s
	}
	args := []string{"run"}
	for _, m := range broken {
		args = append(args, string(m[1]))
	}
	if flags := slices.IndexFunc(s.Args, func(a string) bool { return strings.HasPrefix(a, "--") }); flags >= 0 {
		args = append(args, s.Args[flags:]...)
	}
	s.Args = args
	return s
}

// maxConfirmed bounds how many scenarios are run again: one that is violated
// twice is enough.
const maxConfirmed = 6

// run runs one stage in a process group, which is killed before it returns.
func run(ctx context.Context, binary, dir string, s Stage) (exit int, said []byte, err error) {
	scratch, err := os.MkdirTemp(dir, "stage-")
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	deadline, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	script := fmt.Sprintf(`ulimit -d %d && exec "$0" "$@"`, memory)
	args := append([]string{"-c", script, binary}, s.Args...)
	cmd := exec.CommandContext(deadline, "sh", append(args, "--out", filepath.Join(scratch, "out"))...)
	cmd.Dir = scratch
	cmd.Env = append(os.Environ(), "TMPDIR="+scratch)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // kills leftovers
	}
	switch exited := (*exec.ExitError)(nil); {
	case ctx.Err() != nil:
		return 0, nil, context.Cause(ctx)
	case deadline.Err() != nil:
		return hanging, out.text, nil
	case err == nil:
		return 0, out.text, nil
	case errors.As(err, &exited):
		return exited.ExitCode(), out.text, nil
	case errors.Is(err, exec.ErrWaitDelay): // it exited, but a child keeps the pipe open
		return hanging, out.text, nil
	}
	return 0, nil, fmt.Errorf("custody %s: %w", strings.Join(s.Args, " "), err)
}

// tail keeps the end of a process's output.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 64 << 10
	t.text = append(t.text, p...)
	if over := len(t.text) - most; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// What a stage prints, for people: the outcome depends on the exit code alone.
var (
	scenarioBroken = regexp.MustCompile(`(?m)^(\S+)\s+✗ `)
	scheduleBroken = regexp.MustCompile(`(?m)^the schedule with seed \d+ breaks (.+)$`)
	scenarioOpen   = regexp.MustCompile(`(?m)^(\S+)\s+[?!] `)
	died           = regexp.MustCompile(`(?m)^((?:panic|fatal error|custody): .+)$`)
)

func names(said []byte, patterns ...*regexp.Regexp) string {
	var found []string
	for _, p := range patterns {
		for _, m := range p.FindAllSubmatch(said, -1) {
			found = append(found, string(m[1]))
		}
	}
	return strings.Join(found, ", ")
}

func ended(exit int, said []byte) string {
	what := "timed out"
	if exit != hanging {
		what = fmt.Sprintf("exit code %d", exit)
	}
	if more := names(said, died, scenarioOpen); more != "" {
		what += ": " + more
	}
	return what
}

func firstLine(said []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
	return line
}
