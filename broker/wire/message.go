// Package wire is the reference broker's protocol: messages and their pure
// encoding as the parts of one ZeroMQ message. See ../PROTOCOL.md, from which
// a client in another language can be written.
package wire

import "time"

// Version of the protocol that this package writes.
const Version = 2

// OldestVersion that is read. An older payload is refused by name, never misread.
const OldestVersion = 2

// Message is one protocol message, in either direction: flat, since one frame
// is one message and most fields are shared. Which fields a kind uses is the
// table in PROTOCOL.md; the codec refuses any other field that is set.
type Message struct {
	Version uint8
	Kind    Kind
	Request uint64 // pairs a request with its reply; chosen by the asker; 0 for what is not answered

	Client     string // Hello: the client's name, for logs and for the last consumer of a dead letter
	Token      string // Hello: authentication; never logged
	Topic      string // Publish, Deliver, Subscribe (may hold + and #)
	Group      string // Subscribe: the competing set; empty is a set of its own for each subscription in at-most-once
	Mode       Mode   // Publish, Subscribe
	BusinessID string // Publish, Deliver, Lookup
	MessageID  string // Publish (chosen by the publisher, optional), Reply, Deliver, Ack, Nack, admin
	Key        string // ordering key, carried
	Headers    map[string]string
	TTL        time.Duration // Publish: 0 is the producer's or store's default; sent in milliseconds
	Attempt    int           // Deliver: from 1
	Again      bool          // Deliver: this is a redelivery
	Credit     int           // Subscribe, Credit: how many more deliveries the consumer will take
	Delay      time.Duration // Nack: before it is redelivered
	DeadLetter bool          // Nack: to the dead-letter queue at once
	Answer     Answer        // Reply
	Reason     string        // Reply, Nack, Error
	Cause      Cause         // PublishReply, SubscribeReply, LookupReply, AdminReply: why, where it is one of these; Reason says it in words
	Payload    []byte        // Publish, Deliver; Reply to admin requests (JSON)
}

// Cause is why the broker answered as it did.
type Cause uint8

const (
	NoCause    Cause = iota
	NoConsumer       // Declined: no subscription of this mode is online and ready
	WrongMode        // Declined: only subscriptions of the other mode match
	Limit            // Declined: a bound of the broker was reached
	BadRequest       // Declined: the request itself
	Expired          // Forgotten: its time to live passed
	Discarded        // Forgotten: removed from the dead letters by command
	Forbidden        // Declined, Refused: this user may not do it
)

// Kind of a message.
type Kind uint8

const (
	Invalid        Kind = iota
	Hello               // client → broker, first: version, name, token
	Welcome             // broker → client: accepted; Credit is the publish window, TTL the heartbeat interval
	Publish             // client → broker
	PublishReply        // broker → client: Answer, MessageID, Reason
	Subscribe           // client → broker: Topic, Group, Mode, Credit
	SubscribeReply      // broker → client
	Unsubscribe         // client → broker
	UnsubscribeReply
	Credit  // client → broker: more deliveries may come; not answered
	Deliver // broker → client
	Ack     // client → broker: MessageID, Attempt
	AckReply
	Nack
	NackReply
	Lookup // client → broker: BusinessID
	LookupReply
	Admin // client → broker: Topic is the command (dlq.list, dlq.show, dlq.redrive, dlq.discard, rows, stats), MessageID its object
	AdminReply
	Ping
	Pong
	Error // broker → client: this message or connection was refused (Reason); the loop goes on
)

// Mode of a publish or a subscription. Both sides opt in: different modes do not match.
type Mode uint8

const (
	AtMostOnce Mode = iota + 1
	AtLeastOnce
)

// Answer of a reply.
type Answer uint8

const (
	NoAnswer Answer = iota
	Accepted
	Declined
	Rejected
	Unknown
	// For acknowledgements: Accepted = handled; Refused = not this consumer's any more.
	Refused
	// For lookups.
	Stored    // a row exists: pending or in flight
	Settled   // acknowledged (its row may be gone)
	Dead      // in the dead-letter queue
	NotSeen   // proven not stored
	Forgotten // older than the window for which settled IDs are kept
)
