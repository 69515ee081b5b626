package kafka

import (
	"context"
	"errors"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// transactions publishes each message in a transaction of its own, one after
// another, since a transactional ID has at most one open. A message is accepted
// once its transaction is committed.
type transactions struct {
	*producer
	done chan struct{} // closed when run has ended

	mu    sync.Mutex
	queue chan publish
	over  bool // add refuses
}

// publish is a queued message.
type publish struct {
	*systems.Reply
	record *kgo.Record
}

func newTransactions(p *producer) *transactions {
	t := &transactions{producer: p, done: make(chan struct{}), queue: make(chan publish, maxBuffered)}
	tasks.Go(t.run)
	return t
}

// add queues a message.
func (t *transactions) add(r *kgo.Record) *systems.Reply {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return systems.Resolved(t.unsent())
	}
	p := publish{systems.NewReply(nil, nil), r}
	select {
	case t.queue <- p:
		return p.Reply
	default:
		return systems.Resolved(systems.Rejected.Receipt(kgo.ErrMaxBuffered, "too many messages are queued"))
	}
}

func (t *transactions) unsent() systems.Receipt {
	return systems.Rejected.Receipt(t.disconnected(), "the session ended before anything was written")
}

func (t *transactions) run() {
	defer close(t.done)
	for {
		select {
		case <-t.gone:
			t.mu.Lock()
			defer t.mu.Unlock()
			t.over = true
			for len(t.queue) > 0 {
				(<-t.queue).Resolve(t.unsent())
			}
			return
		case p := <-t.queue:
			p.Resolve(t.publish(p.record))
		}
	}
}

// publish stores a message and commits it. An undecided transaction ends the
// session, so that nothing can commit it later.
func (t *transactions) publish(r *kgo.Record) systems.Receipt {
	if err := t.client.BeginTransaction(); err != nil {
		t.end(err)
		return systems.Rejected.Receipt(err, "the transaction could not begin")
	}
	if err := t.store(r); err != nil {
		if err := t.client.EndTransaction(context.Background(), kgo.TryAbort); err != nil {
			t.end(err)
		}
		return notStored(err)
	}
	before := t.written.n.Load()
	err := t.client.EndTransaction(context.Background(), kgo.TryCommit) // bounded by its connection
	if err != nil {
		t.end(err)
	}
	return t.committed(r, err, t.written.n.Load()-before)
}

// store returns once the broker has answered or the session has ended.
func (t *transactions) store(r *kgo.Record) error {
	answered := make(chan error, 1)
	t.client.TryProduce(context.Background(), r, func(_ *kgo.Record, err error) { answered <- err })
	select {
	case err := <-answered:
		return err
	case <-t.gone:
		return t.disconnected()
	}
}

// notStored is the receipt of a message whose commit was never requested:
// read_committed consumers cannot see it.
func notStored(err error) systems.Receipt {
	var refused *kerr.Error
	if errors.As(err, &refused) {
		if r := refusals[refused].Receipt(err, refused.Description); r.Acceptance == evidence.Declined {
			return r
		}
	}
	return systems.Rejected.Receipt(err, "its transaction was not committed")
}

// notCommitted are commit errors after which the transaction is aborted.
var notCommitted = map[*kerr.Error]bool{
	kerr.InvalidTxnState:          true,
	kerr.ProducerFenced:           true,
	kerr.InvalidProducerEpoch:     true,
	kerr.InvalidProducerIDMapping: true,
	kerr.TransactionAbortable:     true,
}

// committed maps the outcome of a commit. written is the number of commit
// requests written: 0 proves that there was none, and with several the error
// may belong to a later one.
func (t *transactions) committed(r *kgo.Record, err error, written int64) systems.Receipt {
	var refused *kerr.Error
	switch {
	case err == nil:
		return systems.Receipt{Acceptance: evidence.Accepted, HeldBy: t.profile.heldBy, MessageID: messageID(r), ClientResult: systems.OK}
	case written == 0:
		return systems.Rejected.Receipt(err, "the commit was never written")
	case written == 1 && errors.As(err, &refused) && notCommitted[refused]:
		return systems.Rejected.Receipt(err, refused.Description)
	}
	return systems.Unknown.Receipt(err, "no answer that tells whether it was committed")
}
