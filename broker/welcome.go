package broker

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/access"
	"github.com/custodymq/custody/broker/admission"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

// welcome takes a connection from its first byte to an accepted Hello: within
// Config.Handshake, in its place at the gate, and with the small frames to which
// transport limits it until then. After that it occupies a session slot. welcome
// logs failures, and tells a peer that got as far as a Hello.
func (s *Server) welcome(nc net.Conn, place *admission.Place) (session, wire.Message, error) {
	deadline := time.Now().Add(s.cfg.Handshake)
	conn, err := transport.Accept(nc, transport.Options{
		TLS: s.cfg.TLS, Handshake: s.cfg.Handshake, Silence: 3 * s.cfg.Heartbeat, Write: s.cfg.WriteTimeout,
		Heartbeat: s.cfg.Heartbeat, Queue: s.cfg.Outgoing,
	})
	if err != nil {
		s.turnAway(nc, place, &s.refused.handshakes, "handshake failed", err)
		return session{}, wire.Message{}, err
	}
	hello, err := conn.Receive()
	if err != nil && !isMessageError(err) {
		s.turnAway(nc, place, &s.refused.handshakes, "no Hello came", err)
		return session{}, hello, err
	}
	user, err := s.judge(conn, &hello, err)
	switch {
	case errors.Is(err, errStranger):
		failures, wait := place.Penalize()
		s.refused.tokens.Add(1)
		s.tokens.log("token refused", "peer", nc.RemoteAddr().String(), "client", hello.Client, "failures", failures, "wait", wait.String())
		s.serveTime(place, min(wait, time.Until(deadline)))
	case err != nil:
		s.turnAway(nc, place, &s.refused.handshakes, "connection refused", err)
	case !place.Leave():
		err = errors.New("the place was needed for another connection")
		s.turnAway(nc, place, &s.refused.places, "connection refused", err)
	default:
		select {
		case s.sessions <- struct{}{}:
			if err = conn.Admit(); err == nil {
				return session{conn: conn, user: user}, hello, nil
			}
			<-s.sessions
			return session{}, hello, err
		default:
			err = fmt.Errorf("limit of %d sessions reached", cap(s.sessions))
			s.turnAway(nc, place, &s.refused.sessions, "connection refused", err)
		}
	}
	_ = conn.Refuse(&wire.Message{Kind: wire.Error, Request: hello.Request, Reason: core.Clip(err.Error())}) // the peer may be gone
	return session{}, hello, err
}

var errStranger = errors.New("the token is wrong")

// judge returns the user who has said Hello, or why the Hello is refused.
func (s *Server) judge(conn *transport.Conn, hello *wire.Message, malformed error) (*access.User, error) {
	switch {
	case malformed != nil:
		return nil, malformed
	case hello.Kind != wire.Hello:
		return nil, errors.New("the first message must be Hello")
	case hello.Client == "":
		return nil, errors.New("the Hello needs the client's name")
	case s.cfg.Users == nil && !access.Equal(hello.Token, s.cfg.Token):
		return nil, errStranger
	case s.cfg.Users == nil:
		return nil, nil
	}
	s.mu.Lock()
	users := s.users
	s.mu.Unlock()
	user := users.Known(hello.Token, conn.Certificate())
	if user == nil {
		return nil, errStranger
	}
	return user, nil
}

// serveTime keeps a connection and its place for the duration of a penalty.
func (s *Server) serveTime(place *admission.Place, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-place.Lost():
	case <-s.stopping:
	}
}

// turnAway counts and logs a refused stranger.
func (s *Server) turnAway(nc net.Conn, place *admission.Place, counter *atomic.Uint64, what string, err error) {
	select {
	case <-place.Lost():
		counter, what, err = &s.refused.places, "connection ended: its place was needed", errors.New("it had not said Hello yet")
	default:
	}
	counter.Add(1)
	s.vain.Add(1)
	s.strangers.log(what, "peer", nc.RemoteAddr().String(), "error", err)
}
