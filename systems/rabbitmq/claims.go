package rabbitmq

import (
	"slices"

	"github.com/custodymq/custody/evidence"
)

// promise is a guarantee with the section of the RabbitMQ documentation that
// promises it.
type promise struct {
	guarantee string
	under     []evidence.Class
	source    string
}

// anyFault is every fault class that applies to a child process behind a link.
var anyFault = []evidence.Class{
	evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerCrash, evidence.BrokerPause, evidence.Link,
}

// whileRunning leaves out what stops the server.
var whileRunning = under(evidence.ClientCrash, evidence.BrokerPause, evidence.Link)

func under(classes ...evidence.Class) []evidence.Class { return classes }

// always holds for every profile.
var always = []promise{
	{evidence.NoPhantom, anyFault, "AMQP 0-9-1 Model Explained: Message Attributes and Payload"},
	{evidence.Survives, anyFault, "Reliability Guide: Data Safety on the RabbitMQ Side"},
	// A message is requeued at its original position "if possible": order holds
	// without redeliveries.
	{evidence.Order, nil, "Queues: Message Ordering in RabbitMQ"},
}

var (
	redelivered = promise{evidence.StableRedeliveryID, anyFault, "Reliability Guide: Data Safety on the Consumer Side (the redelivered flag)"}
	// Expiry happens at the head of the queue, and not while the server is
	// stopped.
	timeToLive = promise{evidence.ExpiryHonoured, under(evidence.ClientCrash), "Time-to-Live and Expiration: Per-Message TTL in Publishers"}
)

// kept holds for a queue that keeps what it has confirmed.
func kept(classes []evidence.Class, source string) []promise {
	return []promise{
		{evidence.NoAcceptedLoss, classes, source},
		{evidence.DeclinedMeansAbsent, classes, "Publishers: Unroutable Message Handling"},
		{evidence.UnknownResolved, classes, "Reliability Guide: Data Safety on the Publisher Side"},
		{evidence.RecoveryBounded, classes, "Consumer Acknowledgements and Publisher Confirms: When Consumers Fail or Lose Connection: Automatic Requeueing"},
		{evidence.RowsMatchClients, classes, "rabbitmqctl(8): list_queues, messages"},
		redelivered,
		timeToLive,
	}
}

const confirmed = "Consumer Acknowledgements and Publisher Confirms: When Will Published Messages Be Confirmed by the Broker?"

var (
	quorumClaims    = claims(always, kept(anyFault, "Quorum Queues: Data Safety"))
	classicClaims   = claims(always, kept(anyFault, confirmed))
	transientClaims = claims(always, kept(whileRunning, "Queues: Durability; "+confirmed))

	// Nothing is confirmed, so nothing accepted can be lost or expire.
	unconfirmedClaims = claims(always, []promise{redelivered})

	// At most once holds per publish: a retry under the same message ID is a
	// message of its own, and counts as a duplicate.
	autoAckClaims = claims(always, []promise{
		{evidence.DeclinedMeansAbsent, anyFault, "Publishers: Unroutable Message Handling"},
	})

	// A confirmed message may be in no queue at all.
	unroutableClaims = claims(always, []promise{redelivered, timeToLive})
	mandatoryClaims  = quorumClaims

	// Messages over the delivery limit or the queue's length are dropped, the
	// oldest first, which include redeliveries.
	deliveryLimitClaims = claims(always, []promise{redelivered, timeToLive})
	dropHeadClaims      = claims(always, []promise{timeToLive})

	deadLetterClaims = claims(always, kept(anyFault, "Quorum Queues: Data Safety; Dead Lettering"), []promise{
		{evidence.BoundedRetry, anyFault, "Quorum Queues: Poison Message Handling"},
	})
)

func claims(tables ...[]promise) []evidence.Claim {
	var made []evidence.Claim
	for _, c := range slices.Concat(tables...) {
		made = append(made, evidence.Claim{Guarantee: c.guarantee, Under: c.under, Owner: evidence.OwnerSystem, Source: "RabbitMQ, " + c.source})
	}
	return made
}
