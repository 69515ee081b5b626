package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/custodymq/custody/evidence"
)

// Server is the server of a system under test, whatever runs it: a Process that
// can be started again with the same address and the same data. It records its
// life in the evidence of the run that it is attached to.
//
// Its methods are safe for concurrent use.
type Server struct {
	actor string
	start StartFunc

	order   sync.Mutex // one order to the process at a time
	process Process
	touched bool
	ports   []*Port // nil once it is closed

	mu   sync.Mutex // of the run that it is attached to
	sink evidence.Sink
	log  io.WriteCloser
}

// StartFunc starts a server's process. log takes what it prints, and exited
// must be called once when it has ended. The partitions of its store, its own
// first, are recorded with the start; nil where it has none.
type StartFunc func(ctx context.Context, log io.Writer, exited func(Exit)) (p Process, partitions []string, err error)

// NewServer makes a server that is attached to a run and not started yet. The
// ports are its own from then on.
func NewServer(actor string, sink evidence.Sink, log io.WriteCloser, start StartFunc, ports ...*Port) *Server {
	return &Server{actor: actor, start: start, ports: ports, sink: sink, log: log}
}

// Attach gives what happens from now on to another run.
func (s *Server) Attach(sink evidence.Sink, log io.WriteCloser) {
	s.attach(sink, log)
	sink.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: s.actor, Reason: "kept from an earlier run, which had not struck it"})
}

func (s *Server) attach(sink evidence.Sink, log io.WriteCloser) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sink, s.log = sink, log
}

// Detach ends the run's part in this server, and closes the run's log.
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

// Write takes what the process prints, whichever run is attached.
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

// Restart starts the process, which must have ended.
func (s *Server) Restart(ctx context.Context) error {
	s.order.Lock()
	defer s.order.Unlock()
	if running(s.process) {
		return fmt.Errorf("process: restart %s: it still runs: kill it or shut it down first", s.actor)
	}
	l := &incarnation{of: s}
	p, partitions, err := s.start(ctx, s, l.exited)
	if fell := (*StartError)(nil); errors.As(err, &fell) && fell.ByItself() {
		s.record(evidence.Event{Kind: evidence.ProcessExited, Exit: &evidence.ExitInfo{Code: fell.Exit.Code}, Reason: fell.Error()})
	}
	if err != nil {
		return err // it never served: that we ended it is no event of the system's
	}
	s.touched = s.touched || s.process != nil // it has ended once
	s.process = p
	l.started(partitions)
	return nil
}

// incarnation is one process of a server: its life begins when the process serves, and its
// end is recorded after its beginning.
type incarnation struct {
	of *Server

	mu      sync.Mutex
	serving bool
	early   *Exit // before it was known to serve
}

func (l *incarnation) started(partitions []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of.record(evidence.Event{Kind: evidence.ProcessStarted, Partitions: partitions})
	if l.serving = true; l.early != nil {
		l.of.recordExit(*l.early)
	}
}

func (l *incarnation) exited(e Exit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.serving {
		l.early = &e
		return
	}
	l.of.recordExit(e)
}

func (s *Server) recordExit(e Exit) {
	s.record(evidence.Event{Kind: evidence.ProcessExited, Exit: &evidence.ExitInfo{Code: e.Code, Signal: e.Signal, Ordered: e.Ordered}})
}

// Running says whether the process lives; a paused one does.
func (s *Server) Running() bool {
	s.order.Lock()
	defer s.order.Unlock()
	return running(s.process)
}

// Untouched says that it runs and that nobody has killed, stopped or paused it.
func (s *Server) Untouched() bool {
	s.order.Lock()
	defer s.order.Unlock()
	return running(s.process) && !s.touched
}

// Kill ends the process at once.
func (s *Server) Kill(ctx context.Context) error { return s.strike(ctx, Process.Kill) }

// Shutdown ends the process in order.
func (s *Server) Shutdown(ctx context.Context) error { return s.strike(ctx, Process.Stop) }

// Pause stops the process without ending it.
func (s *Server) Pause(ctx context.Context) error { return s.strike(ctx, Process.Pause) }

// Continue lets a paused process go on.
func (s *Server) Continue(ctx context.Context) error { return s.strike(ctx, Process.Continue) }

// strike gives an order to the process that there is now: see Strike.
func (s *Server) strike(ctx context.Context, do func(Process, context.Context) error) error {
	s.order.Lock()
	defer s.order.Unlock()
	s.touched = s.touched || running(s.process)
	return Strike(ctx, s.process, do)
}

// Close ends the process, whatever state it is in, and the run's part in it,
// and gives its ports back.
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
