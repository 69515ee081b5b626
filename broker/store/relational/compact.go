package relational

import (
	"context"

	"github.com/custodymq/custody/broker/store"
)

var _ store.Compactor = (*Store)(nil)

// Compact has the server give back the space of deleted rows, beside the writes of
// others.
func (s *Store) Compact(ctx context.Context) error {
	if s.dialect.compact == "" {
		return nil // it does so on its own
	}
	if _, err := s.db.ExecContext(ctx, s.dialect.compact); err != nil {
		return s.wrap(err)
	}
	return nil
}
