package mqtt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/eclipse/paho.golang/packets"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// consumer is a member of its logical subscriber's shared subscription, under
// the client identifier of its seat. Safe for concurrent use.
type consumer struct {
	*session
	clients
	deliveries chan *delivery
	subscribed chan *packets.Suback

	mu       sync.Mutex
	unacked  []*delivery          // in order of receipt
	exchange map[uint16]*delivery // QoS 2: received, PUBREL outstanding
}

func (c clients) consumer(ctx context.Context, o systems.ConsumerOptions) (*consumer, error) {
	if err := validTopic(o.Destination); err != nil {
		return nil, err
	}
	seat, err := c.seats.take(o.Subscription, o.Destination)
	if err != nil {
		return nil, err
	}
	made, err := c.connect(ctx, seat, o)
	if err != nil {
		seat.leave()
		return nil, err
	}
	return made, nil
}

func (c clients) connect(ctx context.Context, seat *seat, o systems.ConsumerOptions) (*consumer, error) {
	p := c.profile
	window := p.window(o.Window)
	connect := &packets.Connect{
		ClientID:   seat.clientID,
		CleanStart: p.clean,
		KeepAlive:  p.keepAlive(),
		Properties: &packets.Properties{ReceiveMaximum: &window},
	}
	if !p.clean {
		expiry := uint32(sessionExpiry.Seconds())
		connect.Properties.SessionExpiryInterval = &expiry
	}
	s, err := p.open(ctx, o.Address, connect, seat.leave)
	if err != nil {
		return nil, err
	}
	made := &consumer{
		session:    s,
		clients:    c,
		deliveries: make(chan *delivery, max(window, 64)),
		subscribed: make(chan *packets.Suback, 1),
		exchange:   make(map[uint16]*delivery),
	}
	s.serve(p.scaled(heartbeat), made.handle)
	if err := made.subscribe(ctx, o); err != nil {
		s.over(errClosed)
		s.loops.Wait()
		return nil, fmt.Errorf("mqtt: subscribe %s to %s: %w", o.Subscription, o.Destination, err)
	}
	return made, nil
}

// window is a consumer's Receive Maximum, which MQTT 3.1.1 lacks. mochi-mqtt
// drops messages that waited for one and then stops sending, so its profiles
// set none.
func (p Profile) window(asked int) uint16 {
	if p.windowless {
		return math.MaxUint16
	}
	return uint16(min(max(asked, 1), math.MaxUint16))
}

// subscribeID is the only packet identifier that a consumer uses. The standard
// allows any, but mochi-mqtt confuses the client's identifiers with those of
// its own deliveries, counted from 1, and refuses one that is in flight.
const subscribeID = math.MaxUint16

// subscribe runs on every session; it has no effect where the server still has
// the subscription.
func (c *consumer) subscribe(ctx context.Context, o systems.ConsumerOptions) error {
	_, err := c.write(&packets.Subscribe{
		PacketID:      subscribeID,
		Properties:    &packets.Properties{},
		Subscriptions: []packets.SubOptions{{Topic: "$share/" + shareName(o.Subscription) + "/" + c.topic(o.Destination), QoS: c.profile.qos, RetainHandling: packets.RetainDoNotSend}},
	})
	if err != nil {
		return fmt.Errorf("%w: %w", systems.ErrUnavailable, err)
	}
	select {
	case suback := <-c.subscribed:
		for _, code := range suback.Reasons {
			if code >= failure {
				return fmt.Errorf("the server refuses, reason 0x%02x", code)
			}
		}
		return nil
	case <-c.gone:
		return fmt.Errorf("%w: %w", systems.ErrUnavailable, c.cause)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// handle is called by the session's read loop.
func (c *consumer) handle(packet *packets.ControlPacket) error {
	switch p := packet.Content.(type) {
	case *packets.Publish:
		return c.received(p)
	case *packets.Pubrel:
		return c.released(p.PacketID)
	case *packets.Suback:
		select {
		case c.subscribed <- p:
		default: // a link may duplicate it
		}
		return nil
	}
	return fmt.Errorf("mqtt: a consumer received %s", packet.PacketType())
}

func (c *consumer) received(p *packets.Publish) error {
	d := &delivery{consumer: c, publish: p, released: make(chan struct{})}
	again, acked := c.track(d)
	if again {
		if !acked {
			return nil
		}
		_, err := c.write(&packets.Pubrec{PacketID: p.PacketID, Properties: &packets.Properties{}})
		return err
	}
	select {
	case c.deliveries <- d:
		return nil
	case <-c.gone:
		return c.cause
	}
}

// track records a delivery until it is acknowledged. At QoS 2, one with the
// identifier of an unreleased delivery is the same message (MQTT 5, section
// 4.3.3).
func (c *consumer) track(d *delivery) (again, acked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.publish.QoS == 2 {
		if earlier := c.exchange[d.publish.PacketID]; earlier != nil {
			return true, earlier.sent
		}
		c.exchange[d.publish.PacketID] = d
	}
	if d.publish.QoS > 0 {
		c.unacked = append(c.unacked, d)
	}
	return false, false
}

// released handles PUBREL.
func (c *consumer) released(id uint16) error {
	c.mu.Lock()
	d := c.exchange[id]
	delete(c.exchange, id)
	c.mu.Unlock()
	if d != nil {
		close(d.released)
	}
	_, err := c.write(&packets.Pubcomp{PacketID: id, Properties: &packets.Properties{}})
	return err
}

func (c *consumer) Receive(ctx context.Context) (systems.Delivery, error) {
	if c.profile.qos == 0 { // received messages need no connection
		select {
		case d := <-c.deliveries:
			return d, nil
		default:
		}
	}
	if c.ended() {
		return nil, c.disconnected()
	}
	select {
	case d := <-c.deliveries:
		return d, nil
	case <-c.gone:
		return nil, c.disconnected()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *consumer) disconnected() error {
	return fmt.Errorf("mqtt: %w: %w", systems.ErrDisconnected, c.cause)
}

// delivery is one message held by the application.
type delivery struct {
	consumer *consumer
	publish  *packets.Publish
	acked    bool          // by the application
	sent     bool          // its acknowledgement was written
	released chan struct{} // QoS 2: closed on PUBREL
}

func (d *delivery) Message() systems.Message {
	m := decode(d.publish)
	m.Destination = d.consumer.destination(m.Destination)
	return m
}

// Attempt is not counted by MQTT.
func (d *delivery) Attempt() (int, bool) { return 0, false }

// Mark is the DUP flag, which QoS 0 lacks.
func (d *delivery) Mark() evidence.Mark {
	switch {
	case d.consumer.profile.qos == 0:
		return evidence.MarkNone
	case d.publish.Duplicate:
		return evidence.MarkRedelivered
	}
	return evidence.MarkFirst
}

// Ack sends PUBACK at QoS 1, which has no reply, and PUBREC at QoS 2, which has
// one. MQTT requires acknowledgements in order of receipt, so that a later one
// waits for earlier ones.
func (d *delivery) Ack(ctx context.Context) (evidence.AckOutcome, error) {
	c := d.consumer
	switch {
	case d.publish.QoS == 0:
		return evidence.AckSent, nil
	case ctx.Err() != nil:
		return evidence.AckUnknown, fmt.Errorf("mqtt: acknowledge: %w", context.Cause(ctx))
	case c.ended():
		return evidence.AckUnknown, c.disconnected()
	}
	sent, err := c.acknowledge(d)
	switch {
	case err != nil:
		return evidence.AckUnknown, c.disconnected()
	case !sent:
		return evidence.AckUnknown, errors.New("mqtt: acknowledge: MQTT requires order, and an earlier delivery is not acknowledged yet")
	case d.publish.QoS == 1:
		return evidence.AckSent, nil
	}
	select {
	case <-d.released:
		return evidence.AckConfirmed, nil
	case <-c.gone:
		return evidence.AckUnknown, c.disconnected()
	case <-ctx.Done():
		return evidence.AckUnknown, fmt.Errorf("mqtt: acknowledge: %w", context.Cause(ctx))
	}
}

// acknowledge sends all acknowledgements that are due and reports whether that
// of d was sent.
func (c *consumer) acknowledge(d *delivery) (sent bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.acked = true
	for len(c.unacked) > 0 && c.unacked[0].acked {
		first := c.unacked[0]
		var p io.WriterTo = &packets.Puback{PacketID: first.publish.PacketID, Properties: &packets.Properties{}}
		if first.publish.QoS == 2 {
			p = &packets.Pubrec{PacketID: first.publish.PacketID, Properties: &packets.Properties{}}
		}
		if _, err := c.write(p); err != nil {
			return false, err
		}
		first.sent = true
		c.unacked = c.unacked[1:]
	}
	return d.sent, nil
}
