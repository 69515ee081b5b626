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

// consumer is a member of the shared subscription of its logical subscriber,
// under the client identifier of the seat that it took. Safe for concurrent use.
type consumer struct {
	*session
	clients
	deliveries chan *delivery
	subscribed chan *packets.Suback

	mu       sync.Mutex
	unacked  []*delivery          // in the order of receipt
	exchange map[uint16]*delivery // QoS 2: received, and not yet released by the server
}

func (c clients) consumer(ctx context.Context, o systems.ConsumerOptions) (*consumer, error) {
	if err := validTopic(o.Destination); err != nil {
		return nil, err
	}
	seat, err := c.seats.take(o.Subscription, o.Destination)
	if err != nil {
		return nil, err
	}
	made, err := c.sit(ctx, seat, o)
	if err != nil {
		seat.leave()
		return nil, err
	}
	return made, nil
}

func (c clients) sit(ctx context.Context, seat *seat, o systems.ConsumerOptions) (*consumer, error) {
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

// window is the Receive Maximum of a consumer, which MQTT 3.1.1 has not.
// mochi-mqtt forgets what has waited behind one as soon as it is sent, and then
// sends no more: without one nothing waits.
func (p Profile) window(asked int) uint16 {
	if p.windowless {
		return math.MaxUint16
	}
	return uint16(min(max(asked, 1), math.MaxUint16))
}

// subscribeID is the one packet identifier that a consumer ever uses. Any would
// do by the standard; mochi-mqtt takes those of its own deliveries, which it
// counts from 1, for the client's, and refuses one that is in flight.
const subscribeID = math.MaxUint16

// subscribe is done anew on every session: it changes nothing where the server
// still has it.
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

// handle is called by the session's reader.
func (c *consumer) handle(packet *packets.ControlPacket) error {
	switch p := packet.Content.(type) {
	case *packets.Publish:
		return c.received(p)
	case *packets.Pubrel:
		return c.released(p.PacketID)
	case *packets.Suback:
		select {
		case c.subscribed <- p:
		default: // over a link it may come twice
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

// track remembers a delivery until it is acknowledged. At QoS 2 one that has not
// been released may come again and is no other (MQTT 5, section 4.3.3).
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

// released is the server's answer to an acknowledgement at QoS 2.
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
	if c.profile.qos == 0 { // what has come needs no connection any more
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

// delivery is one message in the hands of the application.
type delivery struct {
	consumer *consumer
	publish  *packets.Publish
	acked    bool          // by the application
	sent     bool          // the acknowledgement has left
	released chan struct{} // QoS 2: closed when the server has discarded the message
}

func (d *delivery) Message() systems.Message {
	m := decode(d.publish)
	m.Destination = d.consumer.destination(m.Destination)
	return m
}

// Attempt is not counted by MQTT.
func (d *delivery) Attempt() (int, bool) { return 0, false }

// Mark is the DUP flag, which QoS 0 has not.
func (d *delivery) Mark() evidence.Mark {
	switch {
	case d.consumer.profile.qos == 0:
		return evidence.MarkNone
	case d.publish.Duplicate:
		return evidence.MarkRedelivered
	}
	return evidence.MarkFirst
}

// Ack is PUBACK at QoS 1, which the server does not answer, and PUBREC at QoS 2,
// which it does. MQTT wants them in the order of receipt: one that is not the
// first waits for those before it.
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
		return evidence.AckUnknown, errors.New("mqtt: acknowledge: held back behind an earlier delivery, which has no acknowledgement: MQTT wants them in order")
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

// acknowledge sends all acknowledgements whose turn it is, and says whether
// that of d has left.
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
