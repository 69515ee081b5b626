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
	db, err := in.database("rw")
	if err != nil {
		return err
	}
	defer db.Close()
	now := time.Now()
	payload := evidence.Envelope{PublishID: evidence.PublishID("old", 1, 1), BusinessID: businessID}.Encode()
	result, err := db.ExecContext(ctx, `INSERT INTO custody_row (partition, message_id, state, version, business_id, topic, competitor, key,
		inserted_at, expires_at, attempts, last_consumer, reason, payload)
		SELECT id, ?, ?, ?, ?, ?, '', '', ?, ?, 0, '', '', ? FROM custody_partition WHERE connection = ? AND identity = ?`,
		"old-"+businessID, int(store.Pending), oldest-1, businessID, destination, now.UnixNano(), now.Add(time.Hour).UnixNano(), payload, name, identity)
	if err != nil {
		return fmt.Errorf("zeromq: plant an old row: %w", err)
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("zeromq: plant an old row: no partition %s@%s in %s", name, identity, in.path)
	}
	return nil
}
