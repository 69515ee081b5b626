package mqtt

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
	v311 "github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// session is one connection that is never re-established. It uses paho.golang's
// packets but not its client, which delays acknowledgements until a ticker
// fires, and whose publish either blocks until the answer or never reports it.
type session struct {
	conn    net.Conn
	reader  *bufio.Reader
	v311    bool          // MQTT 3.1.1
	timeout time.Duration // per write
	quota   uint16        // the server's Receive Maximum

	release func() // called at the end of the connection, before gone is closed

	writing sync.Mutex
	pinged  atomic.Bool // nothing received since the last heartbeat
	end     sync.Once
	gone    chan struct{} // closed at the end of the connection
	cause   error         // of the end; valid once gone is closed
	loops   tasks.Group
}

// errClosed is the cause after Close.
var errClosed = errors.New("closed by its owner")

// open connects and performs the handshake; serve must follow. release is
// called when the connection ends, but not if open fails.
func (p Profile) open(ctx context.Context, address string, connect *packets.Connect, release func()) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, p.scaled(dialTimeout))
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, p.openError(ctx, address, err)
	}
	if p.at.TLS != nil {
		conn = tls.Client(conn, p.at.TLS) // TLS handshake on first write
	}
	if p.at.Password != "" {
		connect.UsernameFlag, connect.Username = p.at.User != "", p.at.User
		connect.PasswordFlag, connect.Password = true, []byte(p.at.Password)
	}
	letGo := context.AfterFunc(ctx, tasks.Guarded(func() { conn.Close() }))
	s := &session{conn: conn, reader: bufio.NewReader(conn), v311: p.v311, timeout: p.scaled(writeTimeout), gone: make(chan struct{}), release: func() {}}
	err = s.handshake(connect)
	if !letGo() || err != nil {
		conn.Close()
		return nil, p.openError(ctx, address, err)
	}
	s.release = release
	return s, nil
}

// openError classifies a failure to open: cancelled, refused, or unavailable for
// now.
func (p Profile) openError(ctx context.Context, address string, err error) error {
	var refused *refusedError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("mqtt: connect to %s: %w", address, context.Cause(ctx))
	case errors.As(err, &refused) && !refused.passing():
		return fmt.Errorf("mqtt: connect to %s: %w", address, err)
	}
	return fmt.Errorf("mqtt: connect to %s: %w: %w", address, systems.ErrUnavailable, errors.Join(err, ctx.Err()))
}

// refusedError is an unsuccessful CONNACK.
type refusedError struct{ code byte }

func (e *refusedError) Error() string {
	return fmt.Sprintf("the server refuses, reason 0x%02x", e.code)
}

// passing reports whether the server may accept later: it is unavailable or
// busy.
func (e *refusedError) passing() bool { return e.code == serverUnavailable || e.code == 0x89 }

func (s *session) handshake(connect *packets.Connect) error {
	connect.ProtocolName, connect.ProtocolVersion = "MQTT", 5
	if _, err := s.write(connect); err != nil {
		return err
	}
	answer, err := s.next()
	if err != nil {
		return err
	}
	connack, ok := answer.Content.(*packets.Connack)
	if !ok {
		return fmt.Errorf("%s instead of CONNACK", answer.PacketType())
	}
	if connack.ReasonCode >= failure {
		return &refusedError{connack.ReasonCode}
	}
	s.quota = math.MaxUint16
	if most := connack.Properties.ReceiveMaximum; most != nil {
		s.quota = *most
	}
	return nil
}

// serve starts the read and heartbeat loops. handle gets every packet but
// heartbeats, one at a time; its error ends the session.
func (s *session) serve(heartbeat time.Duration, handle func(*packets.ControlPacket) error) {
	s.loops.Go(func() { s.over(s.read(handle)) })
	s.loops.Go(func() { s.pingLoop(heartbeat) })
}

func (s *session) read(handle func(*packets.ControlPacket) error) error {
	for {
		p, err := s.next()
		if err != nil {
			return err
		}
		s.pinged.Store(false) // any packet proves that the server is alive
		switch content := p.Content.(type) {
		case *packets.Pingresp:
		case *packets.Disconnect:
			return fmt.Errorf("the server disconnects, reason 0x%02x", content.ReasonCode)
		default:
			if err := handle(p); err != nil {
				return err
			}
		}
	}
}

// next reads the next packet from the server.
func (s *session) next() (*packets.ControlPacket, error) {
	if !s.v311 {
		return packets.ReadPacket(s.reader)
	}
	p, err := v311.ReadPacket(s.reader)
	if err != nil {
		return nil, err
	}
	return toV5(p)
}

// pingLoop ends a session whose server sent nothing for a whole period after a
// heartbeat.
func (s *session) pingLoop(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-s.gone:
			return
		case <-tick.C:
		}
		if s.pinged.Swap(true) {
			s.over(errors.New("no answer to a heartbeat"))
			return
		}
		if _, err := s.write(&packets.Pingreq{}); err != nil {
			return
		}
	}
}

// write sends one packet and returns how many bytes were written; an error ends
// the session.
func (s *session) write(p io.WriterTo) (int, error) {
	frame, err := s.frame(p)
	if err != nil {
		return 0, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	err = s.conn.SetWriteDeadline(time.Now().Add(s.timeout))
	n := 0
	if err == nil {
		n, err = s.conn.Write(frame)
	}
	if err != nil {
		s.over(err)
	}
	return n, err
}

// frame encodes a packet.
func (s *session) frame(p io.WriterTo) ([]byte, error) {
	var frame bytes.Buffer
	if !s.v311 {
		_, err := p.WriteTo(&frame)
		return frame.Bytes(), err
	}
	translated, err := toV311(p)
	if err == nil {
		err = translated.Write(&frame)
	}
	return frame.Bytes(), err
}

func (s *session) over(cause error) {
	s.end.Do(func() {
		s.cause = cause
		s.conn.Close()
		s.release()
		close(s.gone)
	})
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

// Close ends the session in an orderly way: a live server has read everything
// sent when it returns. Outstanding publishes become Unknown.
func (s *session) Close(ctx context.Context) error {
	if !s.ended() {
		s.disconnect(ctx)
		s.over(errClosed)
	}
	done := make(chan struct{})
	tasks.Go(func() {
		defer close(done)
		s.loops.Wait()
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("mqtt: close: %w", context.Cause(ctx))
	}
}

// disconnect sends DISCONNECT and waits briefly for the server to close.
// Otherwise the next session could overtake the last acknowledgement.
func (s *session) disconnect(ctx context.Context) {
	if _, err := s.write(&packets.Disconnect{}); err != nil {
		return
	}
	patience := time.NewTimer(s.timeout / 4)
	defer patience.Stop()
	select {
	case <-s.gone:
	case <-patience.C:
	case <-ctx.Done():
	}
}
