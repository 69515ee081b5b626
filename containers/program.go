package containers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// ProgramOptions of one installed program.
type ProgramOptions struct {
	Path string // a file, or a name that is looked up in PATH
	Args []string
	Env  []string // the whole environment; nil is the parent's
	Dir  string   // working directory; empty is the parent's
	Log  io.Writer
	// Ready is called again and again until it returns nil: then the program
	// serves. Each call has a deadline of its own.
	Ready func(ctx context.Context) error
	// Exited is called once, when the process is reaped.
	Exited func(Exit)
}

// How often and how long a starting program is asked whether it is ready.
const (
	readyEvery = 10 * time.Millisecond
	readyCall  = 2 * time.Second
)

// StartProgram runs an installed program as a child process and returns when it
// is ready. A program that ends before, or is not ready when ctx ends, is an
// error that quotes the end of its log; then nothing of it is left.
func StartProgram(ctx context.Context, o ProgramOptions) (Process, error) {
	name := filepath.Base(o.Path)
	said := &tail{to: o.Log}
	cmd := exec.Command(o.Path, o.Args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = o.Env, o.Dir, said, said
	p, err := startProcess(cmd, func(e Exit) {
		if o.Exited != nil {
			o.Exited(e)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("containers: start %s: %w", name, err)
	}
	if err := p.becomes(ctx, o.Ready); err != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = p.Kill(last)
		return nil, fmt.Errorf("containers: %s did not become ready: %w; its log ends: %s", name, err, said)
	}
	return p, nil
}

func (p *process) becomes(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, readyCall)
		err := ready(asking)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.exited:
			return fmt.Errorf("it ended (exit code %d %s)", p.exit.Code, p.exit.Signal)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// tail passes a log on and remembers its end.
type tail struct {
	to  io.Writer
	mu  sync.Mutex
	end []byte
}

const tailLength = 2 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	t.end = append(t.end, b...)
	t.end = t.end[max(0, len(t.end)-tailLength):]
	t.mu.Unlock()
	if t.to == nil {
		return len(b), nil
	}
	return t.to.Write(b)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.end))
}
