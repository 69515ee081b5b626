// Package links provides the connections between actors: each producer and
// consumer reaches the system through its own link, a TCP relay on 127.0.0.1
// that observes frames and, when armed, strikes exactly one.
package links

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

// Protocol delimits frames and says what they carry and which actions on them
// are legal. There is a package for each.
type Protocol interface {
	Name() string
	// NewConn returns the framers of one TCP connection. They may share state:
	// a reply may need its request.
	NewConn(ix *Index) (toBroker, toClient Framer)
	// Legal returns nil if the action is legal for this kind, else why not.
	// Replies matched by position cannot be dropped alone: they and all that
	// follows are withheld.
	Legal(kind string, a Action) error
	// Kinds returns the frame kinds that a script can name.
	Kinds() []KindInfo
}

// KindInfo describes a frame kind for scripts and `explain`.
type KindInfo struct {
	Name string // shared by protocols: publish, accept, deliver, ack, ack-confirm, subscribe, …
	To   evidence.Direction
	Text string
}

// Frame kinds shared by protocols. A protocol may add its own.
const (
	FramePublish      = "publish"
	FrameAccept       = "accept" // the system's answer to a publish, positive or not
	FrameDeliver      = "deliver"
	FrameAck          = "ack"
	FrameAckConfirm   = "ack-confirm"
	FrameNack         = "nack"
	FrameNackConfirm  = "nack-confirm" // the answer to a nack or to any other settlement but ack
	FrameSubscribe    = "subscribe"
	FrameSubscribed   = "subscribed"
	FrameUnsubscribe  = "unsubscribe"
	FrameUnsubscribed = "unsubscribed"
	FrameError        = "error" // the system refuses
)

// FrameKinds returns all kinds of all protocols in this module. A script that
// names any other is wrong on every system.
func FrameKinds() []string {
	return []string{
		FramePublish, FrameAccept, FrameDeliver, FrameAck, FrameAckConfirm, FrameNack, FrameNackConfirm,
		FrameSubscribe, FrameSubscribed, FrameUnsubscribe, FrameUnsubscribed, FrameError,
		"abort", "aborted", "ack-complete", "admin", "admin-reply", "api", "api-reply", "begin", "begin-reply", "cancel", "claim",
		"commit", "commit-reply", "credit", "delete", "delete-reply", "disconnect", "fetch", "get", "in-progress", "insert",
		"insert-reply", "leave", "left", "lookup", "lookup-reply", "mark", "mark-reply", "publish-received", "publish-release",
		"pull", "query", "query-reply", "read", "reject", "renew", "return", "rollback", "rollback-reply", "stored", "term",
		"update", "update-reply",
	}
}

// Framer cuts one direction of a connection into frames.
type Framer interface {
	// Next returns the frame at the start of buf and its length n; n == 0 asks
	// for more bytes. On an error (bytes foreign to the protocol, a frame over
	// the limit) the relay passes the rest through unobserved, and records
	// that. Frame.Raw is buf[:n].
	Next(buf []byte) (f Frame, n int, err error)
}

// Frame is a whole logical unit of a protocol (an AMQP method with header and
// body; a ZMTP message with all its parts).
type Frame struct {
	Kind   string               // empty for handshakes, heartbeats and others that a script cannot name
	Items  []evidence.FrameItem // the messages carried
	Status string               // of an answer: Yes, or another word; empty if it can only mean yes
	Raw    []byte
}

// Yes is the status of an answer that accepts or confirms.
const Yes = "accepted"

// Negative reports whether an answer neither accepts nor confirms.
func (f Frame) Negative() bool { return f.Status != "" && f.Status != Yes }

// Action is an action on a frame.
type Action string

const (
	Pass      Action = ""
	Drop      Action = "drop"
	Hold      Action = "hold"       // hold it and all that follows in its direction, until healed
	HoldAfter Action = "hold-after" // forward it, then hold both directions, until healed
	Withhold  Action = "withhold"   // discard it and all that follows in its direction, until the connection is cut
	Duplicate Action = "duplicate"  // send it twice
	Delay     Action = "delay"      // delay it and all that follows
	CutBefore Action = "cut-before"
	CutAfter  Action = "cut-after"
	Corrupt   Action = "corrupt" // alter bytes of the payload; the frame stays well formed
)

// MaxFrame is the longest frame observed, in bytes. A Framer returns an error
// as soon as a peer announces more.
const MaxFrame = 8 << 20

// Corrupter is an optional interface of a Protocol. Without it corrupt is
// illegal.
type Corrupter interface {
	Corrupt(f Frame) ([]byte, error)
}

// LegalAlone is Legal for protocols whose frames can each be struck alone: only
// frames without an application message cannot be corrupted.
func LegalAlone(protocol, kind string, a Action) error {
	if a == Corrupt && kind != FramePublish && kind != FrameDeliver {
		return &ErrIllegal{Protocol: protocol, Kind: kind, Action: a, Why: "it carries no message of the application"}
	}
	return nil
}

// ErrIllegal is returned by Legal for an action that would forge evidence.
type ErrIllegal struct {
	Protocol, Kind string
	Action         Action
	Why            string
}

func (e *ErrIllegal) Error() string {
	return fmt.Sprintf("links: %s does not apply to %q frames of %s: %s", e.Action, e.Kind, e.Protocol, e.Why)
}
