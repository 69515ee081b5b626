// Package links holds the named connections between actors: every actor
// (each producer, each consumer) reaches the system under test through a link
// of its own, a TCP relay on 127.0.0.1 that always observes frames and, when
// armed, strikes exactly one of them.
package links

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

// Protocol says where a frame begins, what it carries, and which actions on it
// are legal. There is one folder for each.
type Protocol interface {
	Name() string
	// NewConn starts the framing of one TCP connection. The two framers may
	// share state: a reply is understood by its request.
	NewConn(ix *Index) (toBroker, toClient Framer)
	// Legal is nil if the action may be done to a frame of this kind, and says
	// why not otherwise (replies matched by position are withheld with all
	// that follows, never dropped alone).
	Legal(kind string, a Action) error
	// Kinds are the frame kinds that a script can name, with what each is.
	Kinds() []KindInfo
}

// KindInfo describes a frame kind for scripts and for `explain`.
type KindInfo struct {
	Name string // uniform over protocols: publish, accept, deliver, ack, ack-confirm, subscribe, …
	To   evidence.Direction
	Text string
}

// The uniform names of frame kinds. A protocol may have more of its own.
const (
	FramePublish      = "publish"
	FrameAccept       = "accept" // the system's answer to a publish, whatever it says
	FrameDeliver      = "deliver"
	FrameAck          = "ack"
	FrameAckConfirm   = "ack-confirm"
	FrameNack         = "nack"
	FrameNackConfirm  = "nack-confirm" // the answer to a nack, or to what else but an ack is said of a delivery
	FrameSubscribe    = "subscribe"
	FrameSubscribed   = "subscribed"
	FrameUnsubscribe  = "unsubscribe"
	FrameUnsubscribed = "unsubscribed"
	FrameError        = "error" // the system refuses
)

// FrameKinds are the names of all kinds of frames that a protocol of this module
// has: a script that names another one is mistaken on every system.
func FrameKinds() []string {
	return []string{
		FramePublish, FrameAccept, FrameDeliver, FrameAck, FrameAckConfirm, FrameNack, FrameNackConfirm,
		FrameSubscribe, FrameSubscribed, FrameUnsubscribe, FrameUnsubscribed, FrameError,
		"abort", "aborted", "ack-complete", "admin", "admin-reply", "api", "api-reply", "cancel", "claim", "commit", "credit",
		"disconnect", "fetch", "get", "in-progress", "leave", "left", "lookup", "lookup-reply", "publish-received",
		"publish-release", "pull", "read", "reject", "renew", "return", "stored", "term",
	}
}

// Framer cuts one direction of one connection into frames.
type Framer interface {
	// Next looks at the bytes at the start of buf. It returns the frame that
	// begins there and its length n once it is complete; n == 0 asks for more
	// bytes. An error (bytes that this protocol cannot begin with, a frame
	// over the limit) makes the relay pass the rest through unobserved and
	// record that it did. Frame.Raw is buf[:n].
	Next(buf []byte) (f Frame, n int, err error)
}

// Frame is a whole logical unit of a protocol (an AMQP method with its header
// and body; a ZMTP message with all its parts).
type Frame struct {
	Kind   string               // "" for handshakes, heartbeats and what a script cannot name
	Items  []evidence.FrameItem // the messages carried, 0 to n
	Status string               // of an answer: Yes, or in one word what else; "" where the protocol's frame can only mean yes
	Raw    []byte
}

// Yes is what a frame says that takes responsibility or confirms.
const Yes = "accepted"

// Negative says whether an answer takes no responsibility and confirms nothing.
func (f Frame) Negative() bool { return f.Status != "" && f.Status != Yes }

// Action on a frame.
type Action string

const (
	Pass      Action = ""
	Drop      Action = "drop"
	Hold      Action = "hold"       // this and all that follows in its direction, until healed
	HoldAfter Action = "hold-after" // this is forwarded, then both directions of its connection wait until healed
	Withhold  Action = "withhold"   // this and all that follows in its direction are thrown away, until the connection is cut
	Duplicate Action = "duplicate"  // sent twice
	Delay     Action = "delay"      // this and all that follows, for a time
	CutBefore Action = "cut-before"
	CutAfter  Action = "cut-after"
	Corrupt   Action = "corrupt" // bytes of the payload altered, the frame still well-formed
)

// MaxFrame is the longest frame that is observed, in bytes. A Framer returns an
// error as soon as a peer announces more.
const MaxFrame = 8 << 20

// Corrupter is an optional ability of a Protocol: alter a payload byte so that
// the frame is still well formed. Without it corrupt is not legal.
type Corrupter interface {
	Corrupt(f Frame) ([]byte, error)
}

// LegalAlone is Legal of a protocol whose frames can each be struck alone: only
// what carries no message of the application is not to be corrupted.
func LegalAlone(protocol, kind string, a Action) error {
	if a == Corrupt && kind != FramePublish && kind != FrameDeliver {
		return &ErrIllegal{Protocol: protocol, Kind: kind, Action: a, Why: "it carries no message of the application"}
	}
	return nil
}

// ErrIllegal is what Legal returns for an action that would forge evidence.
type ErrIllegal struct {
	Protocol, Kind string
	Action         Action
	Why            string
}

func (e *ErrIllegal) Error() string {
	return fmt.Sprintf("links: %s does not apply to %q frames of %s: %s", e.Action, e.Kind, e.Protocol, e.Why)
}
