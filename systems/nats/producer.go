package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// producer publishes with a reply subject of its own for each message, which
// is what js.PublishMsgAsync does too. It is done here because that client
// retries behind the caller's back when no stream answers, and forgets an
// answer that comes after its time-out. Safe for concurrent use.
type producer struct {
	*session
	profile Profile
	inbox   string // reply subjects are inbox + "." + token

	mu      sync.Mutex
	count   uint64
	waiting map[string]*pending // by token
}

// maxWaiting bounds the publishes of one session without an answer.
const maxWaiting = 1 << 16

func (p Profile) producer(ctx context.Context, address, name string) (*producer, error) {
	s, err := p.dial(ctx, address, name)
	if err != nil {
		return nil, err
	}
	pr := &producer{session: s, profile: p, inbox: s.conn.NewInbox(), waiting: make(map[string]*pending)}
	if p.core {
		return pr, nil // nobody answers
	}
	if _, err := s.conn.Subscribe(pr.inbox+".*", pr.answered); err != nil {
		s.conn.Close()
		return nil, fmt.Errorf("nats: subscribe to publish answers: %w: %w", systems.ErrUnavailable, err)
	}
	return pr, nil
}

func (p *producer) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	if m.MessageID == "" && p.profile.duplicates > 0 {
		if e, err := evidence.ParseEnvelope(m.Payload); err == nil {
			m.MessageID = e.BusinessID // the same on each try
		}
	}
	msg, err := encode(p.profile.stream, m)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return settled(refusal(evidence.Rejected, context.Cause(ctx), "cancelled before anything was written")), nil
	}
	pend := &pending{session: p.session, answered: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock() // call order is the order on the wire
	if p.profile.core {
		if err := p.conn.PublishMsg(msg); err != nil {
			return settled(notPublished(err)), nil
		}
		return settled(systems.Receipt{Acceptance: evidence.Unknown, ClientResult: "ok", Reason: "core NATS confirms no publish"}), nil
	}
	if len(p.waiting) >= maxWaiting {
		return nil, fmt.Errorf("nats: %d publishes of one session have no answer: wait for their receipts first", maxWaiting)
	}
	p.count++
	token := strconv.FormatUint(p.count, 10)
	msg.Reply = p.inbox + "." + token
	p.waiting[token] = pend
	if err := p.conn.PublishMsg(msg); err != nil {
		delete(p.waiting, token)
		return settled(notPublished(err)), nil
	}
	return pend, nil
}

// notPublished is the receipt of a publish that the client did not take. It
// checks these two before it writes a byte; any other error came from writing.
func notPublished(err error) systems.Receipt {
	switch {
	case errors.Is(err, client.ErrConnectionClosed):
		return refusal(evidence.Rejected, err, "the connection was gone before anything was written")
	case errors.Is(err, client.ErrMaxPayload):
		return declined(evidence.CauseInvalid, err, "over the server's max_payload")
	}
	return refusal(evidence.Unknown, err, "the connection broke while writing")
}

// answered is called by the connection's one goroutine for this subscription.
func (p *producer) answered(msg *client.Msg) {
	token := strings.TrimPrefix(msg.Subject, p.inbox+".")
	p.mu.Lock()
	pend := p.waiting[token]
	delete(p.waiting, token)
	p.mu.Unlock()
	if pend != nil { // a link may have duplicated the answer
		pend.receipt = receiptOf(msg, p.profile.holds())
		close(pend.answered)
	}
}

// pending is a publish on its way; receipt is valid once answered is closed.
type pending struct {
	session  *session // nil once settled without the server
	answered chan struct{}
	receipt  systems.Receipt
}

func settled(r systems.Receipt) *pending {
	done := make(chan struct{})
	close(done)
	return &pending{answered: done, receipt: r}
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
	case <-p.session.gone:
		return refusal(evidence.Unknown, client.ErrConnectionClosed, "the connection ended before the answer")
	case <-ctx.Done():
		return refusal(evidence.Unknown, context.Cause(ctx), "cancelled before the answer")
	}
}

func refusal(a evidence.Acceptance, err error, reason string) systems.Receipt {
	return systems.Receipt{Acceptance: a, ClientResult: err.Error(), Reason: reason}
}

// declined is a refusal by policy, with its cause.
func declined(why evidence.Cause, err error, reason string) systems.Receipt {
	r := refusal(evidence.Declined, err, reason)
	r.Cause = why
	return r
}

// refusals are the answers that nats-server gives before it touches the
// stream. Any other (a failed store above all) may be partial.
var refusals = map[server.ErrorIdentifier]struct {
	acceptance evidence.Acceptance
	cause      evidence.Cause
}{
	server.JSAccountResourcesExceededErr:    {evidence.Declined, evidence.CauseLimit},
	server.JSInsufficientResourcesErr:       {evidence.Rejected, evidence.NoCause},
	server.JSMessageTTLInvalidErr:           {evidence.Declined, evidence.CauseInvalid},
	server.JSStreamMessageExceedsMaximumErr: {evidence.Declined, evidence.CauseInvalid},
	server.JSStreamHeaderExceedsMaximumErr:  {evidence.Declined, evidence.CauseInvalid},
	server.JSStreamSealedErr:                {evidence.Declined, evidence.CausePermission},
}

// receiptOf reads the server's answer to a publish; by holds what it confirms.
func receiptOf(msg *client.Msg, by evidence.HeldBy) systems.Receipt {
	// Core NATS says at once that nothing listens on the subject: no stream.
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		return refusal(evidence.Rejected, client.ErrNoResponders, "no stream takes this subject")
	}
	var ack struct {
		Stream    string              `json:"stream"`
		Sequence  uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
		Error     *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &ack); err != nil {
		return refusal(evidence.Unknown, err, "an answer that is no PubAck")
	}
	switch {
	case ack.Error != nil:
		known := refusals[server.ErrorIdentifier(ack.Error.ErrorCode)]
		r := refusal(known.acceptance, ack.Error, ack.Error.Description)
		r.Cause = known.cause
		return r
	case ack.Stream == "" || ack.Sequence == 0:
		return refusal(evidence.Unknown, jetstream.ErrInvalidJSAck, "a PubAck without stream and sequence")
	}
	r := systems.Receipt{
		Acceptance: evidence.Accepted, HeldBy: by,
		MessageID: messageID(ack.Stream, ack.Sequence), ClientResult: "ok",
	}
	r.Duplicate = ack.Duplicate
	return r
}
