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

// Process is a started part that can be struck. Its methods are safe for
// concurrent use, and each returns when its effect is certain.
type Process interface {
	Kill(ctx context.Context) error // at once, as SIGKILL does
	Stop(ctx context.Context) error // in order; killed when ctx ends first, and that is the error
	Pause(ctx context.Context) error
	Continue(ctx context.Context) error
	Exited() <-chan struct{} // closed when it has ended and nothing more comes of it
	Exit() Exit              // valid once Exited is closed
}

// Exit says how a process ended.
type Exit struct {
	Code    int    // -1 when ended by a signal
	Signal  string // "killed"
	Ordered bool   // by Kill or Stop
}

var killed = syscall.SIGKILL.String()

// life is what every Process has in common: how it is ended and awaited.
type life struct {
	name string // "process 4711"
	// signal delivers one; os.ErrProcessDone when nobody is there to take it.
	signal  func(ctx context.Context, sig syscall.Signal) error
	exited  chan struct{}
	exit    Exit
	left    error        // what could not be cleaned up; valid once exited is closed
	ordered atomic.Int32 // the signal of the first order to end; an orderly one takes its place
}

// ErrNotRunning: an order found no process. It had ended by itself, or was never
// started.
var ErrNotRunning = errors.New("process: the process was not running")

// Strike gives an order to a process. The error wraps ErrNotRunning when nobody
// was there to take it, also if it ended by itself just then.
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

// ended tells of the end, and only then closes Exited.
func (l *life) ended(e Exit, tell func(Exit)) {
	switch syscall.Signal(l.ordered.Load()) {
	case syscall.SIGKILL: // whoever was killed by us cannot have ended in any other way
		e.Ordered = e.Signal == killed
	case syscall.SIGTERM:
		e.Ordered = true
	}
	l.exit = e
	if tell != nil {
		tell(e)
	}
	close(l.exited)
}

// Exited is closed when it has ended and its last output was read.
func (l *life) Exited() <-chan struct{} { return l.exited }

// Exit says how it ended; valid once Exited is closed.
func (l *life) Exit() Exit { return l.exit }

// Kill sends SIGKILL and returns when it has ended.
func (l *life) Kill(ctx context.Context) error { return l.end(ctx, syscall.SIGKILL) }

// Stop sends SIGTERM and waits for an orderly end. When ctx ends first it is
// killed, and that is the error.
func (l *life) Stop(ctx context.Context) error {
	err := l.end(ctx, syscall.SIGTERM)
	if err == nil {
		return nil
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(fmt.Errorf("process: no orderly end, killed: %w", err), l.end(last, syscall.SIGKILL))
}

func (l *life) end(ctx context.Context, sig syscall.Signal) error {
	if sig == syscall.SIGTERM {
		l.ordered.Store(int32(sig))
	} else {
		l.ordered.CompareAndSwap(0, int32(sig))
	}
	if err := l.signal(ctx, sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = l.signal(ctx, syscall.SIGCONT) // a stopped process cannot obey SIGTERM
	select {
	case <-l.exited:
		return l.left
	case <-ctx.Done():
		return fmt.Errorf("process: %s did not end: %w", l.name, context.Cause(ctx))
	}
}

// Continue sends SIGCONT.
func (l *life) Continue(ctx context.Context) error { return l.signal(ctx, syscall.SIGCONT) }

// process is an operating system process that dies with this one.
type process struct {
	*life
	cmd *exec.Cmd
}

// startProcess starts cmd; ended is called once, before Exited is closed.
func startProcess(cmd *exec.Cmd, ended func(Exit)) (*process, error) {
	cmd.WaitDelay = 2 * time.Second
	// In a group of its own: the signals of a terminal are for this process, which
	// ends its children in order; a server that such a signal ends has not failed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("process %d", cmd.Process.Pid)
	p := &process{cmd: cmd, life: &life{name: name, exited: make(chan struct{}), signal: func(_ context.Context, sig syscall.Signal) error {
		if err := cmd.Process.Signal(sig); err != nil {
			return fmt.Errorf("process: %s to %s: %w", sig, name, err)
		}
		return nil
	}}}
	tasks.Go(func() { p.ended(exitOf(cmd, cmd.Wait()), ended) })
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

// PID of the process.
func (p *process) PID() int { return p.cmd.Process.Pid }

// Pause sends SIGSTOP and returns when every thread has stopped.
func (p *process) Pause(ctx context.Context) error {
	if err := p.signal(ctx, syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitStopped(ctx, p.PID())
}
