package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/custodymq/custody/tasks"
)

// Process is a running part of a run that can be struck. Its methods are safe
// for concurrent use; each returns when its effect is certain.
type Process interface {
	Kill(ctx context.Context) error // SIGKILL
	Stop(ctx context.Context) error // SIGTERM; on ctx's end SIGKILL, and an error
	Pause(ctx context.Context) error
	Continue(ctx context.Context) error
	Exited() <-chan struct{} // closed once it has exited and its output was read
	Exit() Exit              // valid once Exited is closed
}

// Exit is how a process ended.
type Exit struct {
	Code    int           // -1 if killed by a signal
	Signal  string        // "killed"
	Ordered bool          // requested by Kill or Stop
	Waited  time.Duration // how long Stop waited for an orderly exit before it killed the process; 0 if it did not have to
}

var killed = syscall.SIGKILL.String()

// signalFunc delivers a signal; os.ErrProcessDone if the process is gone.
type signalFunc func(ctx context.Context, sig syscall.Signal) error

// lifecycle is what every Process has in common: how it is ended and awaited.
type lifecycle struct {
	name       string // "process 4711"
	signal     signalFunc
	exited     chan struct{}
	exit       Exit
	cleanupErr error        // cleanup failure; valid once exited is closed
	orderedBy  atomic.Int32 // signal of the first request to end; SIGTERM is overridden by SIGKILL
	waited     atomic.Int64 // nanoseconds that Stop waited without success
}

// ErrNotRunning: the process had exited on its own, or was never started.
var ErrNotRunning = errors.New("process: the process was not running")

// ErrNoOrderlyEnd: the process did not exit within Stop's deadline and was
// killed. Its Exit says how long Stop waited.
var ErrNoOrderlyEnd = errors.New("process: no orderly end, killed")

// Strike applies order to a process. The error wraps ErrNotRunning if there
// was no process, or if it exited on its own at that moment.
func Strike(ctx context.Context, p Process, order func(Process, context.Context) error) error {
	if !running(p) {
		return ErrNotRunning
	}
	err := order(p, ctx)
	if errors.Is(err, os.ErrProcessDone) || !running(p) && !p.Exit().Ordered {
		return errors.Join(ErrNotRunning, err)
	}
	return err
}

func running(p Process) bool {
	if p == nil {
		return false
	}
	select {
	case <-p.Exited():
		return false
	default:
		return true
	}
}

// finish reports the exit, and only then closes Exited.
func (l *lifecycle) finish(e Exit, tell func(Exit)) {
	switch syscall.Signal(l.orderedBy.Load()) {
	case syscall.SIGKILL: // a process that we killed cannot have ended in any other way
		e.Ordered = e.Signal == killed
	case syscall.SIGTERM:
		e.Ordered = true
		if e.Signal == killed {
			e.Waited = time.Duration(l.waited.Load())
		}
	}
	l.exit = e
	if tell != nil {
		tell(e)
	}
	close(l.exited)
}

// Exited is closed once the process has exited and its last output was read.
func (l *lifecycle) Exited() <-chan struct{} { return l.exited }

// Exit is valid once Exited is closed.
func (l *lifecycle) Exit() Exit { return l.exit }

// Kill sends SIGKILL and waits for the exit.
func (l *lifecycle) Kill(ctx context.Context) error { return l.end(ctx, syscall.SIGKILL) }

// Stop sends SIGTERM and waits for the exit. If ctx ends first the process is
// killed and Stop returns an error.
func (l *lifecycle) Stop(ctx context.Context) error {
	began := time.Now()
	err := l.end(ctx, syscall.SIGTERM)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		l.waited.Store(int64(time.Since(began)))
		err = fmt.Errorf("%w: %w", ErrNoOrderlyEnd, err)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(err, l.end(last, syscall.SIGKILL))
}

func (l *lifecycle) end(ctx context.Context, sig syscall.Signal) error {
	if sig == syscall.SIGTERM {
		l.orderedBy.Store(int32(sig))
	} else {
		l.orderedBy.CompareAndSwap(0, int32(sig))
	}
	if err := l.signal(ctx, sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = l.signal(ctx, syscall.SIGCONT) // a stopped process cannot handle SIGTERM
	select {
	case <-l.exited:
		return l.cleanupErr
	case <-ctx.Done():
		return fmt.Errorf("process: %s did not end: %w", l.name, context.Cause(ctx))
	}
}

// Continue sends SIGCONT.
func (l *lifecycle) Continue(ctx context.Context) error { return l.signal(ctx, syscall.SIGCONT) }

// process is an operating system process that dies with this one.
type process struct {
	*lifecycle
	cmd *exec.Cmd
}

// startProcess starts cmd; ended is called once, before Exited is closed. signals,
// if there is one, changes how it is sent a signal.
func startProcess(cmd *exec.Cmd, ended func(Exit), signals func(*os.Process, signalFunc) signalFunc) (*process, error) {
	cmd.WaitDelay = 2 * time.Second
	// In its own process group, a terminal's signals do not reach the child.
	// This process ends its children in order, and a server ended by such a
	// signal would look like a failure.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("process %d", cmd.Process.Pid)
	plain := func(_ context.Context, sig syscall.Signal) error {
		if err := cmd.Process.Signal(sig); err != nil {
			return fmt.Errorf("process: %s to %s: %w", sig, name, err)
		}
		return nil
	}
	p := &process{cmd: cmd, lifecycle: &lifecycle{name: name, exited: make(chan struct{}), signal: plain}}
	if signals != nil {
		p.signal = signals(cmd.Process, plain)
	}
	tasks.Go(func() { p.finish(exitOf(cmd, cmd.Wait()), ended) })
	return p, nil
}

func exitOf(cmd *exec.Cmd, err error) Exit {
	state := cmd.ProcessState
	if state == nil {
		return Exit{Code: -1, Signal: fmt.Sprint(err)}
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return Exit{Code: -1, Signal: ws.Signal().String()}
	}
	return Exit{Code: state.ExitCode()}
}

// PID returns the process ID.
func (p *process) PID() int { return p.cmd.Process.Pid }

// Pause sends SIGSTOP and returns once every thread has stopped.
func (p *process) Pause(ctx context.Context) error {
	if err := p.signal(ctx, syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitStopped(ctx, p.PID())
}
