// Package rabbitmq is the adapter for RabbitMQ over AMQP 0-9-1. It runs the
// installed server as a child process with a private directory and ports, one
// of an image, or uses an external one, and connects with amqp091-go.
package rabbitmq

import (
	"fmt"
	"maps"
	"slices"
	"time"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// Profile is one configuration of queues and clients, which all share the same
// server.
type Profile struct {
	name, summary  string
	queueType      string
	transientQueue bool
	transient      bool // messages
	arguments      client.Table
	deadLetters    bool
	maxAttempts    int

	confirms            bool
	mandatory           bool
	consumersMakeQueues bool // only consumers declare queues
	autoAck             bool

	image string           // container image of the server; empty: the installed one
	at    systems.Endpoint // of an external server; zero: start one
	// reported is the external server's version, once connected.
	reported string
	scale    float64 // factor on every period and bound
	claims   []evidence.Claim
}

const (
	quorum  = "quorum"
	classic = "classic"
)

// deliveryLimit of profiles with dead letters: a message is delivered once more
// than that.
const deliveryLimit = 4

// Profiles lists the configurations of this adapter, the safest first. scale is
// the factor on every period and deadline of the run: 1 on an ordinary machine.
func Profiles(scale float64) []systems.System {
	safe := Profile{
		name:      "quorum",
		summary:   "quorum queue, persistent messages, publisher confirms, mandatory, manual acknowledgements",
		queueType: quorum, confirms: true, mandatory: true, scale: scale, claims: quorumClaims,
	}
	durable := safe
	durable.name, durable.queueType, durable.claims = "classic", classic, classicClaims
	durable.summary = "durable classic queue, persistent messages, publisher confirms, mandatory, manual acknowledgements"

	made := []Profile{safe, durable}
	add := func(from Profile, name, summary string, claims []evidence.Claim, change func(*Profile)) {
		p := from
		p.name, p.summary, p.claims = name, summary, claims
		change(&p)
		made = append(made, p)
	}
	add(durable, "classic-transient", "as classic, but messages are transient: they end with the server", transientClaims,
		func(p *Profile) { p.transient = true })
	add(durable, "non-durable", "as classic-transient, and so does the queue", transientClaims,
		func(p *Profile) { p.transient, p.transientQueue = true, true })
	add(durable, "no-confirms", "as classic, without publisher confirms: nobody is told whether a publish arrived", unconfirmedClaims,
		func(p *Profile) { p.confirms, p.mandatory = false, false })
	add(durable, "auto-ack", "as classic, with automatic acknowledgements: sent to a consumer is done", autoAckClaims,
		func(p *Profile) { p.autoAck = true })
	add(safe, "unroutable", "as quorum, but only consumers make the queue, and a publish is not mandatory: without a queue it is confirmed and thrown away", unroutableClaims,
		func(p *Profile) { p.consumersMakeQueues, p.mandatory = true, false })
	add(safe, "mandatory", "as unroutable, but mandatory: without a queue a publish is returned", mandatoryClaims,
		func(p *Profile) { p.consumersMakeQueues = true })
	add(safe, "delivery-limit", "as quorum, with a limit of deliveries and nowhere to put what exceeds it: it is dropped", deliveryLimitClaims,
		func(p *Profile) { p.arguments = client.Table{"x-delivery-limit": 1} })
	add(safe, "delivery-limit-dlx", "as quorum, with a limit of deliveries, and a dead-letter queue that is written at least once", deadLetterClaims,
		func(p *Profile) {
			p.maxAttempts, p.deadLetters = deliveryLimit+1, true
			p.arguments = client.Table{"x-delivery-limit": deliveryLimit, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
		})
	add(safe, "max-length-reject", "as quorum, at most a few messages long: then a publish is refused", quorumClaims,
		func(p *Profile) {
			p.arguments = client.Table{"x-max-length": 5, "x-overflow": "reject-publish"}
		})
	add(safe, "max-length-drop-head", "as quorum, at most a few messages long: then the oldest is dropped", dropHeadClaims,
		func(p *Profile) { p.arguments = client.Table{"x-max-length": 3, "x-overflow": "drop-head"} })

	list := make([]systems.System, len(made))
	for i, p := range made {
		list[i] = p
	}
	return list
}

// Periods at scale 1.
const (
	openTimeout = 5 * time.Second // connection, handshake and set-up
	// redelivery follows the end of a session immediately. Only the end of a
	// silent peer is detected by heartbeats, and no healed fault leaves one.
	redelivery = time.Second
)

// Not scaled: they end what a fault has broken.
const (
	heartbeat    = 5 * time.Second
	writeTimeout = 2 * time.Second // of a write to a stopped server
	closeTimeout = time.Second     // for the server's close-ok
	readyTimeout = 2 * time.Second
	frameSize    = 128 << 10 // RabbitMQ's default
)

func (p Profile) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * p.scale)
}

func (p Profile) deliveryMode() uint8 {
	if p.transient {
		return client.Transient
	}
	return client.Persistent
}

// heldBy is who holds a confirmed message. With a single node, a quorum is that
// node's disk.
func (p Profile) heldBy() evidence.HeldBy {
	if p.transient {
		return evidence.HeldByBrokerMemory
	}
	return evidence.HeldByStore
}

// nacked is the receipt of a publish answered with basic.nack. A queue that is
// full by policy has stored nothing; any other nack reports an internal error,
// after which the message may be stored.
func (p Profile) nacked() systems.Receipt {
	if p.arguments["x-max-length"] != nil {
		return systems.Declined(evidence.CauseLimit).Receipt(errNacked, "the queue is full")
	}
	return systems.Unknown.Receipt(errNacked, "an internal error of the server")
}

// Describe says what this profile promises and lacks.
func (p Profile) Describe() systems.Description {
	d := systems.Description{
		System: "rabbitmq",
		Profile: evidence.Profile{
			Name:        p.name,
			Summary:     p.summary,
			Settings:    p.settings(),
			Redelivers:  evidence.RedeliverReconnect,
			AckCounting: "per-message",
			MarksAgain:  true,
			// A queue exists without consumers.
			KeepsSubscribers: true,
			Limits: evidence.Limits{
				MaxAttempts:      p.maxAttempts,
				DropsAfter:       p.dropsAfter(),
				RedeliveryPeriod: p.scaled(redelivery),
				RecoveryBound:    p.scaled(15 * time.Second),
				InFlightBound:    p.scaled(time.Second),
				ExpiryTolerance:  p.scaled(time.Second),
				DrainDeadline:    p.scaled(25 * time.Second),
				OrderScope:       "connection",
			},
		},
		Claims:   p.claims,
		Versions: p.versions(),
		Oldest:   map[string]string{"rabbitmq-server": oldest},
		Lacks: map[systems.Need]string{
			systems.NeedWildcards:   "a consumer reads a queue by its name; wildcards are a matter of bindings",
			systems.NeedModes:       "a queue has one mode: what is at most once there is another profile",
			systems.NeedDecline:     "the queue is there, and stores a message whether or not a consumer is online",
			systems.NeedDedup:       "RabbitMQ reads no message ID: the same one again is another message",
			systems.NeedLookup:      "AMQP has no way to ask for a message by its ID: an unknown publish is settled by its delivery, or by a queue that is empty",
			systems.NeedStoreFaults: "the message store is inside the server, with no seam to strike it",
			systems.NeedClock:       "RabbitMQ reads the machine's clock",
			systems.NeedIdentity:    "the run does not rename a node: its folder is named for it",
			systems.NeedPlanting:    "AMQP messages have no protocol version that the server would refuse",
			systems.NeedRewind:      "an acknowledged message is deleted: there is nothing to go back to",
			systems.NeedDeadLetters: "this profile has no dead-letter exchange",
			systems.NeedFanOut:      "all consumers of a queue compete, and a destination is one queue",
		},
	}
	if p.image != "" {
		d.Profile.Name += "@" + p.image
	}
	if p.at.Address != "" {
		d.Lacks[systems.NeedRows] = "AMQP counts what waits for a consumer, and not what a consumer holds"
		d.Claims = slices.DeleteFunc(slices.Clone(d.Claims), func(c evidence.Claim) bool { return c.Guarantee == evidence.RowsMatchClients })
	}
	switch {
	case p.consumersMakeQueues && p.mandatory:
		delete(d.Lacks, systems.NeedDecline)
	case p.consumersMakeQueues:
		d.Lacks[systems.NeedDecline] = "a message that no queue takes is confirmed all the same, and thrown away: see docs/track-record.md"
	}
	if p.deadLetters {
		delete(d.Lacks, systems.NeedDeadLetters)
	}
	if !p.confirms {
		d.Lacks[systems.NeedAnswer] = "without confirms no publish is answered"
	}
	if p.autoAck {
		const automatic = "an automatically acknowledged message is done when it is sent"
		d.Profile.Redelivers, d.Profile.AckCounting = evidence.RedeliverNever, "automatic"
		for _, need := range []systems.Need{systems.NeedAcks, systems.NeedNack, systems.NeedRedelivery, systems.NeedTTL, systems.NeedWindow} {
			d.Lacks[need] = automatic
		}
	}
	return d
}

// dropsAfter is the number of deliveries after which a quorum queue drops a
// message without a dead-letter exchange; 0 is never. Classic queues do not
// count.
func (p Profile) dropsAfter() int {
	if p.queueType != quorum || p.deadLetters {
		return 0
	}
	if limit, set := p.arguments["x-delivery-limit"].(int); set {
		return limit + 1
	}
	if version, err := p.release(); err == nil && version != "" && !systems.Older(version, limitSince) {
		return defaultLimit + 1
	}
	return 0
}

func (p Profile) settings() []evidence.Setting {
	yes := map[bool]string{true: "true", false: "false"}
	list := []evidence.Setting{
		{Name: "x-queue-type", Value: p.queueType},
		{Name: "durable", Value: yes[!p.transientQueue]},
		{Name: "delivery-mode", Value: map[bool]string{true: "1 (transient)", false: "2 (persistent)"}[p.transient]},
		{Name: "confirm.select", Value: yes[p.confirms]},
		{Name: "mandatory", Value: yes[p.mandatory]},
		{Name: "no-ack", Value: yes[p.autoAck]},
		{Name: "heartbeat", Value: heartbeat.String()},
	}
	for _, name := range slices.Sorted(maps.Keys(p.arguments)) {
		list = append(list, evidence.Setting{Name: name, Value: fmt.Sprint(p.arguments[name])})
	}
	if p.deadLetters {
		list = append(list, evidence.Setting{Name: "x-dead-letter-exchange", Value: "the default one"})
	}
	return list
}
