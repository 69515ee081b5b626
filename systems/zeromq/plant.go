package zeromq

import (
	"context"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
)

// oldest payload version that the broker reads.
const oldest = int(wire.OldestVersion)

// PlantOld writes a pending row in an older format, as an older broker would
// have left it. The broker reads it at its next start.
func (in *instance) PlantOld(ctx context.Context, businessID, destination string) error {
	in.mu.Lock()
	name, identity := in.config.Name, in.identity
	in.mu.Unlock()
	now := time.Now()
	payload := evidence.Envelope{PublishID: evidence.PublishID("old", 1, 1), BusinessID: businessID}.Encode()
	err := in.database.plant(ctx, store.Partition{Connection: name, Identity: identity}, store.Row{
		MessageID: "old-" + businessID, BusinessID: businessID, Topic: destination, Version: wire.OldestVersion - 1,
		InsertedAt: now, ExpiresAt: now.Add(time.Hour), Payload: payload,
	})
	if err != nil {
		return fmt.Errorf("zeromq: plant an old row: %w", err)
	}
	return nil
}
