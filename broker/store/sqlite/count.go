package sqlite

import (
	"context"
	"errors"

	"github.com/custodymq/custody/broker/store"
)

var _ store.Counter = (*Store)(nil)

// loadCountSQL uses indexes only.
const loadCountSQL = `SELECT
	(SELECT count(*) FROM custody_row WHERE partition=?1) -
	(SELECT count(*) FROM custody_row WHERE partition=?1 AND keep_until IS NOT NULL) +
	min(?3, (SELECT count(*) FROM custody_row WHERE partition=?1 AND keep_until>=?2))`

// Count implements store.Counter.
func (s *Store) Count(ctx context.Context, settled int) (n int, err error) {
	err = s.read(ctx, s.reader, func(r *reader) error {
		b := r.prepare(loadCountSQL).int(r.partition).int(s.options.Now().UnixNano() + 1).int(int64(settled))
		defer b.stmt.Close()
		for b.err == nil && b.stmt.Step() {
			n = b.stmt.ColumnInt(0)
		}
		return errors.Join(b.err, b.stmt.Err())
	})
	return n, err
}
