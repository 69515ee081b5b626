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

// session is one connection that is never made again. It stands on the packets
// of paho.golang and not on its client, which holds an acknowledgement back
// until a ticker fires, and whose publish either waits for the answer or never
// tells it.
type session struct {
	conn    net.Conn
	reader  *bufio.Reader
	v311    bool          // it speaks MQTT 3.1.1
	timeout time.Duration // of one write
	quota   uint16        // most publishes unanswered at once, as the server says

	release func() // called when the connection is over, before gone is closed

	writing sync.Mutex
	pinged  atomic.Bool // nothing has come since the last heartbeat
	end     sync.Once
	gone    chan struct{} // closed when the connection is over
	cause   error         // why; valid once gone is closed
	loops   tasks.Group
}

// errClosed is the cause of an end by Close.
var errClosed = errors.New("closed by its owner")

// open connects and shakes hands; serve must follow. release is called when the
// connection is over, and not if there never was one.
func (p Profile) open(ctx context.Context, address string, connect *packets.Connect, release func()) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, p.scaled(dialTimeout))
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, p.unopened(ctx, address, err)
	}
	if p.at.TLS != nil {
		conn = tls.Client(conn, p.at.TLS) // shakes hands with the first write
	}
	if p.at.Password != "" {
		connect.UsernameFlag, connect.Username = p.at.User != "", p.at.User
		connect.PasswordFlag, connect.Password = true, []byte(p.at.Password)
	}
	letGo := context.AfterFunc(ctx, tasks.Guarded(func() { conn.Close() }))
	s := &session{conn: conn, reader: bufio.NewReader(conn), v311: p.v311, timeout: p.scaled(writeTimeout), gone: make(chan struct{}), release: func() {}}
	err = s.shakeHands(connect)
	if !letGo() || err != nil {
		conn.Close()
		return nil, p.unopened(ctx, address, err)
	}
	s.release = release
	return s, nil
}

// unopened says why there is no session. A caller that has given up is told
// so; anything else may work later, but for a refusal.
func (p Profile) unopened(ctx context.Context, address string, err error) error {
	var refused *refusedError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("mqtt: connect to %s: %w", address, context.Cause(ctx))
	case errors.As(err, &refused) && !refused.passing():
		return fmt.Errorf("mqtt: connect to %s: %w", address, err)
	}
	return fmt.Errorf("mqtt: connect to %s: %w: %w", address, systems.ErrUnavailable, errors.Join(err, ctx.Err()))
}

// refusedError is a CONNACK that is no success.
type refusedError struct{ code byte }

func (e *refusedError) Error() string {
	return fmt.Sprintf("the server refuses, reason 0x%02x", e.code)
}

// passing says whether the server may take the connection later: it is
// unavailable, or busy.
func (e *refusedError) passing() bool { return e.code == serverUnavailable || e.code == 0x89 }

func (s *session) shakeHands(connect *packets.Connect) error {
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

// serve begins to read, and to look whether the server is there. handle is
// called with every packet but heartbeats, one at a time; an error ends the session.
func (s *session) serve(heartbeat time.Duration, handle func(*packets.ControlPacket) error) {
	s.loops.Go(func() { s.over(s.read(handle)) })
	s.loops.Go(func() { s.beat(heartbeat) })
}

func (s *session) read(handle func(*packets.ControlPacket) error) error {
	for {
		p, err := s.next()
		if err != nil {
			return err
		}
		s.pinged.Store(false) // whatever comes shows that the server is there
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

// next is the next packet of the server.
func (s *session) next() (*packets.ControlPacket, error) {
	if !s.v311 {
		return packets.ReadPacket(s.reader)
	}
	p, err := v311.ReadPacket(s.reader)
	if err != nil {
		return nil, err
	}
	return newer(p)
}

// beat ends a session whose server has said nothing for a whole period after a heartbeat.
func (s *session) beat(every time.Duration) {
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

// write sends one packet whole. It returns how many bytes have left; an error
// ends the session.
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

// frame gives the bytes of a packet.
func (s *session) frame(p io.WriterTo) ([]byte, error) {
	var frame bytes.Buffer
	if !s.v311 {
		_, err := p.WriteTo(&frame)
		return frame.Bytes(), err
	}
	translated, err := older(p)
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

// Close ends the session in order: a server that is there has read all that was
// sent when it returns. Answers still on their way are Unknown from then on.
func (s *session) Close(ctx context.Context) error {
	if !s.ended() {
		s.farewell(ctx)
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

// farewell says goodbye and waits, not for long, until the server hangs up.
// Without it a session that is opened next can overtake the last acknowledgement.
func (s *session) farewell(ctx context.Context) {
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
