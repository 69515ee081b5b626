package mqtt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/eclipse/paho.golang/packets"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// producer publishes on a session that ends with its connection: nothing is
// ever resent. Safe for concurrent use.
type producer struct {
	*session
	clients
	sending chan struct{} // semaphore: one Send writes at a time, so that wire order is call order
	slots   chan struct{} // one per unanswered publish, up to the server's Receive Maximum

	mu      sync.Mutex
	last    uint16 // last packet identifier used
	waiting map[uint16]*systems.Reply
}

func (c clients) producer(ctx context.Context, o systems.ProducerOptions) (*producer, error) {
	p := c.profile
	s, err := p.open(ctx, cmp.Or(o.Address, c.address), &packets.Connect{
		ClientID:   c.seats.run + "-" + o.Session,
		CleanStart: true,
		KeepAlive:  p.keepAlive(),
		Properties: &packets.Properties{},
	}, func() {})
	if err != nil {
		return nil, err
	}
	pr := &producer{
		session: s,
		clients: c,
		sending: make(chan struct{}, 1),
		slots:   make(chan struct{}, s.quota),
		waiting: make(map[uint16]*systems.Reply),
	}
	s.serve(p.scaled(heartbeat), pr.handle)
	return pr, nil
}

func (p *producer) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	publish, err := encode(m, p.profile.qos)
	if err != nil {
		return nil, err
	}
	if p.profile.v311 && m.TTL > 0 {
		return nil, errors.New("mqtt: publish: MQTT 3.1.1 has no message expiry")
	}
	if ctx.Err() != nil {
		return systems.Resolved(systems.Rejected.Receipt(context.Cause(ctx), "cancelled before anything was written")), nil
	}
	if !p.enter(ctx, p.sending) {
		return systems.Resolved(p.notSent(ctx)), nil
	}
	defer func() { <-p.sending }()
	if publish.QoS > 0 && !p.enter(ctx, p.slots) {
		return systems.Resolved(p.notSent(ctx)), nil
	}
	publish.Topic = p.topic(m.Destination)
	reply := systems.NewReply(p.gone, func() error { return p.cause })
	publish.PacketID = p.expect(reply, publish.QoS)
	n, err := p.write(publish)
	switch {
	case err != nil && n == 0:
		return systems.Resolved(systems.Rejected.Receipt(err, "the connection was lost before anything was written")), nil
	case err != nil:
		return systems.Resolved(systems.Unknown.Receipt(err, "the connection broke while writing")), nil
	case publish.QoS == 0:
		return systems.Resolved(systems.Receipt{ClientResult: systems.OK, Reason: "QoS 0 has no answer"}), nil
	}
	return reply, nil
}

// enter acquires a slot unless the session or the call ends first.
func (p *producer) enter(ctx context.Context, places chan<- struct{}) bool {
	if p.ended() {
		return false
	}
	select {
	case places <- struct{}{}:
		return true
	case <-p.gone:
	case <-ctx.Done():
	}
	return false
}

func (p *producer) notSent(ctx context.Context) systems.Receipt {
	if p.ended() {
		return systems.Rejected.Receipt(p.cause, "the connection was lost before anything was written")
	}
	return systems.Rejected.Receipt(context.Cause(ctx), "cancelled before anything was written: the server takes no more unanswered publishes")
}

// expect registers a publish under a free packet identifier. There is one:
// slots are no more than identifiers.
func (p *producer) expect(reply *systems.Reply, qos byte) uint16 {
	if qos == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		p.last++
		if p.last != 0 && p.waiting[p.last] == nil {
			p.waiting[p.last] = reply
			return p.last
		}
	}
}

// handle is called by the session's read loop. A link may duplicate answers.
func (p *producer) handle(packet *packets.ControlPacket) error {
	switch answer := packet.Content.(type) {
	case *packets.Puback:
		p.answered(answer.PacketID, answer.ReasonCode)
	case *packets.Pubrec:
		if answer.ReasonCode >= failure {
			p.answered(answer.PacketID, answer.ReasonCode)
			return nil
		}
		_, err := p.write(&packets.Pubrel{PacketID: answer.PacketID})
		return err
	case *packets.Pubcomp:
		p.answered(answer.PacketID, answer.ReasonCode)
	default:
		return fmt.Errorf("mqtt: a producer received %s", packet.PacketType())
	}
	return nil
}

func (p *producer) answered(id uint16, code byte) {
	p.mu.Lock()
	reply := p.waiting[id]
	delete(p.waiting, id)
	p.mu.Unlock()
	if reply != nil {
		reply.Resolve(receipt(code))
		<-p.slots
	}
}

// Reason codes (MQTT 5, section 2.4).
const (
	noSubscribers     = 0x10
	failure           = 0x80 // the first failure
	serverUnavailable = 0x88
)

// refusals are the codes with which a server refuses before storing anything.
// After any other failure the message may be stored.
var refusals = map[byte]struct {
	cause evidence.Cause
	text  string
}{
	noSubscribers: {evidence.CauseNoConsumer, "no matching subscribers"},
	0x87:          {evidence.CausePermission, "not authorized"},
	0x90:          {evidence.CauseInvalid, "topic name invalid"},
	0x97:          {evidence.CauseLimit, "quota exceeded"},
	0x99:          {evidence.CauseInvalid, "payload format invalid"},
}

// receipt maps the server's answer to a publish.
func receipt(code byte) systems.Receipt {
	reason := fmt.Errorf("reason 0x%02x", code)
	if known, declined := refusals[code]; declined {
		return systems.Declined(known.cause).Receipt(reason, known.text)
	}
	if code >= failure {
		return systems.Unknown.Receipt(reason, "the server failed")
	}
	return systems.Receipt{Acceptance: evidence.Accepted, HeldBy: evidence.HeldByBrokerMemory, ClientResult: systems.OK}
}
