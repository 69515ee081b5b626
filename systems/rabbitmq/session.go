package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// session is one connection with one channel that is never re-established. It
// ends as a whole: when the server closes the channel, the connection follows.
type session struct {
	conn    *client.Connection
	channel *client.Channel
	gone    chan struct{} // closed at the end of the session
}

// dial opens a session and runs setup on its channel, within a bound of its own
// and the caller's context. The client's calls take no context, so the
// connection is closed under them.
func dial(ctx context.Context, at systems.Endpoint, name string, within time.Duration, setup func(*client.Channel) error) (*session, error) {
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s, err := open(bounded, at, name, setup)
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("rabbitmq: session with %s: %w", at, context.Cause(ctx))
	case refused(err):
		return nil, fmt.Errorf("rabbitmq: session with %s: %w", at, err)
	}
	return nil, fmt.Errorf("rabbitmq: session with %s: %w: %w", at, systems.ErrUnavailable, err)
}

func open(ctx context.Context, at systems.Endpoint, name string, setup func(*client.Channel) error) (_ *session, err error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", at.Address)
	if err != nil {
		return nil, err
	}
	release := context.AfterFunc(ctx, tasks.Guarded(func() { raw.Close() }))
	defer func() {
		if !release() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			raw.Close() // also ends the client's goroutines
		}
	}()
	var stream net.Conn = boundedConn{raw}
	if at.TLS != nil {
		secure := tls.Client(stream, at.TLS)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		stream = secure
	}
	user := &client.PlainAuth{Username: at.User, Password: at.Password}
	if at.User == "" && at.Password == "" {
		user.Username, user.Password = "guest", "guest" // RabbitMQ's default
	}
	properties := client.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	conn, err := client.Open(stream, client.Config{
		SASL:       []client.Authentication{user},
		Vhost:      "/",
		Heartbeat:  heartbeat,
		FrameSize:  frameSize,
		Properties: properties,
	})
	if err != nil {
		return nil, err
	}
	channel, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := setup(channel); err != nil {
		return nil, err
	}
	s := &session{conn: conn, channel: channel, gone: make(chan struct{})}
	closed := channel.NotifyClose(make(chan *client.Error, 1))
	tasks.Go(func() {
		for range closed {
			continue // closed at the channel's end, whatever ends it
		}
		_ = conn.CloseDeadline(time.Now().Add(closeTimeout)) // already closed or closing
		close(s.gone)
	})
	return s, nil
}

// boundedConn bounds every write by writeTimeout: on a server that does not
// read, the client would block forever, holding locks that closing needs.
type boundedConn struct{ net.Conn }

func (c boundedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close ends the session in an orderly way, so that the server has processed
// everything sent, and returns once the connection is closed. Outstanding
// publishes become Unknown.
func (s *session) Close(ctx context.Context) error {
	deadline := time.Now().Add(closeTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	// Without an answer the connection is closed all the same.
	_ = s.conn.CloseDeadline(deadline)
	select {
	case <-s.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("rabbitmq: close: %w", context.Cause(ctx))
	}
}

// ended reports whether the session has ended.
func (s *session) ended() bool {
	select {
	case <-s.gone:
		return true
	default:
		return s.conn.IsClosed() || s.channel.IsClosed()
	}
}

// refused reports a permanent refusal by the server.
func refused(err error) bool {
	var said *client.Error
	if !errors.As(err, &said) || !said.Server {
		return false
	}
	switch said.Code {
	case client.AccessRefused, client.PreconditionFailed, client.NotAllowed, client.NotImplemented:
		return true
	}
	return false
}
