// Package broker is the reference broker: small, visible, and built to be
// broken on purpose. See PROTOCOL.md for what is said on the wire and what each
// answer means.
package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/custodymq/custody/broker/access"
	"github.com/custodymq/custody/broker/admission"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

// Server is a running broker. Its methods are safe for concurrent use.
//
// It runs one goroutine that accepts connections, one per connection until its
// Hello is accepted and two afterwards (reading and writing), one that owns the
// state machine, one that writes to the store, and a few that read from it. No
// peer can block another: its input waits for its turn in a bounded inbox of its
// own, and output to it in a bounded queue of its own.
type Server struct {
	cfg    Config
	ln     net.Listener
	begin  time.Time
	offset atomic.Int64 // of the wall clock, ns

	inbox      *inbox
	outgoing   *transport.Budget
	stopping   chan struct{}      // closed when nothing new is accepted
	stopTaking context.CancelFunc // unblocks readers that wait for room in the inbox
	abandon    context.CancelFunc
	stop       sync.Once
	all        sync.WaitGroup // every goroutine
	done       chan struct{}

	lastSession atomic.Uint64
	gate        *admission.Gate // for connections that have not said Hello
	sessions    chan struct{}   // semaphore for those that have
	strangers   audit           // logs events before the Hello
	tokens      audit           // logs wrong tokens and missing permissions
	refused     refusals
	vain        atomic.Uint64 // connections that came to nothing, those with wrong tokens aside, which have to wait anyway
	turns       turns

	mu    sync.Mutex
	conns map[net.Conn]session
	users *access.Users
	ended bool
	err   error
}

// session is a connection. It is zero until the Hello is accepted.
type session struct {
	conn *transport.Conn
	user *access.User // nil may do everything
}

// Open recovers the store's rows, listens, and serves until Close. ctx bounds
// only the recovery.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, begin: time.Now(),
		outgoing: transport.NewBudget(cfg.Memory / shareOutgoing),
		stopping: make(chan struct{}), done: make(chan struct{}),
		gate: admission.New(cfg.gate(), time.Now), sessions: make(chan struct{}, cfg.Connections),
		strangers: newAudit(cfg.Log), tokens: newAudit(cfg.Log),
		conns: map[net.Conn]session{}, users: cfg.Users,
	}
	running, abandon := context.WithCancel(context.Background())
	s.abandon = abandon
	taking, stopTaking := context.WithCancel(running)
	s.stopTaking = stopTaking
	s.inbox = newInbox(taking, cfg.Connections, cfg.Memory/shareIncoming)
	l := newLoop(running, s, newEngine(&cfg, rand.Text()[:8]+"-"))
	if err := l.engine.Recover(ctx, s.now); err != nil {
		abandon()
		return nil, err
	}
	if s.ln, err = net.Listen("tcp", cfg.Listen); err != nil {
		abandon()
		return nil, fmt.Errorf("broker: listen: %w", err)
	}
	s.all.Go(s.accept)
	s.all.Go(l.run)
	go func() {
		s.all.Wait()
		abandon()
		if err := l.engine.Release(); err != nil {
			cfg.Log.Error("a store could not be closed", "error", err)
		}
		close(s.done)
	}()
	cfg.Log.Info("broker is serving", "name", cfg.Name, "address", s.Addr(), "tls", cfg.TLS != nil)
	return s, nil
}

var errEnded = errors.New("broker: the server has ended")

// Addr returns the listener's host:port.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Done returns a channel that is closed when the server has ended.
func (s *Server) Done() <-chan struct{} { return s.done }

// Wait blocks until the server has ended. The error is nil after Close.
func (s *Server) Wait() error {
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// SetClockOffset shifts the broker's wall clock, which decides only expiry. It
// replaces any earlier offset.
func (s *Server) SetClockOffset(d time.Duration) { s.offset.Store(int64(d)) }

func (s *Server) now() core.Instant {
	return core.Instant{
		Wall:    s.cfg.Clock().Add(time.Duration(s.offset.Load())),
		Elapsed: time.Since(s.begin),
	}
}

// Close shuts down gracefully: nothing new is accepted, commits in progress and
// queued are finished and answered, and every connection ends. If ctx ends first,
// the rest is abandoned, and its publishers are left with Unknown.
func (s *Server) Close(ctx context.Context) error {
	s.shutDown(nil)
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	s.abandon()
	s.mu.Lock()
	for nc := range s.conns {
		nc.Close()
	}
	s.mu.Unlock()
	<-s.done
	return fmt.Errorf("broker: close: unfinished work was abandoned: %w", ctx.Err())
}

func (s *Server) shutDown(cause error) {
	s.stop.Do(func() {
		s.mu.Lock()
		s.err = cause
		s.mu.Unlock()
		close(s.stopping)
		s.stopTaking()
		s.ln.Close()
	})
}

func (s *Server) accept() {
	var vain uint64 // up to the last pause
	for {
		nc, err := s.ln.Accept()
		switch {
		case err == nil:
			s.admit(nc)
			if n := s.vain.Load(); n-vain >= vainAtOnce {
				vain = n
				s.pause(vainPause)
			}
		case errors.Is(err, net.ErrClosed):
			return
		case passing(err):
			s.strangers.log("a connection could not be accepted", "error", err)
			s.pause(acceptPause)
		default:
			s.cfg.Log.Error("accepting connections has ended", "error", err)
			s.shutDown(fmt.Errorf("broker: accept: %w", err))
			return
		}
	}
}

const (
	// acceptPause is the delay before retrying when file descriptors run out.
	acceptPause = 50 * time.Millisecond
	// After vainAtOnce connections that came to nothing, accepting pauses: strangers
	// who come back at once get no more of the processor than 2,000 connections a
	// second take. The others wait in the kernel's queue for as long.
	vainAtOnce = 2
	vainPause  = time.Millisecond
)

func (s *Server) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.stopping:
	}
}

// passing reports whether the listener is still usable after this error.
func passing(err error) bool {
	for _, passing := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

func (s *Server) admit(nc net.Conn) {
	place := s.gate.Enter(nc.RemoteAddr(), nc)
	if place == nil {
		s.refused.places.Add(1)
		s.strangers.log("connection refused: its address is serving penalties for wrong tokens", "peer", nc.RemoteAddr().String())
		nc.Close()
		return
	}
	s.all.Go(func() { s.serve(nc, place) })
}

// track registers a connection for endConnections and SetUsers. It returns false
// if the connection must not begin, because the server is ending or the user has
// changed.
func (s *Server) track(nc net.Conn, of session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || of.user != nil && !s.users.Has(of.user) {
		return false
	}
	s.conns[nc] = of
	return true
}

func (s *Server) untrack(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, nc)
}

// endConnections closes every connection after its queue is written, and prevents
// new ones.
func (s *Server) endConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for nc, of := range s.conns {
		if of.conn == nil {
			nc.Close()
			continue
		}
		of.conn.CloseAfterQueue()
	}
}

// SetUsers replaces the users of a server that was opened with some. A session
// keeps the permissions with which it began, so sessions whose user was removed
// or changed in any way are ended: their messages go to others, and their clients
// must reconnect.
func (s *Server) SetUsers(users *access.Users) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = users
	for _, of := range s.conns {
		if of.user == nil || users.Has(of.user) {
			continue
		}
		s.cfg.Log.Info("session ended: its user was changed", "peer", of.conn.RemoteAddr().String(), "user", of.user.Name)
		_, _ = of.conn.Send(&wire.Message{Kind: wire.Error, Reason: "this user was changed or removed: connect again"})
		of.conn.CloseAfterQueue()
	}
}

// serve handles a connection from accept to close.
func (s *Server) serve(nc net.Conn, place *admission.Place) {
	defer nc.Close()
	defer place.Leave()
	if !s.track(nc, session{}) {
		return
	}
	defer s.untrack(nc)
	entered, hello, err := s.welcome(nc, place)
	if err != nil {
		return
	}
	defer func() { <-s.sessions }()
	conn := entered.conn
	if !s.track(nc, entered) {
		return
	}
	id := core.Session(s.lastSession.Add(1))
	log := s.cfg.Log.With("peer", nc.RemoteAddr().String(), "client", hello.Client, "session", id)
	if entered.user != nil {
		log = log.With("user", entered.user.Name)
	}
	conn.SetBudget(s.outgoing)
	conn.Share()
	p := s.inbox.enter(id, conn)
	s.all.Go(func() {
		if err := conn.Run(); !errors.Is(err, transport.ErrClosed) {
			log.Info("session lost while writing", "error", err)
		}
	})
	defer func() {
		conn.CloseAfterQueue()
		<-conn.Done()
	}()
	p.add(core.Input{Kind: core.Opened, Session: id, Message: hello})
	if p.hand() != nil {
		return
	}
	log.Debug("session opened")
	err = s.read(entered, p)
	if errors.Is(err, transport.ErrFrame) {
		s.vain.Add(1)
	}
	log.Debug("session ended", "cause", err)
	p.leave()
	p.add(core.Input{Kind: core.Closed, Session: id})
	_ = p.hand()
}

func isMessageError(err error) bool {
	return errors.Is(err, wire.ErrVersion) || errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrField)
}

// read passes a session's messages to the loop, batching those that have arrived.
func (s *Server) read(from session, p *peer) error {
	var m wire.Message // one for all, for its address is passed on
	for {
		var err error
		m, err = from.conn.Receive()
		switch {
		case isMessageError(err):
			p.add(core.Input{Kind: core.Malformed, Session: p.id, Message: m, Reason: err.Error()})
			err = nil
		case err != nil:
		case permitted(from.user, &m):
			p.add(core.Input{Kind: core.Received, Session: p.id, Message: m})
		default:
			p.leave()
			err = s.forbid(from, &m)
		}
		if err != nil || len(p.batch) >= gatherInputs || !from.conn.Buffered() {
			if ended := p.hand(); ended != nil {
				return transport.ErrClosed
			}
		}
		if err != nil {
			return err
		}
	}
}
