package relational

import (
	"context"
	"errors"

	"github.com/custodymq/custody/broker/store"
)

// Plant writes a pending row of any payload version into a partition that nobody
// owns, as another build of the broker would have left it. For tests and tools.
func Plant(ctx context.Context, d Dialect, dsn string, p store.Partition, row store.Row) (err error) {
	s, err := Open(ctx, d, Options{DSN: dsn, Partition: p})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	w, err := s.own(ctx)
	if err != nil {
		return err
	}
	defer func() { s.writer <- w }()
	return w.transact(ctx, func(t *transaction) error {
		t.mark.order++
		return t.insert([]*store.Row{&row}, []int64{t.mark.order})
	})
}
