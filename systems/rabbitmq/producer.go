package rabbitmq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// producer publishes to the queue of a destination through the default
// exchange. Safe for concurrent use.
type producer struct {
	*session
	clients *clients

	sending sync.Mutex
	waiting atomic.Int64 // unanswered publishes

	// The client reports a return before the confirm that follows it, both from
	// its reader: after a receive from noted, every earlier return is in
	// returned.
	noted chan struct{}

	mu       sync.Mutex
	returned map[string]int // by queue and message ID
}

// maxWaiting bounds a session's unanswered publishes.
const maxWaiting = 1 << 16

func (c *clients) producer(ctx context.Context, o systems.ProducerOptions) (*producer, error) {
	p := &producer{clients: c, noted: make(chan struct{}), returned: make(map[string]int)}
	var returns chan client.Return
	s, err := dial(ctx, c.endpoint(o.Address), o.Session, c.profile.scaled(openTimeout), func(ch *client.Channel) error {
		returns = ch.NotifyReturn(make(chan client.Return))
		if !c.profile.confirms {
			return nil
		}
		return ch.Confirm(false)
	})
	if err != nil {
		return nil, err
	}
	p.session = s
	tasks.Go(func() { p.keepReturns(returns) })
	return p, nil
}

// keepReturns records returns until the session ends.
func (p *producer) keepReturns(returns <-chan client.Return) {
	for {
		select {
		case r, ok := <-returns:
			if !ok {
				return
			}
			p.mu.Lock()
			p.returned[returnKey(r.RoutingKey, r.MessageId)]++
			p.mu.Unlock()
		case p.noted <- struct{}{}:
		}
	}
}

func returnKey(queue, messageID string) string { return queue + "\x00" + messageID }

// wasReturned reports whether a publish was returned before its confirm.
func (p *producer) wasReturned(key string) bool {
	select {
	case <-p.noted:
	case <-p.gone:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.returned[key] == 0 {
		return false
	}
	if p.returned[key]--; p.returned[key] == 0 {
		delete(p.returned, key)
	}
	return true
}

func (p *producer) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	profile := p.clients.profile
	if m.MessageID == "" {
		m.MessageID = rand.Text() // RabbitMQ assigns none
	}
	out, err := encode(m, profile.deliveryMode())
	if err != nil {
		return nil, err
	}
	queue, err := p.clients.queueOf(m.Destination)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return systems.Resolved(systems.Rejected.Receipt(context.Cause(ctx), "cancelled before anything was written")), nil
	}
	if !profile.consumersMakeQueues {
		if err := p.clients.makeQueue(ctx, m.Destination); err != nil {
			return systems.Resolved(systems.Rejected.Receipt(err, "nothing was written: the queue does not exist and could not be declared")), nil
		}
	}
	p.sending.Lock()
	defer p.sending.Unlock() // wire order is call order
	switch {
	case p.ended():
		return systems.Resolved(systems.Rejected.Receipt(client.ErrClosed, "the connection was lost before anything was written")), nil
	case p.waiting.Load() >= maxWaiting:
		return nil, fmt.Errorf("rabbitmq: %d unanswered publishes in one session: wait for their receipts first", maxWaiting)
	}
	confirm, err := p.channel.PublishWithDeferredConfirm("", queue, profile.mandatory, false, out)
	if err != nil {
		_ = p.conn.CloseDeadline(time.Now()) // a frame may be half written
		return systems.Resolved(systems.Unknown.Receipt(err, "the connection broke while writing")), nil
	}
	if confirm == nil {
		return systems.Resolved(systems.Receipt{ClientResult: systems.OK, Reason: "without publisher confirms there is no answer"}), nil
	}
	p.waiting.Add(1)
	return &pending{producer: p, confirm: confirm, messageID: m.MessageID, queue: queue}, nil
}

// pending is a publish in flight.
type pending struct {
	producer         *producer
	confirm          *client.DeferredConfirmation
	messageID, queue string

	once    sync.Once
	receipt systems.Receipt // valid once the confirm is done
}

func (p *pending) Receipt(ctx context.Context) systems.Receipt {
	select { // an answer that has arrived wins
	case <-p.confirm.Done():
		return p.answered()
	default:
	}
	select {
	case <-p.confirm.Done():
		return p.answered()
	case <-p.producer.gone:
		return systems.Unknown.Receipt(client.ErrClosed, "the connection ended before the answer")
	case <-ctx.Done():
		return systems.Unknown.Receipt(context.Cause(ctx), "cancelled before the answer")
	}
}

func (p *pending) answered() systems.Receipt {
	p.once.Do(func() {
		p.producer.waiting.Add(-1)
		profile := p.producer.clients.profile
		switch {
		case p.confirm.Acked() && profile.mandatory && p.producer.wasReturned(returnKey(p.queue, p.messageID)):
			p.receipt = systems.Declined(evidence.CauseNoConsumer).Receipt(errReturned, "no queue of this name: returned before it was confirmed")
		case p.confirm.Acked():
			// No message ID: a confirm names none, and to RabbitMQ a retry is
			// another message.
			p.receipt = systems.Receipt{Acceptance: evidence.Accepted, HeldBy: profile.heldBy(), ClientResult: systems.OK}
		case p.producer.ended():
			// When its connection ends the client resolves what is open as
			// nacked.
			p.receipt = systems.Unknown.Receipt(client.ErrClosed, "the connection ended before the answer")
		default:
			p.receipt = profile.nacked()
		}
	})
	return p.receipt
}

var (
	errReturned = errors.New("rabbitmq: basic.return 312 NO_ROUTE")
	errNacked   = errors.New("rabbitmq: basic.nack")
)
