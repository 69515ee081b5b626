// Package broker is the reference broker: small, visible, and built to be
// broken on purpose. See PROTOCOL.md for what is said on the wire and what each
// answer means.
package broker

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

// Server is a running broker. Its methods are safe for concurrent use.
//
// Goroutines: one accepts; two for each connection (reading, writing); one owns
// the state machine; one talks to the store. No peer can make another wait: what
// is for a peer goes to its own bounded queue.
type Server struct {
	cfg    Config
	ln     net.Listener
	begin  time.Time
	offset atomic.Int64 // of the wall clock, ns

	events   chan event
	stopping chan struct{} // nothing new is taken
	abandon  context.CancelFunc
	stop     sync.Once
	all      sync.WaitGroup // every goroutine
	done     chan struct{}

	lastSession atomic.Uint64
	connections chan struct{} // a place for each

	mu    sync.Mutex
	conns map[net.Conn]*transport.Conn
	ended bool
	err   error
}

// event is what a connection's reader tells the loop.
type event struct {
	opened *transport.Conn // with the first input
	inputs *[]core.Input   // from inputPool
}

const (
	gatherInputs = 128 // of one connection, before the loop gets them
	queuedEvents = 64
)

var inputPool = sync.Pool{New: func() any {
	batch := make([]core.Input, 0, gatherInputs)
	return &batch
}}

// Open recovers what the store holds, listens, and serves until Close. ctx
// bounds the recovery only.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, begin: time.Now(),
		events: make(chan event, queuedEvents), stopping: make(chan struct{}), done: make(chan struct{}),
		connections: make(chan struct{}, cfg.Connections), conns: map[net.Conn]*transport.Conn{},
	}
	running, abandon := context.WithCancel(context.Background())
	s.abandon = abandon
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
		close(s.done)
	}()
	cfg.Log.Info("broker is serving", "name", cfg.Name, "address", s.Addr())
	return s, nil
}

// Addr is host:port of the listener.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Done is closed when the server has ended.
func (s *Server) Done() <-chan struct{} { return s.done }

// Wait waits for the end; the error is nil after a Close.
func (s *Server) Wait() error {
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// SetClockOffset shifts the broker's wall clock, which decides about expiry and
// nothing else. It replaces the earlier offset.
func (s *Server) SetClockOffset(d time.Duration) { s.offset.Store(int64(d)) }

func (s *Server) now() core.Instant {
	return core.Instant{
		Wall:    s.cfg.Clock().Add(time.Duration(s.offset.Load())),
		Elapsed: time.Since(s.begin),
	}
}

// Close stops in good order: nothing new is taken, the commits under way and
// gathered are finished, their answers are sent, and every connection ends. When
// ctx ends first, the rest is abandoned: its publishers are left with Unknown.
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
		s.ln.Close()
	})
}

func (s *Server) accept() {
	for {
		nc, err := s.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.cfg.Log.Error("accepting connections has ended", "error", err)
			s.shutDown(fmt.Errorf("broker: accept: %w", err))
			return
		}
		select {
		case s.connections <- struct{}{}:
			s.all.Go(func() {
				defer func() { <-s.connections }()
				s.serve(nc)
			})
		default:
			s.cfg.Log.Warn("connection refused", "peer", nc.RemoteAddr(), "limit", s.cfg.Connections)
			nc.Close()
		}
	}
}

// track lets endConnections reach a connection: conn is nil until its handshake
// is done. False says that it is too late to begin one.
func (s *Server) track(nc net.Conn, conn *transport.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.conns[nc] = conn
	return true
}

func (s *Server) untrack(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, nc)
}

// endConnections lets every peer have what is queued for it, and none begin.
func (s *Server) endConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for nc, conn := range s.conns {
		if conn == nil {
			nc.Close()
			continue
		}
		conn.CloseAfterQueue()
	}
}

// serve is a connection's whole life.
func (s *Server) serve(nc net.Conn) {
	defer nc.Close()
	if !s.track(nc, nil) {
		return
	}
	defer s.untrack(nc)
	log := s.cfg.Log.With("peer", nc.RemoteAddr().String())
	conn, err := transport.Accept(nc, transport.Options{
		Handshake: s.cfg.Handshake, Silence: 3 * s.cfg.Heartbeat, Write: s.cfg.WriteTimeout,
		Heartbeat: s.cfg.Heartbeat, Queue: s.cfg.Outgoing,
	})
	if err != nil {
		log.Info("handshake failed", "error", err)
		return
	}
	s.all.Go(func() {
		if err := conn.Run(); !errors.Is(err, transport.ErrClosed) {
			log.Info("session lost while writing", "error", err)
		}
	})
	defer func() {
		conn.CloseAfterQueue()
		<-conn.Done()
	}()
	if !s.track(nc, conn) {
		return
	}
	hello, err := s.welcome(conn)
	if err != nil {
		log.Info("connection refused", "error", err)
		return
	}
	session := core.Session(s.lastSession.Add(1))
	log = log.With("client", hello.Client, "session", session)
	if !s.tell(event{opened: conn, inputs: one(core.Input{Kind: core.Opened, Session: session, Message: hello})}) {
		return
	}
	log.Debug("session opened")
	err = s.read(conn, session)
	log.Debug("session ended", "cause", err)
	s.tell(event{inputs: one(core.Input{Kind: core.Closed, Session: session})})
}

var errRefused = errors.New("refused")

// welcome reads the Hello. What is wrong with it is said before the end.
func (s *Server) welcome(conn *transport.Conn) (wire.Message, error) {
	hello, err := conn.Receive()
	reason := ""
	switch {
	case isMessageError(err):
		reason = err.Error()
	case err != nil:
		return hello, err
	case hello.Kind != wire.Hello:
		reason = "the first message must be Hello"
	case hello.Client == "":
		reason = "Hello needs the client's name"
	case subtle.ConstantTimeCompare([]byte(hello.Token), []byte(s.cfg.Token)) != 1:
		reason = "the token is wrong"
	default:
		return hello, nil
	}
	_, _ = conn.Send(&wire.Message{Kind: wire.Error, Request: hello.Request, Reason: reason})
	return hello, fmt.Errorf("%w: %s", errRefused, reason)
}

func isMessageError(err error) bool {
	return errors.Is(err, wire.ErrVersion) || errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrField)
}

// read tells the loop what a session says, as many messages at once as are here.
func (s *Server) read(conn *transport.Conn, session core.Session) error {
	for {
		batch := inputPool.Get().(*[]core.Input)
		var err error
		for {
			var m wire.Message
			m, err = conn.Receive()
			switch {
			case isMessageError(err):
				*batch = append(*batch, core.Input{Kind: core.Malformed, Session: session, Message: m, Reason: err.Error()})
				err = nil
			case err == nil:
				*batch = append(*batch, core.Input{Kind: core.Received, Session: session, Message: m})
			}
			if err != nil || len(*batch) == gatherInputs || !conn.Buffered() {
				break
			}
		}
		if !s.tell(event{inputs: batch}) {
			return transport.ErrClosed
		}
		if err != nil {
			return err
		}
	}
}

func one(in core.Input) *[]core.Input {
	batch := inputPool.Get().(*[]core.Input)
	*batch = append(*batch, in)
	return batch
}

// tell is false when the loop takes nothing any more.
func (s *Server) tell(e event) bool {
	select {
	case s.events <- e:
		return true
	case <-s.stopping:
		return false
	}
}
