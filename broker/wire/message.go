// Package wire is the reference broker's protocol: its messages, and their
// encoding as the two parts of a ZeroMQ message. It does no I/O. ../PROTOCOL.md
// specifies the protocol for clients in other languages.
package wire

import "time"

// Version is the protocol version that this package writes.
const Version = 2

// OldestVersion is the oldest version that this package reads. Older input is
// refused with ErrVersion rather than misread.
const OldestVersion = 2

// Message is one protocol message in either direction. It is flat because one
// frame carries one message and kinds share most fields. PROTOCOL.md tabulates
// which fields each kind uses; the codec refuses any other field that is set.
type Message struct {
	Version uint8
	Kind    Kind
	Request uint64 // pairs a request with its reply; chosen by the requester; 0 if no reply is expected

	Client     string // Hello: the client's name, for logs and for the last consumer of a dead letter
	Token      string // Hello: authentication; never logged
	Topic      string // Publish, Deliver, Subscribe (may hold + and #)
	Group      string // Subscribe: the competing consumers' group; if empty, each at-most-once subscription is a group of its own
	Mode       Mode   // Publish, Subscribe
	BusinessID string // Publish, Deliver, Lookup
	MessageID  string // Publish (chosen by the publisher, optional), Reply, Deliver, Ack, Nack, admin
	Key        string // ordering key, passed through
	Headers    map[string]string
	TTL        time.Duration // Publish: 0 means the producer's or store's default; millisecond resolution on the wire
	Attempt    int           // Deliver: counts from 1
	Again      bool          // Deliver: this is a redelivery
	Credit     int           // Subscribe, Credit: additional deliveries that the consumer will take
	Delay      time.Duration // Nack: before redelivery
	DeadLetter bool          // Nack: skip further attempts and dead-letter at once
	Answer     Answer        // Reply
	Reason     string        // Reply, Nack, Error
	Cause      Cause         // PublishReply, SubscribeReply, LookupReply, AdminReply: machine-readable reason, if one applies; Reason has the text
	Payload    []byte        // Publish, Deliver; Reply to admin requests (JSON)
}

// Cause is the machine-readable reason for a reply.
type Cause uint8

const (
	NoCause    Cause = iota
	NoConsumer       // Declined: no subscription of this mode is online and ready
	WrongMode        // Declined: only subscriptions of the other mode match
	Limit            // Declined: a limit of the broker was reached
	BadRequest       // Declined: the request is invalid
	Expired          // Forgotten: the message's time to live passed
	Discarded        // Forgotten: discarded from the dead-letter queue by command
	Forbidden        // Declined, Refused: the user lacks permission
)

// Kind is the type of a message.
type Kind uint8

const (
	Invalid        Kind = iota
	Hello               // client → broker, first message: version, name, token
	Welcome             // broker → client: Hello accepted; Credit is the publish window, TTL the heartbeat interval
	Publish             // client → broker
	PublishReply        // broker → client: Answer, MessageID, Reason
	Subscribe           // client → broker: Topic, Group, Mode, Credit
	SubscribeReply      // broker → client
	Unsubscribe         // client → broker
	UnsubscribeReply
	Credit  // client → broker: grants more deliveries; has no reply
	Deliver // broker → client
	Ack     // client → broker: MessageID, Attempt
	AckReply
	Nack
	NackReply
	Lookup // client → broker: BusinessID
	LookupReply
	Admin // client → broker: Topic is the command (dlq.list, dlq.show, dlq.redrive, dlq.discard, rows, stats, swap, backup), MessageID its object
	AdminReply
	Ping
	Pong
	Error // broker → client: this message or connection was refused (Reason); the broker serves on
)

// Mode is the delivery guarantee of a publish or a subscription. Both sides must
// choose the same one to match.
type Mode uint8

const (
	AtMostOnce Mode = iota + 1
	AtLeastOnce
)

// Answer is the outcome in a reply.
type Answer uint8

const (
	NoAnswer Answer = iota
	Accepted
	Declined
	Rejected
	Unknown
	// For acknowledgements: Accepted means handled; Refused means that the
	// delivery no longer belongs to this consumer.
	Refused
	// For lookups.
	Stored    // a row exists: pending or in flight
	Settled   // acknowledged; the row may be gone
	Dead      // in the dead-letter queue
	NotSeen   // proven not stored
	Forgotten // older than the window in which settled IDs are remembered
)
