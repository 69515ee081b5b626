package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// session is one client with its connections. kgo opens several to the broker
// and reopens them when they break. Here all of them go to the actor's link,
// whatever address the broker advertises, and the first to break ends the
// session: nothing is re-established silently.
type session struct {
	profile Profile
	client  *kgo.Client
	address string
	again   bool // the client may reconnect
	closing sync.Once
	gone    chan struct{} // closed at the end of the session

	mu    sync.Mutex
	why   error // set before gone is closed
	conns map[*conn]struct{}
}

func newSession(p Profile, address string, again bool) *session {
	return &session{profile: p, address: address, again: again, gone: make(chan struct{}), conns: make(map[*conn]struct{})}
}

// start creates the client.
func (s *session) start(name string, opts ...kgo.Opt) (err error) {
	s.client, err = kgo.NewClient(slices.Concat(s.profile.clientOptions(s.address), []kgo.Opt{
		kgo.ClientID(name), // identifies the session on the link
		kgo.Dialer(s.dial),
		kgo.ConnIdleTimeout(15 * time.Minute), // idle connections must not end the session
		kgo.RequestTimeoutOverhead(s.profile.scaled(requestTimeout)),
		kgo.RequestRetries(0),
	}, opts)...)
	if err != nil {
		return fmt.Errorf("kafka: make a client: %w", err)
	}
	return nil
}

func (s *session) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	select {
	case <-s.gone:
		return nil, errOver
	default:
	}
	raw, err := s.profile.dial(ctx, network, s.address)
	if err != nil {
		if !s.again && ctx.Err() == nil {
			s.end(err)
		}
		return nil, err
	}
	c := &conn{Conn: raw, session: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		raw.Close()
		return nil, errOver
	}
	s.conns[c] = struct{}{}
	return c, nil
}

var errOver = errors.New("kafka: the session has ended")

// end ends the session once, with its cause.
func (s *session) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return
	}
	s.why = why
	close(s.gone)
	for c := range s.conns {
		c.Conn.Close()
	}
}

// conn reports its end to its session, unless the client ended it to interrupt
// a request, which it does with a deadline in the past.
type conn struct {
	net.Conn
	session     *session
	interrupted atomic.Bool
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.interrupts(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.interrupts(t)
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) SetDeadline(t time.Time) error {
	c.interrupts(t)
	return c.Conn.SetDeadline(t)
}

func (c *conn) interrupts(t time.Time) {
	if !t.IsZero() && !t.After(time.Now()) {
		c.interrupted.Store(true)
	}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.lost(err)
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.lost(err)
	return n, err
}

func (c *conn) Close() error {
	c.session.forget(c)
	return c.Conn.Close()
}

func (c *conn) lost(err error) {
	if err == nil {
		return
	}
	c.session.forget(c)
	if !c.session.again && !c.interrupted.Load() && !errors.Is(err, net.ErrClosed) {
		c.session.end(fmt.Errorf("kafka: a connection ended: %w", err))
	}
}

func (s *session) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// reason is the cause of the end.
func (s *session) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// disconnected is the error of an ended session.
func (s *session) disconnected() error {
	return fmt.Errorf("%w: %w", systems.ErrDisconnected, s.reason())
}

// joining waits for the response to a member's first join request, from which
// on the coordinator knows it. The assignment comes later, when the other
// members have joined too.
type joining struct {
	request kmsg.Key
	once    sync.Once
	done    chan struct{}
}

var _ kgo.HookBrokerE2E = (*joining)(nil)

func newJoining(request kmsg.Key) *joining {
	return &joining{request: request, done: make(chan struct{})}
}

func (j *joining) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if key == int16(j.request) && e2e.Err() == nil {
		j.once.Do(func() { close(j.done) })
	}
}

// opened waits for ready; a session that ends before is unavailable.
func (s *session) opened(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-s.gone:
		return fmt.Errorf("kafka: connect to %s: %w: %w", s.address, systems.ErrUnavailable, s.reason())
	case <-ctx.Done():
		return fmt.Errorf("kafka: connect to %s: %w", s.address, context.Cause(ctx))
	}
}

// until derives a context that also ends when gone is closed.
func until(ctx context.Context, gone <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	tasks.Go(func() {
		select {
		case <-gone:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}

// poll fetches one record. empty is called after each poll without one, because
// those block a rebalance too.
func (s *session) poll(ctx context.Context, empty func()) (*kgo.Record, error) {
	polling, cancel := until(ctx, s.gone)
	defer cancel()
	for {
		fetches := s.client.PollRecords(polling, 1)
		if records := fetches.Records(); len(records) > 0 {
			return records[0], nil
		}
		empty()
		select {
		case <-s.gone:
			return nil, s.disconnected()
		default:
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		// The client retries temporary errors; any other ends the session.
		// Being dropped by the group is reported elsewhere, and errors from
		// before joining are past.
		for _, e := range fetches.Errors() {
			var group *kgo.ErrGroupSession
			if !errors.As(e.Err, &group) && !kerr.IsRetriable(e.Err) {
				s.end(e.Err)
				return nil, s.disconnected()
			}
		}
	}
}

// close ends the session; leave also leaves its group.
func (s *session) close(ctx context.Context, leave bool) {
	s.closing.Do(func() {
		select {
		case <-s.gone:
			leave = false
		default:
		}
		s.client.AllowRebalance()
		if leave {
			// On failure the session timeout removes the member.
			_ = s.client.LeaveGroupContext(ctx)
		}
		s.end(errOver)
		s.client.CloseAllowingRebalance()
	})
}
