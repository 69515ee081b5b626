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

// damages change a planted row past its checksums, by what was planted. The row
// would be delivered by a broker that does not notice.
var damages = map[string]string{
	"damaged":         "inserted_at = inserted_at + 1",
	"damaged-content": `headers = '{"damaged":"yes"}'`,
}

// plantedID is the message ID of a planted row.
func plantedID(what, businessID string) string { return what + "-" + businessID }

// Plant writes a pending row, as an older broker or a failing disk would have left
// it. The broker reads it at its next start.
func (in *instance) Plant(ctx context.Context, what, businessID, destination string) error {
	in.mu.Lock()
	name, identity := in.config.Name, in.identity
	in.mu.Unlock()
	now := time.Now()
	row := store.Row{
		MessageID: plantedID(what, businessID), BusinessID: businessID, Topic: destination, Version: wire.OldestVersion - 1,
		InsertedAt: now, ExpiresAt: now.Add(time.Hour),
		Payload: evidence.Envelope{PublishID: evidence.PublishID(plantedID(what, businessID), 1, 1), BusinessID: businessID}.Encode(),
	}
	change, damaged := damages[what]
	if damaged {
		row.Version = wire.Version
	}
	err := in.database.plant(ctx, store.Partition{Connection: name, Identity: identity}, row)
	if err == nil && damaged {
		in.mu.Lock()
		in.damaged[row.MessageID] = true
		in.mu.Unlock()
		err = in.database.damage(ctx, fmt.Sprintf("UPDATE custody_row SET %s WHERE message_id = '%s'", change, row.MessageID))
	}
	if err != nil {
		return fmt.Errorf("zeromq: plant a row (%s): %w", what, err)
	}
	return nil
}
