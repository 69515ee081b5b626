package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// ProgramOptions configures one program.
type ProgramOptions struct {
	// Image runs the program in a container with the host's network, this
	// process's user and Dir at the same path, so that command line, addresses
	// and files are the same. Empty for a program installed on this machine.
	Image string
	Path  string // a file, or a name looked up in PATH
	Args  []string
	// Env is the whole environment; nil for the parent's. In a container it is
	// added to the image's.
	Env []string
	// Dir is the working directory; empty for the parent's. In a container it
	// is the only directory of the host, and empty is none.
	Dir string
	Log io.Writer
	// Ready is polled until it returns nil, which means that the program
	// serves. Each call has its own deadline.
	Ready func(ctx context.Context) error
	// Exited is called once, when the process is reaped.
	Exited func(Exit)
	// Family strikes the processes that the program has started together with it.
	Family bool
	// End is the signal of an orderly end; SIGTERM if it is zero.
	End syscall.Signal
}

// Interval and deadline of readiness checks.
const (
	readyEvery = 10 * time.Millisecond
	readyCall  = 2 * time.Second
)

// program is a Process that can be waited for.
type program interface {
	Process
	awaitReady(ctx context.Context, ready func(context.Context) error) error
}

// StartProgram runs a program as a child process, or in a container, and
// returns once it is ready. If it exits first, or is not ready when ctx ends,
// it is removed and the error quotes the end of its log.
func StartProgram(ctx context.Context, o ProgramOptions) (Process, error) {
	name := filepath.Base(o.Path)
	said := &tail{to: o.Log}
	p, err := launch(ctx, o, said)
	if err != nil {
		return nil, fmt.Errorf("process: start %s: %w", name, err)
	}
	if err := p.awaitReady(ctx, o.Ready); err != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		return nil, fmt.Errorf("process: %s did not become ready: %w; its log ends: %s", name, errors.Join(err, p.Kill(last)), said)
	}
	return p, nil
}

func launch(ctx context.Context, o ProgramOptions, log io.Writer) (program, error) {
	if o.Image != "" {
		return launchContainer(ctx, o, log)
	}
	cmd := exec.Command(o.Path, o.Args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = o.Env, o.Dir, log, log
	return startProcess(cmd, o.Exited, o.signals)
}

// signals is how a child process is sent a signal.
func (o ProgramOptions) signals(p *os.Process, plain signalFunc) signalFunc {
	send := plain
	if o.Family {
		send = ofFamily(p, plain)
	}
	return func(ctx context.Context, sig syscall.Signal) error {
		if sig == syscall.SIGTERM && o.End != 0 {
			sig = o.End
		}
		return send(ctx, sig)
	}
}

func (l *lifecycle) awaitReady(ctx context.Context, ready func(context.Context) error) error {
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
			return fmt.Errorf("it exited (exit code %d %s)", l.exit.Code, l.exit.Signal)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// tail forwards a log and keeps its end.
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
