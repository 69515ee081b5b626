package nats

import (
	"slices"

	"github.com/custodymq/custody/evidence"
)

// claims lists guarantees, each with the page and section of NATS's
// documentation (docs.nats.io) that promises it.
type claims []promise

type promise struct {
	guarantee string
	under     []evidence.Class
	source    string
}

func under(classes ...evidence.Class) []evidence.Class { return classes }

var (
	// anyFault is every fault class that applies to a child process behind a
	// link.
	anyFault = under(evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerCrash, evidence.BrokerPause, evidence.Link)
	// endOfServer stops the server; whileRunning does not.
	endOfServer  = under(evidence.BrokerRestart, evidence.BrokerCrash)
	whileRunning = under(evidence.ClientCrash, evidence.BrokerPause, evidence.Link)
)

// atLeastOnce holds for a file-backed work queue with confirmed
// acknowledgements.
var atLeastOnce = claims{
	{evidence.NoAcceptedLoss, anyFault, "JetStream Deep Dive, Delivery and acknowledgment: The delivery lifecycle; Reference, Configuration: sync_interval"},
	{evidence.NoPhantom, anyFault, "JetStream Deep Dive, Publishing: What a PubAck contains"},
	{evidence.DeclinedMeansAbsent, anyFault, "JetStream Deep Dive, Publishing: What a PubAck contains"},
	{evidence.UnknownResolved, anyFault, "JetStream Deep Dive, Reading messages directly: Get one message"},
	// After a restart, the row of a message whose acknowledgement was just
	// confirmed can reappear and stay, though it is not delivered again: see
	// docs/findings.md.
	{evidence.AckIsFinal, whileRunning, "JetStream Deep Dive, Delivery and acknowledgment: Double ack: make sure the ack landed"},
	{evidence.RecoveryBounded, anyFault, "JetStream Deep Dive, Ack responses and redelivery: The server controls (AckWait)"},
	{evidence.RowsMatchClients, whileRunning, "JetStream Deep Dive, Retention policies: The three policies (WorkQueue)"},
	{evidence.Survives, anyFault, signals},
	{evidence.StrangersRefused, anyFault, clientProtocol},
	// The delivery counter is written asynchronously, so that even an orderly
	// restart can reset it (docs/findings.md), and a redelivery is then marked
	// as the first.
	{evidence.StableRedeliveryID, whileRunning, "JetStream Deep Dive, Delivery and acknowledgment: Redelivery: when a message isn't acked (tries)"},
	// A message lost on its way to a consumer is redelivered after AckWait,
	// behind later ones: order holds where nothing is lost.
	{evidence.Order, nil, "JetStream Deep Dive, Delivery and acknowledgment: Redelivery: when a message isn't acked (stream order)"},
	// Expiry is a sweep once a second, which a stopped server misses.
	{evidence.ExpiryHonoured, under(evidence.ClientCrash), "JetStream Deep Dive, Per-message TTL: Publish a short-lived message"},
	{evidence.Routing, anyFault, wildcards},
	{evidence.MessageIdentity, anyFault, "JetStream Deep Dive, Publishing: What a PubAck contains"},
	{evidence.ExclusiveDelivery, whileRunning, "JetStream Deep Dive, Ack responses and redelivery: The server controls (AckWait)"},
}

// wildcards documents which subscribers a publish reaches.
const wildcards = "Core NATS Deep Dive: Subjects and wildcards"

// signals documents what stops a server.
const signals = "Signals: Command Line"

// clientProtocol documents the replies and which errors close a connection.
const clientProtocol = "Reference, Client Protocol: +OK/-ERR; Reference, Configuration: max_payload"

// atMostOnceStored holds where a delivery counts as its acknowledgement.
var atMostOnceStored = claims{
	// The delivered position is written asynchronously, like the delivery
	// counter.
	{evidence.NoDuplicateDelivery, whileRunning, "Consumers: AckPolicy (AckNone)"},
	{evidence.NoPhantom, anyFault, "JetStream Deep Dive, Publishing: What a PubAck contains"},
	{evidence.DeclinedMeansAbsent, anyFault, "JetStream Deep Dive, Publishing: What a PubAck contains"},
	{evidence.Order, anyFault, "FAQ: Does NATS offer any guarantee of message ordering?"},
	{evidence.Survives, anyFault, signals},
	{evidence.Routing, anyFault, wildcards},
	{evidence.StrangersRefused, anyFault, clientProtocol},
}

// atMostOnce holds for core NATS.
var atMostOnce = claims{
	{evidence.NoDuplicateDelivery, anyFault, "Core NATS Deep Dive: Core NATS is ephemeral"},
	{evidence.NoPhantom, anyFault, "Core NATS Deep Dive: Core NATS is ephemeral"},
	{evidence.DeclinedMeansAbsent, anyFault, "Core NATS Deep Dive: Core NATS is ephemeral"},
	{evidence.Order, anyFault, "FAQ: Does NATS offer any guarantee of message ordering?"},
	{evidence.Survives, anyFault, signals},
	{evidence.Routing, anyFault, wildcards},
	{evidence.StrangersRefused, anyFault, clientProtocol},
}

// without returns the table without these guarantees.
func (table claims) without(guarantees ...string) claims {
	return slices.DeleteFunc(slices.Clone(table), func(c promise) bool { return slices.Contains(guarantees, c.guarantee) })
}

// notUnder returns the table with these guarantees no longer claimed under
// these classes.
func (table claims) notUnder(classes []evidence.Class, guarantees ...string) claims {
	less := slices.Clone(table)
	for i, c := range less {
		if slices.Contains(guarantees, c.guarantee) {
			less[i].under = slices.DeleteFunc(slices.Clone(c.under), func(class evidence.Class) bool { return slices.Contains(classes, class) })
		}
	}
	return less
}

func (table claims) bySystem() []evidence.Claim {
	made := make([]evidence.Claim, 0, len(table))
	for _, c := range table {
		made = append(made, evidence.Claim{Guarantee: c.guarantee, Under: c.under, Owner: evidence.OwnerSystem, Source: "NATS Documentation, " + c.source})
	}
	return made
}
