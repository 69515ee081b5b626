package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// ProgramOptions of one program.
type ProgramOptions struct {
	// Image runs the program in a container of it, which is in this machine's
	// network, belongs to this process's user and has Dir at the same path, so
	// that nothing else differs: not the command line, not the addresses, not
	// the files. Empty: the program is installed on this machine.
	Image string
	Path  string // a file, or a name that is looked up in PATH
	Args  []string
	// Env is the whole environment; nil is the parent's. In a container it is
	// added to the image's.
	Env []string
	// Dir is the working directory; empty is the parent's. In a container it is
	// the only folder of this machine, and empty is none.
	Dir string
	Log io.Writer
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

// program is a Process that can be waited for.
type program interface {
	Process
	becomes(ctx context.Context, ready func(context.Context) error) error
}

// StartProgram runs a program as a child process, or in a container, and
// returns when it is ready. A program that ends before, or is not ready when
// ctx ends, is an error that quotes the end of its log; then nothing of it is
// left.
func StartProgram(ctx context.Context, o ProgramOptions) (Process, error) {
	name := filepath.Base(o.Path)
	said := &tail{to: o.Log}
	p, err := launch(ctx, o, said)
	if err != nil {
		return nil, fmt.Errorf("process: start %s: %w", name, err)
	}
	if err := p.becomes(ctx, o.Ready); err != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		return nil, fmt.Errorf("process: %s did not become ready: %w; its log ends: %s", name, errors.Join(err, p.Kill(last)), said)
	}
	return p, nil
}

func launch(ctx context.Context, o ProgramOptions, log io.Writer) (program, error) {
	if o.Image != "" {
		return launchContained(ctx, o, log)
	}
	cmd := exec.Command(o.Path, o.Args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = o.Env, o.Dir, log, log
	return startProcess(cmd, o.Exited)
}

func (l *life) becomes(ctx context.Context, ready func(context.Context) error) error {
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
		case <-l.exited:
			return fmt.Errorf("it ended (exit code %d %s)", l.exit.Code, l.exit.Signal)
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
