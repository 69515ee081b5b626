package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
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

// process is an operating system process that dies with this one.
type process struct {
	cmd     *exec.Cmd
	exited  chan struct{}
	exit    Exit
	ordered atomic.Bool
}

// startProcess starts cmd; ended is called once, before Exited is closed.
func startProcess(cmd *exec.Cmd, ended func(Exit)) (*process, error) {
	cmd.WaitDelay = 2 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		p.exit = exitOf(cmd, cmd.Wait())
		p.exit.Ordered = p.ordered.Load()
		ended(p.exit)
		close(p.exited)
	}()
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

// Exited is closed when the process is reaped and its last event was read.
func (p *process) Exited() <-chan struct{} { return p.exited }

// Exit says how it ended; valid once Exited is closed.
func (p *process) Exit() Exit { return p.exit }

// Kill sends SIGKILL and returns when the process is reaped.
func (p *process) Kill(ctx context.Context) error { return p.end(ctx, syscall.SIGKILL) }

// Stop sends SIGTERM and waits for an orderly end. When ctx ends first the
// process is killed, and that is the error.
func (p *process) Stop(ctx context.Context) error {
	err := p.end(ctx, syscall.SIGTERM)
	if err == nil {
		return nil
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(fmt.Errorf("containers: no orderly end, killed: %w", err), p.end(last, syscall.SIGKILL))
}

func (p *process) end(ctx context.Context, sig syscall.Signal) error {
	p.ordered.Store(true)
	if err := p.signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = p.signal(syscall.SIGCONT) // a stopped process cannot obey SIGTERM
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("containers: process %d did not end: %w", p.PID(), context.Cause(ctx))
	}
}

func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("containers: %s to process %d: %w", sig, p.PID(), err)
	}
	return nil
}

// Pause sends SIGSTOP and returns when every thread has stopped.
func (p *process) Pause(ctx context.Context) error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitStopped(ctx, p.PID())
}

// Continue sends SIGCONT.
func (p *process) Continue(context.Context) error { return p.signal(syscall.SIGCONT) }
