package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links/resp"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// producer publishes in pipelines: messages sent while one is in progress go
// into the next, in call order. Safe for concurrent use.
type producer struct {
	clients
	*session
	done chan struct{} // closed when its goroutine has ended

	mu     sync.Mutex
	queue  []*outgoing // in call order
	queued chan struct{}
}

const (
	maxWaiting  = 1 << 16 // publishes of a session not yet in a pipeline
	maxPipeline = 256     // publishes in one pipeline
)

func newProducer(c clients, s *session) *producer {
	p := &producer{clients: c, session: s, done: make(chan struct{}), queued: make(chan struct{}, 1)}
	tasks.Go(p.run)
	return p
}

// outgoing is a publish that waits for its reply.
type outgoing struct {
	*systems.Reply
	name    string // of the stream or channel
	command client.Cmder
}

func (p *producer) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	pend := &outgoing{Reply: systems.NewReply(nil, nil), name: p.name(m.Destination)}
	var err error
	if pend.command, err = p.command(pend.name, m); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return pend.Resolve(systems.Rejected.Receipt(context.Cause(ctx), "cancelled before anything was written")), nil
	case p.ended():
		return pend.Resolve(neverSent()), nil
	case len(p.queue) >= maxWaiting:
		return nil, fmt.Errorf("redis: %d unsent publishes in one session: wait for their receipts first", maxWaiting)
	}
	p.queue = append(p.queue, pend)
	select {
	case p.queued <- struct{}{}:
	default:
	}
	return pend, nil
}

func (p *producer) command(name string, m systems.Message) (client.Cmder, error) {
	switch {
	case m.MessageID != "":
		return nil, fmt.Errorf("redis: message ID %q: %s", m.MessageID, noMessageID)
	case m.TTL > 0:
		return nil, fmt.Errorf("redis: a time to live of %v: %s", m.TTL, noTTL)
	}
	ctx := context.Background() // ignored: only the pipeline's context counts
	if p.profile.reads == channel {
		raw, err := wrap(m)
		return client.NewIntCmd(ctx, "publish", name, raw), err
	}
	return client.NewStringCmd(ctx, append([]any{"xadd", name, "*"}, encode(m)...)...), nil
}

// run sends what is queued until the session ends.
func (p *producer) run() {
	defer close(p.done)
	for {
		select {
		case <-p.queued:
		case <-p.gone:
			for _, pend := range p.take(maxWaiting) {
				pend.Resolve(neverSent())
			}
			return
		}
		for !p.ended() {
			batch := p.take(maxPipeline)
			if len(batch) == 0 {
				break
			}
			p.exchange(batch)
		}
	}
}

// take removes the oldest publishes from the queue.
func (p *producer) take(most int) []*outgoing {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(most, len(p.queue))
	batch := p.queue[:n:n]
	p.queue = p.queue[n:]
	return batch
}

// exchange writes a pipeline and reads its replies. Every error other than a
// reply closes the connection: see conn.
func (p *producer) exchange(batch []*outgoing) {
	ctx := context.Background() // bounded by the session's timeouts
	before := p.conn.written.Load()
	pipe := p.client.Pipeline()
	for _, pend := range batch {
		_ = pipe.Process(ctx, pend.command)
	}
	_, _ = pipe.Exec(ctx) // each command holds its own error
	written := p.conn.written.Load() > before
	for _, pend := range batch {
		r := pend.outcome(written)
		if r.Acceptance == evidence.Accepted {
			r.HeldBy = p.profile.heldBy
		}
		pend.Resolve(r)
	}
}

// outcome is the receipt of a publish in a pipeline, of which something or
// nothing was written.
func (p *outgoing) outcome(written bool) systems.Receipt {
	err := p.command.Err()
	var reply client.Error
	switch {
	case errors.As(err, &reply):
		return refused(err)
	case err != nil && !written:
		return neverSent()
	}
	var r systems.Receipt
	switch command := p.command.(type) {
	case *client.StringCmd:
		r = stored(p.name, command.Val())
	case *client.IntCmd:
		r = sentTo(command.Val(), err)
	}
	// When the connection ends, go-redis sets its error on every command of the
	// pipeline, even those whose reply was read.
	switch {
	case err == nil:
	case r.Acceptance == evidence.Accepted:
		r.ClientResult, r.Reason = err.Error(), "the reply came, and the connection ended before the pipeline's last"
	default:
		r = systems.Unknown.Receipt(err, "the connection ended before the answer")
	}
	return r
}

// stored is the receipt of an XADD answered with an entry ID.
func stored(key, id string) systems.Receipt {
	if id == "" {
		return systems.Unknown.Receipt(errors.New("an answer without an ID"), "the answer is not an entry ID")
	}
	return systems.Receipt{Acceptance: evidence.Accepted, MessageID: resp.MessageID(key, id), ClientResult: systems.OK}
}

// sentTo is the receipt of a PUBLISH. The count proves that the server queued
// the message to that many connections; it proves no arrival, and the server
// keeps no copy.
func sentTo(receivers int64, err error) systems.Receipt {
	switch {
	case receivers > 0:
		return systems.Receipt{Acceptance: evidence.Accepted, ClientResult: systems.OK, Reason: "sent to " + strconv.FormatInt(receivers, 10) + " subscribers"}
	case err != nil:
		return systems.Unknown.Receipt(err, "the connection ended before the answer")
	}
	return systems.Receipt{Acceptance: evidence.Declined, Cause: evidence.CauseNoConsumer, ClientResult: "sent to 0 clients", Reason: "nobody is subscribed"}
}

func neverSent() systems.Receipt {
	return systems.Rejected.Receipt(errGone, "the connection was lost before anything was written")
}

// refusals are the errors, by first word, with which the server refuses a
// command before running it. Any other is Unknown.
var refusals = map[string]systems.Refusal{
	"OOM":       systems.Declined(evidence.CauseLimit), // over maxmemory
	"NOPERM":    systems.Declined(evidence.CausePermission),
	"NOAUTH":    systems.Declined(evidence.CausePermission),
	"READONLY":  systems.Declined(evidence.CausePermission),
	"WRONGTYPE": systems.Declined(evidence.CauseInvalid),
	"MISCONF":   systems.Rejected, // the last write to disk failed
	"LOADING":   systems.Rejected,
}

// refused maps an error reply.
func refused(err error) systems.Receipt {
	word, _, _ := strings.Cut(err.Error(), " ")
	return refusals[word].Receipt(err, err.Error())
}

// Close ends the session. Outstanding publishes become Unknown.
func (p *producer) Close(ctx context.Context) error {
	p.end()
	return ended(ctx, p.done)
}
