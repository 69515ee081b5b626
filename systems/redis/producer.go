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

// producer publishes in pipelines: what was sent while one was under way goes
// into the next, in call order. Safe for concurrent use.
type producer struct {
	clients
	*session
	done chan struct{} // closed when its goroutine has ended

	mu     sync.Mutex
	queue  []*pending // in call order
	queued chan struct{}
}

const (
	maxWaiting  = 1 << 16 // publishes of one session that no pipeline has taken
	maxPipeline = 256     // publishes of one pipeline
)

func newProducer(c clients, s *session) *producer {
	p := &producer{clients: c, session: s, done: make(chan struct{}), queued: make(chan struct{}, 1)}
	tasks.Go(p.run)
	return p
}

// pending is a publish on its way; receipt is valid once answered is closed.
type pending struct {
	name     string // of the stream or channel
	command  client.Cmder
	answered chan struct{}
	receipt  systems.Receipt
}

func (p *producer) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	pend := &pending{name: p.name(m.Destination), answered: make(chan struct{})}
	var err error
	if pend.command, err = p.command(pend.name, m); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return pend.resolve(refusal(evidence.Rejected, context.Cause(ctx), "cancelled before anything was written")), nil
	case p.ended():
		return pend.resolve(neverSent()), nil
	case len(p.queue) >= maxWaiting:
		return nil, fmt.Errorf("redis: %d publishes of one session wait to be sent: wait for their receipts first", maxWaiting)
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
	ctx := context.Background() // of a pipeline only the pipeline's own counts
	if p.profile.reads == channel {
		raw, err := wrap(m)
		return client.NewIntCmd(ctx, "publish", name, raw), err
	}
	return client.NewStringCmd(ctx, append([]any{"xadd", name, "*"}, encode(m)...)...), nil
}

// run sends what is queued, until the session is over.
func (p *producer) run() {
	defer close(p.done)
	for {
		select {
		case <-p.queued:
		case <-p.gone:
			for _, pend := range p.take(maxWaiting) {
				pend.resolve(neverSent())
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

// take the oldest that wait.
func (p *producer) take(most int) []*pending {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(most, len(p.queue))
	batch := p.queue[:n:n]
	p.queue = p.queue[n:]
	return batch
}

// exchange writes a pipeline and reads its replies. Every error but a reply
// leaves the connection closed: see conn.
func (p *producer) exchange(batch []*pending) {
	ctx := context.Background() // the session's time-outs bound it
	before := p.conn.written.Load()
	pipe := p.client.Pipeline()
	for _, pend := range batch {
		_ = pipe.Process(ctx, pend.command)
	}
	_, _ = pipe.Exec(ctx) // each command has its own
	written := p.conn.written.Load() > before
	for _, pend := range batch {
		r := pend.outcome(written)
		if r.Acceptance == evidence.Accepted {
			r.HeldBy = p.profile.heldBy
		}
		pend.resolve(r)
	}
}

// outcome of a publish that a pipeline carried, if anything of it was written.
func (p *pending) outcome(written bool) systems.Receipt {
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
	// When the connection ends, go-redis gives its error to every command of the
	// pipeline, also to those whose reply it has read.
	switch {
	case err == nil:
	case r.Acceptance == evidence.Accepted:
		r.ClientResult, r.Reason = err.Error(), "the reply came, and the connection ended before the pipeline's last"
	default:
		r = refusal(evidence.Unknown, err, "the connection ended before the answer")
	}
	return r
}

// stored is the receipt of an XADD that was answered with an entry's ID.
func stored(key, id string) systems.Receipt {
	if id == "" {
		return refusal(evidence.Unknown, errors.New("an answer without an ID"), "an answer that is no entry's ID")
	}
	return systems.Receipt{Acceptance: evidence.Accepted, MessageID: resp.MessageID(key, id), ClientResult: "ok"}
}

// sentTo is the receipt of a PUBLISH. The number proves that the server had
// that many subscribed connections and put the message into their output
// buffers. It says nothing of its arrival, and the server keeps no copy.
func sentTo(receivers int64, err error) systems.Receipt {
	switch {
	case receivers > 0:
		return systems.Receipt{Acceptance: evidence.Accepted, ClientResult: "ok", Reason: "sent to " + strconv.FormatInt(receivers, 10) + " subscribers"}
	case err != nil:
		return refusal(evidence.Unknown, err, "the connection ended before the answer")
	}
	return systems.Receipt{Acceptance: evidence.Declined, Cause: evidence.CauseNoConsumer, ClientResult: "sent to 0 clients", Reason: "nobody is subscribed"}
}

func (p *pending) resolve(r systems.Receipt) *pending {
	p.receipt = r
	close(p.answered)
	return p
}

func (p *pending) Receipt(ctx context.Context) systems.Receipt {
	select { // an answer that is there counts, whatever else has ended
	case <-p.answered:
		return p.receipt
	default:
	}
	select {
	case <-p.answered:
		return p.receipt
	case <-ctx.Done():
		return refusal(evidence.Unknown, context.Cause(ctx), "cancelled before the answer")
	}
}

func refusal(a evidence.Acceptance, err error, reason string) systems.Receipt {
	return systems.Receipt{Acceptance: a, ClientResult: err.Error(), Reason: reason}
}

func neverSent() systems.Receipt {
	return refusal(evidence.Rejected, errGone, "the connection was gone before anything was written")
}

// refusals are the errors with which the server refuses a command before it
// runs it, by their first word. Any other is Unknown.
var refusals = map[string]struct {
	acceptance evidence.Acceptance
	cause      evidence.Cause
}{
	"OOM":       {evidence.Declined, evidence.CauseLimit}, // over maxmemory
	"NOPERM":    {evidence.Declined, evidence.CausePermission},
	"NOAUTH":    {evidence.Declined, evidence.CausePermission},
	"READONLY":  {evidence.Declined, evidence.CausePermission},
	"WRONGTYPE": {evidence.Declined, evidence.CauseInvalid},
	"MISCONF":   {evidence.Rejected, evidence.NoCause}, // the last write to disk failed
	"LOADING":   {evidence.Rejected, evidence.NoCause},
}

// refused reads an error that the server answered.
func refused(err error) systems.Receipt {
	word, _, _ := strings.Cut(err.Error(), " ")
	known := refusals[word]
	r := refusal(known.acceptance, err, err.Error())
	r.Cause = known.cause
	return r
}

// Close ends the session. Publishes without an answer are Unknown from then on.
func (p *producer) Close(ctx context.Context) error {
	p.end()
	return ended(ctx, p.done)
}
