package nats

import (
	"slices"

	"github.com/custodymq/custody/evidence"
)

// claims is a table of promises, each with the page and section of NATS's own
// documentation (docs.nats.io) that makes it.
type claims []promise

type promise struct {
	guarantee string
	under     []evidence.Class
	source    string
}

func under(classes ...evidence.Class) []evidence.Class { return classes }

var (
	// anyFault is every class that a child process on a link can be struck with.
	anyFault = under(evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerCrash, evidence.BrokerPause, evidence.Link)
	// endOfServer are those of them that end the server, whileRunning the others.
	endOfServer  = under(evidence.BrokerRestart, evidence.BrokerCrash)
	whileRunning = under(evidence.ClientCrash, evidence.BrokerPause, evidence.Link)
)

// atLeastOnce is what a work queue in a file promises to those who acknowledge
// with confirmation.
var atLeastOnce = claims{
	{evidence.NoAcceptedLoss, anyFault, "JetStream Deep Dive, Delivery and acknowledgment: The delivery lifecycle; Reference, Configuration: sync_interval"},
	{evidence.NoPhantom, anyFault, "JetStream Deep Dive, Publishing: What a PubAck contains"},
	{evidence.DeclinedMeansAbsent, anyFault, "JetStream Deep Dive, Publishing: What a PubAck contains"},
	{evidence.UnknownResolved, anyFault, "JetStream Deep Dive, Reading messages directly: Get one message"},
	// Over a restart the row of a message whose acknowledgement was confirmed
	// just before can be back, and stay, though it is not delivered again: see
	// docs/findings.md.
	{evidence.AckIsFinal, whileRunning, "JetStream Deep Dive, Delivery and acknowledgment: Double ack: make sure the ack landed"},
	{evidence.RecoveryBounded, anyFault, "JetStream Deep Dive, Ack responses and redelivery: The server controls (AckWait)"},
	{evidence.RowsMatchClients, whileRunning, "JetStream Deep Dive, Retention policies: The three policies (WorkQueue)"},
	{evidence.Survives, anyFault, signals},
	{evidence.StrangersRefused, anyFault, clientProtocol},
	// The delivery counter is written behind the deliveries, so that the end of
	// the server can set it back, even an orderly one (docs/findings.md), and a
	// redelivery then calls itself the first.
	{evidence.StableRedeliveryID, whileRunning, "JetStream Deep Dive, Delivery and acknowledgment: Redelivery: when a message isn't acked (tries)"},
	// A message lost on its way to a consumer comes again only after AckWait,
	// behind those that followed it: order is promised where nothing is lost.
	{evidence.Order, nil, "JetStream Deep Dive, Delivery and acknowledgment: Redelivery: when a message isn't acked (stream order)"},
	// Expiry is a sweep with a tick of a second that a stopped server misses.
	{evidence.ExpiryHonoured, under(evidence.ClientCrash), "JetStream Deep Dive, Per-message TTL: Publish a short-lived message"},
	{evidence.Routing, anyFault, wildcards},
	{evidence.MessageIdentity, anyFault, "JetStream Deep Dive, Publishing: What a PubAck contains"},
	{evidence.ExclusiveDelivery, whileRunning, "JetStream Deep Dive, Ack responses and redelivery: The server controls (AckWait)"},
}

// wildcards is the page that says who gets what is published to a subject.
const wildcards = "Core NATS Deep Dive: Subjects and wildcards"

// signals is the page that lists what makes a server end.
const signals = "Signals: Command Line"

// clientProtocol is the page that says what is answered, and which errors close
// a connection.
const clientProtocol = "Reference, Client Protocol: +OK/-ERR; Reference, Configuration: max_payload"

// atMostOnceStored is what is left where a delivery counts as its acknowledgement.
var atMostOnceStored = claims{
	// The delivered position is written behind the deliveries, as that counter is.
	{evidence.NoDuplicateDelivery, whileRunning, "Consumers: AckPolicy (AckNone)"},
	{evidence.NoPhantom, anyFault, "JetStream Deep Dive, Publishing: What a PubAck contains"},
	{evidence.DeclinedMeansAbsent, anyFault, "JetStream Deep Dive, Publishing: What a PubAck contains"},
	{evidence.Order, anyFault, "FAQ: Does NATS offer any guarantee of message ordering?"},
	{evidence.Survives, anyFault, signals},
	{evidence.Routing, anyFault, wildcards},
	{evidence.StrangersRefused, anyFault, clientProtocol},
}

// atMostOnce is what core NATS promises.
var atMostOnce = claims{
	{evidence.NoDuplicateDelivery, anyFault, "Core NATS Deep Dive: Core NATS is ephemeral"},
	{evidence.NoPhantom, anyFault, "Core NATS Deep Dive: Core NATS is ephemeral"},
	{evidence.DeclinedMeansAbsent, anyFault, "Core NATS Deep Dive: Core NATS is ephemeral"},
	{evidence.Order, anyFault, "FAQ: Does NATS offer any guarantee of message ordering?"},
	{evidence.Survives, anyFault, signals},
	{evidence.Routing, anyFault, wildcards},
	{evidence.StrangersRefused, anyFault, clientProtocol},
}

// without gives the table without the promises of these guarantees.
func (table claims) without(guarantees ...string) claims {
	return slices.DeleteFunc(slices.Clone(table), func(c promise) bool { return slices.Contains(guarantees, c.guarantee) })
}

// notUnder gives the table with the promises of these guarantees not made under
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
