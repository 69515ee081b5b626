package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/custodymq/custody/evidence"
)

// Server is the server of a system under test, however it is run: a Process
// that can be restarted with the same address and data. It records its starts
// and exits in the evidence of the run it is attached to.
//
// Its methods are safe for concurrent use.
type Server struct {
	actor string
	start StartFunc

	order   sync.Mutex // serialises operations on the process
	process Process
	touched bool
	ports   []*Port // nil once closed

	mu   sync.Mutex // of the run it is attached to
	sink evidence.Sink
	log  io.WriteCloser
}

// StartFunc starts a server's process. log receives its output; exited must be
// called once when it has exited. partitions are those of its store, its own
// first, recorded with the start; nil if there are none.
type StartFunc func(ctx context.Context, log io.Writer, exited func(Exit)) (p Process, partitions []string, err error)

// NewServer returns a server attached to a run and not yet started. It takes
// ownership of the ports.
func NewServer(actor string, sink evidence.Sink, log io.WriteCloser, start StartFunc, ports ...*Port) *Server {
	return &Server{actor: actor, start: start, ports: ports, sink: sink, log: log}
}

// Attach directs events and log to another run from now on.
func (s *Server) Attach(sink evidence.Sink, log io.WriteCloser) {
	s.attach(sink, log)
	sink.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: s.actor, Reason: "reused from an earlier run that did not strike it"})
}

func (s *Server) attach(sink evidence.Sink, log io.WriteCloser) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sink, s.log = sink, log
}

// Detach ends the run's use of the server and closes the run's log.
func (s *Server) Detach() error {
	s.mu.Lock()
	log := s.log
	s.sink, s.log = nil, nil
	s.mu.Unlock()
	if log == nil {
		return nil
	}
	return log.Close()
}

// Write appends to the log of the attached run.
func (s *Server) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log == nil {
		return len(b), nil
	}
	return s.log.Write(b)
}

func (s *Server) record(e evidence.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sink != nil {
		e.Actor = s.actor
		s.sink.Record(e)
	}
}

// Restart starts the process, which must have exited.
func (s *Server) Restart(ctx context.Context) error {
	s.order.Lock()
	defer s.order.Unlock()
	if running(s.process) {
		return fmt.Errorf("process: restart %s: still running: kill it or shut it down first", s.actor)
	}
	l := &run{of: s}
	p, partitions, err := s.start(ctx, s, l.exited)
	if fell := (*StartError)(nil); errors.As(err, &fell) && fell.ByItself() {
		s.record(evidence.Event{Kind: evidence.ProcessExited, Exit: &evidence.ExitInfo{Code: fell.Exit.Code}, Reason: fell.Error()})
	}
	if err != nil {
		return err // it never served, so killing it is not an event of the system
	}
	s.touched = s.touched || s.process != nil // a restarted server counts as touched
	s.process = p
	l.started(partitions)
	return nil
}

// run is one process of a server. It counts as started once it serves; its exit
// is recorded after its start.
type run struct {
	of *Server

	mu        sync.Mutex
	serving   bool
	earlyExit *Exit // exit before it served
}

func (l *run) started(partitions []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of.record(evidence.Event{Kind: evidence.ProcessStarted, Partitions: partitions})
	if l.serving = true; l.earlyExit != nil {
		l.of.recordExit(*l.earlyExit)
	}
}

func (l *run) exited(e Exit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.serving {
		l.earlyExit = &e
		return
	}
	l.of.recordExit(e)
}

func (s *Server) recordExit(e Exit) {
	s.record(evidence.Event{Kind: evidence.ProcessExited, Exit: &evidence.ExitInfo{Code: e.Code, Signal: e.Signal, Ordered: e.Ordered, Waited: e.Waited}})
}

// Running reports whether the process is alive; a paused one is.
func (s *Server) Running() bool {
	s.order.Lock()
	defer s.order.Unlock()
	return running(s.process)
}

// Untouched reports whether it runs and was never killed, stopped or paused.
func (s *Server) Untouched() bool {
	s.order.Lock()
	defer s.order.Unlock()
	return running(s.process) && !s.touched
}

// Kill sends SIGKILL.
func (s *Server) Kill(ctx context.Context) error { return s.strike(ctx, Process.Kill) }

// Shutdown ends the process in order.
func (s *Server) Shutdown(ctx context.Context) error { return s.strike(ctx, Process.Stop) }

// Pause sends SIGSTOP.
func (s *Server) Pause(ctx context.Context) error { return s.strike(ctx, Process.Pause) }

// Continue sends SIGCONT.
func (s *Server) Continue(ctx context.Context) error { return s.strike(ctx, Process.Continue) }

// strike applies do to the current process: see Strike.
func (s *Server) strike(ctx context.Context, do func(Process, context.Context) error) error {
	s.order.Lock()
	defer s.order.Unlock()
	s.touched = s.touched || running(s.process)
	return Strike(ctx, s.process, do)
}

// Close ends the process in any state, detaches the run and releases the ports.
func (s *Server) Close(ctx context.Context) error {
	var errs []error
	if s.Running() {
		errs = append(errs, s.Shutdown(ctx))
	}
	s.order.Lock()
	ports := s.ports
	s.ports = nil
	s.order.Unlock()
	for _, p := range ports {
		errs = append(errs, p.Close())
	}
	return errors.Join(append(errs, s.Detach())...)
}
