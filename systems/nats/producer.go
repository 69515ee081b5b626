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
	waiting map[string]*systems.Reply // by token
}

// maxWaiting bounds the publishes of one session without an answer.
const maxWaiting = 1 << 16

func (p Profile) producer(ctx context.Context, address, name string) (*producer, error) {
	s, err := p.dial(ctx, address, name)
	if err != nil {
		return nil, err
	}
	pr := &producer{session: s, profile: p, inbox: s.conn.NewInbox(), waiting: make(map[string]*systems.Reply)}
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
		return systems.Resolved(systems.Rejected.Receipt(context.Cause(ctx), "cancelled before anything was written")), nil
	}
	reply := systems.NewReply(p.gone, func() error { return client.ErrConnectionClosed })
	p.mu.Lock()
	defer p.mu.Unlock() // call order is the order on the wire
	if p.profile.core {
		if err := p.conn.PublishMsg(msg); err != nil {
			return systems.Resolved(notPublished(err)), nil
		}
		return systems.Resolved(systems.Receipt{Acceptance: evidence.Unknown, ClientResult: systems.OK, Reason: "core NATS confirms no publish"}), nil
	}
	if len(p.waiting) >= maxWaiting {
		return nil, fmt.Errorf("nats: %d publishes of one session have no answer: wait for their receipts first", maxWaiting)
	}
	p.count++
	token := strconv.FormatUint(p.count, 10)
	msg.Reply = p.inbox + "." + token
	p.waiting[token] = reply
	if err := p.conn.PublishMsg(msg); err != nil {
		delete(p.waiting, token)
		return systems.Resolved(notPublished(err)), nil
	}
	return reply, nil
}

// notPublished is the receipt of a publish that the client did not take. It
// checks these two before it writes a byte; any other error came from writing.
func notPublished(err error) systems.Receipt {
	switch {
	case errors.Is(err, client.ErrConnectionClosed):
		return systems.Rejected.Receipt(err, "the connection was gone before anything was written")
	case errors.Is(err, client.ErrMaxPayload):
		return systems.Declined(evidence.CauseInvalid).Receipt(err, "over the server's max_payload")
	}
	return systems.Unknown.Receipt(err, "the connection broke while writing")
}

// answered is called by the connection's one goroutine for this subscription.
func (p *producer) answered(msg *client.Msg) {
	token := strings.TrimPrefix(msg.Subject, p.inbox+".")
	p.mu.Lock()
	reply := p.waiting[token]
	delete(p.waiting, token)
	p.mu.Unlock()
	if reply != nil { // nil for a duplicate answer, which a link may forge
		reply.Resolve(receiptOf(msg, p.profile.holds()))
	}
}

// refusals are the answers that nats-server gives before it touches the
// stream. Any other (a failed store above all) may be partial.
var refusals = map[server.ErrorIdentifier]systems.Refusal{
	server.JSAccountResourcesExceededErr:    systems.Declined(evidence.CauseLimit),
	server.JSInsufficientResourcesErr:       systems.Rejected,
	server.JSMessageTTLInvalidErr:           systems.Declined(evidence.CauseInvalid),
	server.JSStreamMessageExceedsMaximumErr: systems.Declined(evidence.CauseInvalid),
	server.JSStreamHeaderExceedsMaximumErr:  systems.Declined(evidence.CauseInvalid),
	server.JSStreamSealedErr:                systems.Declined(evidence.CausePermission),
}

// receiptOf reads the server's answer to a publish; by holds what it confirms.
func receiptOf(msg *client.Msg, by evidence.HeldBy) systems.Receipt {
	// Core NATS says at once that nothing listens on the subject: no stream.
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		return systems.Rejected.Receipt(client.ErrNoResponders, "no stream takes this subject")
	}
	var ack struct {
		Stream    string              `json:"stream"`
		Sequence  uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
		Error     *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &ack); err != nil {
		return systems.Unknown.Receipt(err, "an answer that is no PubAck")
	}
	switch {
	case ack.Error != nil:
		return refusals[server.ErrorIdentifier(ack.Error.ErrorCode)].Receipt(ack.Error, ack.Error.Description)
	case ack.Stream == "" || ack.Sequence == 0:
		return systems.Unknown.Receipt(jetstream.ErrInvalidJSAck, "a PubAck without stream and sequence")
	}
	return systems.Receipt{
		Acceptance: evidence.Accepted, HeldBy: by, Duplicate: ack.Duplicate,
		MessageID: messageID(ack.Stream, ack.Sequence), ClientResult: systems.OK,
	}
}
