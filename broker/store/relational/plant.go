package relational

import (
	"context"
	"errors"
	"fmt"

	"github.com/custodymq/custody/broker/store"
)

// Plant writes a pending row of any payload version into an existing partition,
// as another build of the broker would have left it. It does not take ownership:
// the partition's broker may be running, and sees the row at its next start. It
// is meant for tests and tools.
func Plant(ctx context.Context, d Dialect, dsn string, p store.Partition, row store.Row) (err error) {
	db, err := d.open(dsn)
	if err != nil {
		return err
	}
	s := &Store{dialect: d, options: Options{Partition: p}, db: db}
	w := &writer{store: s}
	defer func() {
		w.drop()
		err = errors.Join(err, db.Close())
	}()
	if w.conn, err = db.Conn(ctx); err != nil {
		return s.wrap(fmt.Errorf("connect: %w", err))
	}
	if err := w.conn.QueryRowContext(ctx, d.bind("SELECT id FROM custody_partition"+ofPartition), []byte(p.Connection), []byte(p.Identity)).Scan(&w.partition); err != nil {
		return s.wrap(fmt.Errorf("find the partition: %w", err))
	}
	t := &transaction{w: w, ctx: ctx}
	if err := t.run(func() error {
		var last int64
		err := w.conn.QueryRowContext(ctx, d.bind("SELECT COALESCE(MAX(ord), 0) FROM custody_row WHERE part = ?"), w.partition).Scan(&last)
		if err != nil {
			return err
		}
		return t.insertSome([]*store.Row{&row}, []int64{max(planted, last+1)})
	}); err != nil {
		return s.wrap(err)
	}
	return nil
}

// planted is the order of the first planted row, after every order that a broker
// assigns.
const planted = 1 << 60
