package kafka

import (
	"slices"

	"github.com/custodymq/custody/evidence"
)

// anyFault is every fault class that applies to a child process behind a link.
var anyFault = under(evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerCrash, evidence.BrokerPause, evidence.Link)

func under(classes ...evidence.Class) []evidence.Class { return classes }

// claims lists guarantees, each with the section of the documentation that
// promises it.
type claims []struct {
	guarantee string
	under     []evidence.Class
	source    string
}

func (table claims) bySystem() []evidence.Claim {
	made := make([]evidence.Claim, 0, len(table))
	for _, c := range table {
		made = append(made, evidence.Claim{Guarantee: c.guarantee, Under: c.under, Owner: evidence.OwnerSystem, Source: "Apache Kafka documentation, " + c.source})
	}
	return made
}

// consumingClaims hold whatever the producer's settings.
var consumingClaims = claims{
	{evidence.NoPhantom, anyFault, "Design: Message Delivery Semantics"},
	{evidence.Survives, anyFault, "Basic Kafka Operations: Graceful shutdown; Design: Replication"},
}.bySystem()

// producingClaims hold whatever the consumer commits.
var producingClaims = append(slices.Clip(consumingClaims), claims{
	{evidence.DeclinedMeansAbsent, anyFault, "Protocol: Error Codes"},
	{evidence.UnknownResolved, anyFault, "Design: Message Delivery Semantics (a committed message is in the log)"},
}.bySystem()...)

// atLeastOnce combines a producer that waits for a synced message with a
// consumer that commits after processing.
var atLeastOnce = append(slices.Clip(producingClaims), claims{
	{evidence.NoAcceptedLoss, anyFault, "Design: Message Delivery Semantics; Topic Configs: flush.messages"},
	{evidence.AckIsFinal, anyFault, "Distribution: Consumer Offset Tracking"},
	{evidence.RecoveryBounded, anyFault, "Consumer Configs: session.timeout.ms, max.poll.interval.ms"},
	{evidence.RowsMatchClients, anyFault, "Distribution: Consumer Offset Tracking"},
}.bySystem()...)

// ordered adds a single partition.
var ordered = append(slices.Clip(atLeastOnce), claims{
	{evidence.Order, anyFault, "Introduction: Main Concepts and Terminology; Producer Configs: max.in.flight.requests.per.connection"},
}.bySystem()...)

// transactionClaims does not cover crashes: the coordinator can report a
// transaction complete whose marker is in no partition, so that read_committed
// consumers get neither its message nor any behind it: see docs/findings.md.
var transactionClaims = notUnderCrash(ordered, evidence.NoAcceptedLoss, evidence.RecoveryBounded, evidence.RowsMatchClients)

func notUnderCrash(table []evidence.Claim, guarantees ...string) []evidence.Claim {
	less := slices.Clone(table)
	for i, c := range less {
		if slices.Contains(guarantees, c.Guarantee) {
			less[i].Under = slices.DeleteFunc(slices.Clone(c.Under), func(class evidence.Class) bool { return class == evidence.BrokerCrash })
		}
	}
	return less
}

// leaderClaims covers the leader's lifetime only: it answers before anything is
// synced or replicated.
var leaderClaims = append(slices.Clip(producingClaims), claims{
	{evidence.NoAcceptedLoss, under(evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerPause, evidence.Link), "Producer Configs: acks"},
	{evidence.RecoveryBounded, under(evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerPause, evidence.Link), "Consumer Configs: session.timeout.ms, max.poll.interval.ms"},
}.bySystem()...)

// shareClaims holds for messages that are acknowledged and counted
// individually. Declined messages leave nothing here either, but the rows lag
// too far behind to show it.
var shareClaims = append(slices.Clip(consumingClaims), claims{
	{evidence.UnknownResolved, anyFault, "Design: Message Delivery Semantics (a committed message is in the log)"},
	{evidence.NoAcceptedLoss, anyFault, "Design: Message Delivery Semantics; Topic Configs: flush.messages"},
	{evidence.RecoveryBounded, anyFault, "Design: The Share Consumer; Group Configs: share.record.lock.duration.ms"},
	{evidence.StableRedeliveryID, under(evidence.ClientCrash, evidence.BrokerPause, evidence.Link), "Design: The Share Consumer (delivery attempts are counted)"},
}.bySystem()...)
