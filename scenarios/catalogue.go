// Package scenarios is the catalogue: one file for each scenario, named for
// what it promises or for what goes wrong.
package scenarios

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// All scenarios, in the order of a run.
func All() []script.Scenario {
	return []script.Scenario{
		baseline,
		businessSuccess,
		processingFailure,
		ackLost,
		ackWindowKilled,
		ackWindowDeleteFails,
		ackWindowConsumerExits,
		publishCancelled,
		modeMismatch,
		publishLost,
		deliveryLost,
		disconnectBeforeAck,
		disconnectAfterAck,
		acceptReplyLost,
		brokerRestart,
		brokerKilled,
		brokerPaused,
		storageDown,
		storageReplyLost,
		storageFull,
		storageSlow,
		fsyncError,
		noOnlineConsumer,
		lateConsumer,
		expiry,
		expiryClockJump,
		duplicateDelivery,
		competingConsumers,
		poisonMessage,
		consumerCrash,
		storageIdentityChanged,
		oldProtocolPayload,
		partitionProducer,
		partitionConsumer,
		commitHeld,
		storageDownCrash,
		publisherRetries,
		restartReplay,
		linkSlow,
		linkReset,
		linkDown,
		strangers,
		limits,
		publishWindow,
		storageRepaired,
		lookups,
		repeatInFlight,
		recoverFromTimestamp,
		recoverFromSequence,
		steadyLoad,
		topics,
		wildcards,
		twoSubscribers,
		sharedWork,
		backlogRestarted,
		backlogKilled,
		killInFlight,
		consumerLeaves,
		assignedUnsent,
		consumerPaused,
		redeliveryInOrder,
		deadLetters,
		expiryOverRestart,
		groupCommit,
	}
}

// Find a scenario by its name.
func Find(name string) (script.Scenario, error) {
	var names []string
	for _, s := range All() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return script.Scenario{}, fmt.Errorf("no scenario %q%s", name, script.Suggest(name, names))
}

// expect lists guarantees.
func expect(guarantees ...string) []string { return guarantees }

// usual is what every scenario with an accepted message and an effect
// exercises, and more.
func usual(more ...string) []string {
	return append(expect(evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.SingleEffect,
		evidence.RecoveryBounded, evidence.RowsMatchClients, evidence.Survives), more...)
}
