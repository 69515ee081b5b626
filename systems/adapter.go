package systems

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
)

// This file holds what adapters share. None of it is part of the contract.

// Reply is a Pending that an adapter resolves once, when the answer arrives.
type Reply struct {
	done    chan struct{}
	receipt Receipt // valid once done is closed
	gone    <-chan struct{}
	cause   func() error
}

// NewReply returns the Reply to a publish on a session; closing gone means that
// the session has ended, and cause says why. Pass a nil gone if the adapter
// itself resolves open replies when the session ends.
func NewReply(gone <-chan struct{}, cause func() error) *Reply {
	return &Reply{done: make(chan struct{}), gone: gone, cause: cause}
}

// Resolved is a Reply whose answer is already known.
func Resolved(r Receipt) *Reply { return NewReply(nil, nil).Resolve(r) }

// Resolve must be called at most once.
func (p *Reply) Resolve(r Receipt) *Reply {
	p.receipt = r
	close(p.done)
	return p
}

// Receipt prefers an answer that has arrived over the end of the session or of
// ctx.
func (p *Reply) Receipt(ctx context.Context) Receipt {
	select {
	case <-p.done:
		return p.receipt
	default:
	}
	select {
	case <-p.done:
		return p.receipt
	case <-p.gone:
		return Unknown.Receipt(p.cause(), "the connection ended before the answer")
	case <-ctx.Done():
		return Unknown.Receipt(context.Cause(ctx), "cancelled before the answer")
	}
}

// Refusal classifies a negative answer to a publish. The zero value is Unknown:
// unless the system documents an answer as atomic, the publish may be stored.
type Refusal struct {
	acceptance evidence.Acceptance
	cause      evidence.Cause
}

// Unknown and Rejected are refusals without a policy behind them.
var (
	Unknown  Refusal
	Rejected = Refusal{acceptance: evidence.Rejected}
)

// Declined is a refusal by policy.
func Declined(why evidence.Cause) Refusal { return Refusal{evidence.Declined, why} }

// Receipt of a publish refused with err; reason is for people.
func (r Refusal) Receipt(err error, reason string) Receipt {
	return Receipt{Acceptance: r.acceptance, Cause: r.cause, ClientResult: err.Error(), Reason: reason}
}

// OnlyDefaultMode refuses any other mode: for systems in which the mode is part
// of the profile.
func OnlyDefaultMode(system string, mode Mode) error {
	if mode == DefaultMode {
		return nil
	}
	return fmt.Errorf("%s: mode %q is not selectable: the profile fixes it", system, mode)
}

// RowOf is the stored row of a message. A payload that is not an envelope
// yields a digest but no IDs.
func RowOf(m Message, state evidence.RowState) evidence.StoredRow {
	row := evidence.StoredRow{
		State: state, MessageID: m.MessageID, Destination: m.Destination,
		Digest: evidence.Digest(m.Payload, m.Key, m.Headers),
	}
	if e, err := evidence.ParseEnvelope(m.Payload); err == nil {
		row.BusinessID, row.PublishID = e.BusinessID, e.PublishID
	}
	return row
}

// RunName returns a fresh prefix for everything that a run creates on a server
// that it may share with others.
func RunName() string { return "custody-" + strings.ToLower(rand.Text()[:10]) }

// SubscriberName maps a logical subscriber and a destination to a name of
// letters, digits, "-" and "_". A hash distinguishes names that this alphabet
// cannot.
func SubscriberName(subscription, destination string) string {
	plain := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		}
		return '_'
	}, subscription)
	sum := sha256.Sum256([]byte(subscription + "\x00" + destination))
	return plain[:min(len(plain), 64)] + "_" + hex.EncodeToString(sum[:4])
}

// PooledServer is a server that can be attached to one run after another.
type PooledServer interface {
	process.Kept
	Attach(sink evidence.Sink, log io.WriteCloser)
}

// TakeServer returns a server that an earlier run left untouched under the same
// key, or else a new one. A start that fails leaves the log open.
func TakeServer[S PooledServer](ctx context.Context, env Env, system, key string, start func(log io.WriteCloser) (S, error)) (S, error) {
	log, err := env.ServerLog(system, "broker")
	if err != nil {
		return *new(S), err
	}
	s, kept := process.Take[S](ctx, env.Servers, key)
	if kept {
		s.Attach(env.Sink, log)
		return s, nil
	}
	if s, err = start(log); err != nil {
		return *new(S), errors.Join(err, log.Close())
	}
	return s, nil
}
