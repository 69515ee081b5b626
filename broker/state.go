package broker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/core"
)

// State is a running server's state, for monitoring.
type State struct {
	Core     core.Stats
	Gathered int // operations waiting for the store's next turn

	Sessions      int // connections that have said Hello
	Strangers     int // connections that have not
	Waiting       int // sessions with input waiting for the state machine
	OutgoingBytes int // sum of bytes waiting to be written
	Refused       map[Refusal]uint64
	Turns         Turns
}

// Refusal is the reason why a connection or request was turned away before it
// reached the state machine.
type Refusal string

const (
	RefusedHandshake  Refusal = "handshake"  // no valid handshake and Hello, or not in time
	RefusedPlace      Refusal = "place"      // evicted for another connection, or its address was serving penalties
	RefusedSessions   Refusal = "sessions"   // the limit of sessions was reached
	RefusedToken      Refusal = "token"      // a wrong token, or no user's certificate
	RefusedPermission Refusal = "permission" // a request without permission
)

// Turns is a histogram of the duration of the store's turns.
type Turns struct {
	Count      uint64
	Operations uint64
	Sum        time.Duration
	Within     map[time.Duration]uint64 // cumulative
}

// State returns the server's state. It waits for the state machine as long as ctx
// allows; with an error Core and Gathered are zero and the rest is valid.
func (s *Server) State(ctx context.Context) (State, error) {
	st := State{
		Sessions: len(s.sessions), Strangers: s.gate.Taken(), Waiting: s.inbox.waiting(),
		Refused: s.refused.counts(), Turns: s.turns.state(),
	}
	s.mu.Lock()
	for _, of := range s.conns {
		if of.conn != nil {
			st.OutgoingBytes += of.conn.Waiting()
		}
	}
	s.mu.Unlock()
	type answer struct {
		core     core.Stats
		gathered int
	}
	answered := make(chan answer, 1)
	if !s.inbox.ask(func(e *Engine) { answered <- answer{e.Stats(), e.waiting} }) {
		return st, errors.New("broker: too many ask for the state at once")
	}
	select {
	case a := <-answered:
		st.Core, st.Gathered = a.core, a.gathered
		return st, nil
	case <-s.done:
		return st, errEnded
	case <-ctx.Done():
		return st, ctx.Err()
	}
}

// refusals counts since the start.
type refusals struct{ handshakes, places, sessions, tokens, permissions atomic.Uint64 }

func (r *refusals) counts() map[Refusal]uint64 {
	return map[Refusal]uint64{
		RefusedHandshake: r.handshakes.Load(), RefusedPlace: r.places.Load(), RefusedSessions: r.sessions.Load(),
		RefusedToken: r.tokens.Load(), RefusedPermission: r.permissions.Load(),
	}
}

// bounds of the histogram cover a sync on anything from a fast disk to one that
// hangs.
var bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second, 5 * time.Second,
}

type turns struct {
	mu         sync.Mutex
	sum        time.Duration
	operations uint64
	count      uint64
	within     [len(bounds)]uint64
}

func (t *turns) add(took time.Duration, operations int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count++
	t.sum += took
	t.operations += uint64(operations)
	for i, bound := range bounds {
		if took <= bound {
			t.within[i]++
		}
	}
}

func (t *turns) state() Turns {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := Turns{Count: t.count, Operations: t.operations, Sum: t.sum, Within: map[time.Duration]uint64{}}
	for i, bound := range bounds {
		st.Within[bound] = t.within[i]
	}
	return st
}
