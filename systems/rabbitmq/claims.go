package rabbitmq

import (
	"slices"

	"github.com/custodymq/custody/evidence"
)

// promise is one claim, with the section of the RabbitMQ documentation that
// makes it.
type promise struct {
	guarantee string
	under     []evidence.Class
	source    string
}

// anyFault is every fault class that applies to a child process behind a link.
var anyFault = []evidence.Class{
	evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerCrash, evidence.BrokerPause, evidence.Link,
}

// whileRunning leaves out what ends the server.
var whileRunning = under(evidence.ClientCrash, evidence.BrokerPause, evidence.Link)

func under(classes ...evidence.Class) []evidence.Class { return classes }

// always is what every profile promises.
var always = []promise{
	{evidence.NoPhantom, anyFault, "AMQP 0-9-1 Model Explained: Message Attributes and Payload"},
	{evidence.Survives, anyFault, "Reliability Guide: Data Safety on the RabbitMQ Side"},
	// A redelivery stands where the message stood, "if possible": order is
	// promised where nothing comes again.
	{evidence.Order, nil, "Queues: Message Ordering in RabbitMQ"},
}

var (
	redelivered = promise{evidence.StableRedeliveryID, anyFault, "Reliability Guide: Data Safety on the Consumer Side (the redelivered flag)"}
	// The time to live is kept at the head of the queue, and not while the server is stopped.
	timeToLive = promise{evidence.ExpiryHonoured, under(evidence.ClientCrash), "Time-to-Live and Expiration: Per-Message TTL in Publishers"}
)

// kept is what a queue promises that keeps what it has confirmed.
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

	// Nothing is confirmed, so nothing is accepted that could be lost or expire.
	unconfirmedClaims = claims(always, []promise{redelivered})

	// At most once is promised for each publish alone: one that is tried again
	// under its message ID is another message, and counts as a duplicate.
	autoAckClaims = claims(always, []promise{
		{evidence.DeclinedMeansAbsent, anyFault, "Publishers: Unroutable Message Handling"},
	})

	// What is confirmed may be in no queue at all.
	unroutableClaims = claims(always, []promise{redelivered, timeToLive})
	mandatoryClaims  = quorumClaims

	// What comes again too often, or what is one too many, is dropped: the oldest,
	// and so what would have come again.
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
