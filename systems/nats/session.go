package nats

import (
	"context"
	"errors"
	"fmt"
	"net"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// session is one connection. Reconnecting and its buffer are disabled: a broken
// session stays broken.
type session struct {
	conn *client.Conn
	gone chan struct{} // closed when the connection is
}

func (p Profile) dial(ctx context.Context, address, name string) (*session, error) {
	gone := make(chan struct{})
	d := &dialer{ctx: ctx}
	options := []client.Option{
		client.Name(name),
		client.NoReconnect(),
		client.IgnoreDiscoveredServers(), // they would bypass this actor's link
		client.SetCustomDialer(d),
		client.Timeout(p.scaled(dialTimeout)),
		client.PingInterval(p.scaled(pingInterval)),
		client.MaxPingsOutstanding(2),
		client.FlusherTimeout(p.scaled(writeTimeout)),
		// nats.go prints these by default. A slow consumer means that it
		// dropped a message, which must not go unnoticed; the others end the
		// connection anyway.
		client.ErrorHandler(func(conn *client.Conn, _ *client.Subscription, err error) {
			if errors.Is(err, client.ErrSlowConsumer) {
				conn.Close()
			}
		}),
		client.ClosedHandler(func(*client.Conn) { close(gone) }),
	}
	if p.at.Password != "" {
		options = append(options, client.UserInfo(p.at.User, p.at.Password))
	}
	if p.at.TLS != nil {
		options = append(options, client.Secure(p.at.TLS))
	}
	conn, err := client.Connect("nats://"+address, options...)
	cancelled := !d.release()
	switch {
	case cancelled || ctx.Err() != nil:
		if err == nil {
			conn.Close()
		}
		return nil, fmt.Errorf("nats: connect to %s: %w", address, context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("nats: connect to %s: %w: %w", address, systems.ErrUnavailable, err)
	}
	return &session{conn: conn, gone: gone}, nil
}

// dialer lets a context cancel Connect, which takes none. Used by one Connect,
// on its goroutine.
type dialer struct {
	ctx  context.Context
	stop func() bool
}

func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(d.ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.stop = context.AfterFunc(d.ctx, tasks.Guarded(func() { conn.Close() }))
	return conn, nil
}

// release detaches the context from the connection; false if the context closed
// it.
func (d *dialer) release() bool { return d.stop == nil || d.stop() }

// Close ends the session and returns once the connection is closed. Outstanding
// publishes become Unknown.
func (s *session) Close(ctx context.Context) error {
	s.conn.Close()
	select {
	case <-s.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("nats: close: %w", context.Cause(ctx))
	}
}

// ended reports whether the session has ended.
func (s *session) ended() bool {
	select {
	case <-s.gone:
		return true
	default:
		return s.conn.IsClosed()
	}
}

// unavailable reports whether a failed JetStream call may succeed later: no
// server, no stream yet (one in memory is recreated after a restart), or no
// answer while the caller still waits.
func unavailable(ctx context.Context, err error) bool {
	for _, passing := range []error{client.ErrNoResponders, client.ErrConnectionClosed, client.ErrTimeout, jetstream.ErrStreamNotFound, context.DeadlineExceeded} {
		if errors.Is(err, passing) {
			return ctx.Err() == nil
		}
	}
	return false
}
