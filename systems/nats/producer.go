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

// producer publishes with a reply subject per message, as js.PublishMsgAsync
// does. It does not use that call, which silently retries when no stream
// answers and drops an answer that arrives after its timeout. Safe for
// concurrent use.
type producer struct {
	*session
	profile Profile
	inbox   string // reply subjects are inbox + "." + token

	mu      sync.Mutex
	count   uint64
	waiting map[string]*systems.Reply // by token
}

// maxWaiting bounds a session's unanswered publishes.
const maxWaiting = 1 << 16

func (p Profile) producer(ctx context.Context, address, name string) (*producer, error) {
	s, err := p.dial(ctx, address, name)
	if err != nil {
		return nil, err
	}
	pr := &producer{session: s, profile: p, inbox: s.conn.NewInbox(), waiting: make(map[string]*systems.Reply)}
	if p.core {
		return pr, nil // no answers
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
			m.MessageID = e.BusinessID // the same for every attempt
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
	defer p.mu.Unlock() // wire order is call order
	if p.profile.core {
		if err := p.conn.PublishMsg(msg); err != nil {
			return systems.Resolved(notPublished(err)), nil
		}
		return systems.Resolved(systems.Receipt{Acceptance: evidence.Unknown, ClientResult: systems.OK, Reason: "core NATS does not confirm publishes"}), nil
	}
	if len(p.waiting) >= maxWaiting {
		return nil, fmt.Errorf("nats: %d unanswered publishes in one session: wait for their receipts first", maxWaiting)
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

// notPublished is the receipt of a publish that the client refused. It checks
// for these two before writing; any other error came from the write.
func notPublished(err error) systems.Receipt {
	switch {
	case errors.Is(err, client.ErrConnectionClosed):
		return systems.Rejected.Receipt(err, "the connection was lost before anything was written")
	case errors.Is(err, client.ErrMaxPayload):
		return systems.Declined(evidence.CauseInvalid).Receipt(err, "larger than the server's max_payload")
	}
	return systems.Unknown.Receipt(err, "the connection broke while writing")
}

// answered runs on the goroutine of this subscription.
func (p *producer) answered(msg *client.Msg) {
	token := strings.TrimPrefix(msg.Subject, p.inbox+".")
	p.mu.Lock()
	reply := p.waiting[token]
	delete(p.waiting, token)
	p.mu.Unlock()
	if reply != nil { // nil for a duplicate answer, which a link may forge
		reply.Resolve(receiptOf(msg, p.profile.heldBy()))
	}
}

// refusals are the errors that nats-server returns before it touches the
// stream. After any other, such as a failed store, the message may be stored.
var refusals = map[server.ErrorIdentifier]systems.Refusal{
	server.JSAccountResourcesExceededErr:    systems.Declined(evidence.CauseLimit),
	server.JSInsufficientResourcesErr:       systems.Rejected,
	server.JSMessageTTLInvalidErr:           systems.Declined(evidence.CauseInvalid),
	server.JSStreamMessageExceedsMaximumErr: systems.Declined(evidence.CauseInvalid),
	server.JSStreamHeaderExceedsMaximumErr:  systems.Declined(evidence.CauseInvalid),
	server.JSStreamSealedErr:                systems.Declined(evidence.CausePermission),
}

// receiptOf maps the server's answer to a publish; by is who then holds the
// message.
func receiptOf(msg *client.Msg, by evidence.HeldBy) systems.Receipt {
	// The 503 of core NATS: nothing subscribes to the subject, so there is no
	// stream.
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		return systems.Rejected.Receipt(client.ErrNoResponders, "no stream captures this subject")
	}
	var ack struct {
		Stream    string              `json:"stream"`
		Sequence  uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
		Error     *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &ack); err != nil {
		return systems.Unknown.Receipt(err, "the answer is not a PubAck")
	}
	switch {
	case ack.Error != nil:
		return refusals[server.ErrorIdentifier(ack.Error.ErrorCode)].Receipt(ack.Error, ack.Error.Description)
	case ack.Stream == "" || ack.Sequence == 0:
		return systems.Unknown.Receipt(jetstream.ErrInvalidJSAck, "the PubAck lacks stream and sequence")
	}
	return systems.Receipt{
		Acceptance: evidence.Accepted, HeldBy: by, Duplicate: ack.Duplicate,
		MessageID: messageID(ack.Stream, ack.Sequence), ClientResult: systems.OK,
	}
}
