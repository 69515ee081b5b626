package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// producer publishes on one session. Safe for concurrent use.
type producer struct {
	*session
	clients *clients
	written *writes
	txns    *transactions // nil without transactions
}

// writes counts requests of one kind of which at least a byte was written.
type writes struct {
	request kmsg.Key
	n       atomic.Int64
}

var _ kgo.HookBrokerWrite = (*writes)(nil)

// OnBrokerWrite is called before the client looks at the result of the write.
func (w *writes) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, written int, _, _ time.Duration, _ error) {
	if key == int16(w.request) && written > 0 {
		w.n.Add(1)
	}
}

// maxBuffered bounds a session's unanswered publishes.
const maxBuffered = 1 << 14

func (c *clients) producer(ctx context.Context, o systems.ProducerOptions) (*producer, error) {
	p := &producer{session: newSession(c.profile, o.Address, c.profile.retries), clients: c, written: &writes{request: kmsg.Produce}}
	opts := append([]kgo.Opt{
		kgo.WithHooks(p.written),
		kgo.ProducerBatchCompression(kgo.NoCompression()), // the link parses records
		kgo.ProducerBatchMaxBytes(maxMessage),
		kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(maxBuffered),
		kgo.ProduceRequestTimeout(c.profile.scaled(produceTimeout)),
		kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(partition)),
	}, c.profile.producerOptions()...)
	if c.profile.transactional {
		p.written.request = kmsg.EndTxn
		opts = append(opts, kgo.TransactionalID(c.names.transactional(o.Name)), kgo.TransactionTimeout(c.profile.scaled(transactionTimeout)))
	}
	if err := p.start(o.Session, opts...); err != nil {
		return nil, err
	}
	if err := p.open(ctx); err != nil {
		p.close(ctx, false)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("kafka: connect to %s: %w", o.Address, context.Cause(ctx))
		}
		return nil, fmt.Errorf("kafka: connect to %s: %w: %w", o.Address, systems.ErrUnavailable, err)
	}
	return p, nil
}

// open returns once the broker has answered. With transactions, the broker then
// fences earlier sessions of this transactional ID and aborts what they left
// open.
func (p *producer) open(ctx context.Context) error {
	if !p.profile.transactional {
		return p.client.Ping(ctx)
	}
	if _, _, err := p.client.ProducerID(ctx); err != nil {
		return err
	}
	p.txns = newTransactions(p)
	return nil
}

// Close ends the session. Outstanding publishes become Unknown.
func (p *producer) Close(ctx context.Context) error {
	p.close(ctx, false)
	if p.txns != nil {
		<-p.txns.done // ends with its connections
	}
	return nil
}

// partition places keys like Kafka's own clients, and messages without a key
// round-robin.
func partition(topic string) func(*kgo.Record, int) int {
	keyed, next := kgo.StickyKeyPartitioner(nil).ForTopic(topic), 0
	return func(r *kgo.Record, partitions int) int {
		if r.Key != nil {
			return keyed.Partition(r, partitions)
		}
		next++
		return (next - 1) % partitions
	}
}

func (p *producer) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	if _, err := p.clients.names.topic(m.Destination); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return systems.Resolved(systems.Rejected.Receipt(context.Cause(ctx), "cancelled before anything was written")), nil
	}
	topic, err := p.clients.topic(ctx, m.Destination)
	if err != nil {
		return systems.Resolved(systems.Rejected.Receipt(err, "its topic could not be created; nothing was written")), nil
	}
	record, err := encode(topic, m)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.gone:
		return systems.Resolved(systems.Rejected.Receipt(p.disconnected(), "the session ended before anything was written")), nil
	default:
	}
	if p.txns != nil {
		return p.txns.add(record), nil
	}
	reply := systems.NewReply(nil, nil)
	before := p.written.n.Load()
	// The publish must outlive the call that waits for it.
	p.client.TryProduce(context.WithoutCancel(ctx), record, func(r *kgo.Record, err error) {
		reply.Resolve(p.receipt(r, err, p.written.n.Load()-before))
	})
	return reply, nil
}

// refusals are the errors that a broker returns before it appends. After any
// other (a storage failure, replicas that lag) the record may be stored.
var refusals = map[*kerr.Error]systems.Refusal{
	kerr.MessageTooLarge:          systems.Declined(evidence.CauseInvalid),
	kerr.RecordListTooLarge:       systems.Declined(evidence.CauseInvalid),
	kerr.InvalidRecord:            systems.Declined(evidence.CauseInvalid),
	kerr.InvalidTimestamp:         systems.Declined(evidence.CauseInvalid),
	kerr.PolicyViolation:          systems.Declined(evidence.CausePermission),
	kerr.TopicAuthorizationFailed: systems.Declined(evidence.CausePermission),
	kerr.NotEnoughReplicas:        systems.Rejected,
	kerr.NotLeaderForPartition:    systems.Rejected,
	kerr.UnknownTopicOrPartition:  systems.Rejected,
	kerr.UnknownTopicID:           systems.Rejected,
}

// receipt maps the outcome of a record. written is the number of Produce
// requests since it was sent: 0 proves that it was not written.
func (p *producer) receipt(r *kgo.Record, err error, written int64) systems.Receipt {
	switch {
	case err == nil && p.profile.acks == acksNone:
		return systems.Receipt{Acceptance: evidence.Unknown, ClientResult: systems.OK, Reason: "acks=0: the broker does not answer"}
	case err == nil:
		return systems.Receipt{Acceptance: evidence.Accepted, HeldBy: p.profile.heldBy, MessageID: messageID(r), ClientResult: systems.OK}
	case errors.Is(err, kerr.MessageTooLarge):
		return systems.Declined(evidence.CauseInvalid).Receipt(err, "larger than the broker allows")
	case written == 0:
		return systems.Rejected.Receipt(err, "nothing was written")
	case errors.Is(err, kgo.ErrMaxBuffered):
		return systems.Rejected.Receipt(err, "the client's buffer is full")
	}
	var refused *kerr.Error
	// With retries the error may belong to a later attempt while an earlier one
	// was stored.
	if errors.As(err, &refused) && !p.profile.retries {
		if known, ok := refusals[refused]; ok {
			return known.Receipt(err, refused.Description)
		}
	}
	return systems.Unknown.Receipt(err, "no answer that tells whether it was stored")
}
