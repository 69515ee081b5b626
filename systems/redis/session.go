package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	client "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// session is one connection that is never re-established: the client gets a
// connection already dialled and no means to dial another.
type session struct {
	client *client.Client
	conn   *conn
	gone   <-chan struct{} // closed with the connection
}

// open dials and runs ready, a first exchange with the server: a link accepts
// connections even when the server behind it is down.
func (p Profile) open(ctx context.Context, address string, ready func(context.Context, *session) error) (*session, error) {
	bounded, cancel := context.WithTimeout(ctx, p.scaled(openWithin))
	defer cancel()
	tcp, err := (&net.Dialer{}).DialContext(bounded, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("redis: connect to %s: %w", address, unavailable(ctx, err))
	}
	if p.at.TLS != nil {
		secure := tls.Client(tcp, p.at.TLS)
		if err := secure.HandshakeContext(bounded); err != nil {
			_ = tcp.Close()
			return nil, fmt.Errorf("redis: TLS with %s: %w", address, unavailable(ctx, err))
		}
		tcp = secure
	}
	c := &conn{Conn: tcp, gone: make(chan struct{})}
	s := &session{conn: c, gone: c.gone, client: client.NewClient(&client.Options{
		Addr:     address,
		Dialer:   c.once(),
		Protocol: 3,
		Username: p.at.User,
		Password: p.at.Password,
		// By default the client retries and sends commands of its own.
		MaxRetries:               -1,
		DialerRetries:            1,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// One session is one connection, including pipelines. A pool of one
		// would dial in the background once its connection fails; a larger one
		// only fails.
		PoolSize:         2,
		PipelinePoolSize: -1,
		ReadTimeout:      p.scaled(replyWithin),
		WriteTimeout:     p.scaled(replyWithin),
		// go-redis adds ten seconds to the timeout of a blocking read; the
		// context's deadline is shorter.
		ContextTimeoutEnabled: true,
	})}
	stop := context.AfterFunc(bounded, tasks.Guarded(s.end))
	err = ready(bounded, s)
	if !stop() && err == nil {
		err = context.Cause(bounded)
	}
	if err != nil {
		s.end()
		return nil, fmt.Errorf("redis: open a session at %s: %w", address, unavailable(ctx, err))
	}
	return s, nil
}

// unavailable marks an error as temporary, unless the server replied or the
// caller gave up.
func unavailable(ctx context.Context, err error) error {
	var reply client.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &reply) && !strings.HasPrefix(err.Error(), "LOADING "):
		return err
	}
	return fmt.Errorf("%w: %w", systems.ErrUnavailable, err)
}

// end closes the connection, which unblocks all users.
func (s *session) end() {
	_ = s.conn.Close()
	_ = s.client.Close() // reports that the connection is closed
}

// ended reports whether the session has ended.
func (s *session) ended() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// errGone is returned to commands on an ended session.
var errGone = errors.New("redis: the connection is gone")

// conn is a session's connection. go-redis closes it after every error that
// leaves the order of replies in doubt, timeouts included.
type conn struct {
	net.Conn
	written atomic.Int64
	ending  sync.Once
	gone    chan struct{}
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.ending.Do(func() { close(c.gone) })
	return err
}

// once is a dialer that returns this connection once.
func (c *conn) once() func(context.Context, string, string) (net.Conn, error) {
	var taken atomic.Bool
	return func(context.Context, string, string) (net.Conn, error) {
		if taken.Swap(true) {
			return nil, errGone
		}
		return c, nil
	}
}

// ended waits for a session's goroutine after its connection is closed.
func ended(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("redis: close: %w", context.Cause(ctx))
	}
}
