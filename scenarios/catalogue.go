// Package scenarios is the catalogue of scenarios, one per file.
package scenarios

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// All returns every scenario of the checklist, in run order.
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
		storeServerKilled,
		storeServerPaused,
		storeLinkSlow,
		storeVolumeFull,
		storeConnectionsExhausted,
		storeReadOnly,
		nodeLost,
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
		identityMigrated,
		swapStore,
		swapKilledBefore,
		swapKilledAfter,
		oldProtocolPayload,
		damagedRows,
		partitionProducer,
		partitionConsumer,
		commitHeld,
		storageDownCrash,
		publisherRetries,
		restartReplay,
		linkSlow,
		linkReset,
		linkDown,
		noOutbox,
		strangers,
		limits,
		storageFiles,
		permissions,
		stoppedInOrder,
		publishWindow,
		storageRepaired,
		lookups,
		repeatInFlight,
		backupRestored,
		storeRestored,
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
		bounds,
		periods,
		crowds,
		storeTroubles,
		storeSlow,
	}
}

// Find returns the scenario of that name: of the checklist or of the application.
func Find(name string) (script.Scenario, error) {
	var names []string
	group, err := ApplicationGroup()
	if err != nil {
		return script.Scenario{}, err
	}
	for _, s := range append(All(), group...) {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return script.Scenario{}, fmt.Errorf("no scenario %q%s", name, script.Suggest(name, names))
}

func expect(guarantees ...string) []string { return guarantees }

// usual lists the guarantees exercised wherever an accepted message takes
// effect, and more.
func usual(more ...string) []string {
	return append(expect(evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.SingleEffect,
		evidence.RecoveryBounded, evidence.RowsMatchClients, evidence.Survives), more...)
}
