package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/ncruces/go-sqlite3"
)

// Plant writes a pending row of any payload version into an existing partition,
// as another build of the broker would have left it. It does not take ownership:
// the partition's broker may be running, and sees the row at its next start. It
// is meant for tests and tools.
func Plant(ctx context.Context, path string, p store.Partition, row store.Row) (err error) {
	s := &Store{options: Options{Path: path, Partition: p, BusyTimeout: 5 * time.Second}}
	w := &writer{store: s}
	if w.conn, err = s.connect(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	tx, err := w.conn.BeginImmediate()
	if err != nil {
		return s.wrap(err)
	}
	defer tx.End(&err)
	err = w.once(`SELECT id FROM custody_partition WHERE connection=?1 AND identity=?2`).text(p.Connection).text(p.Identity).
		run(func(stmt *sqlite3.Stmt) { w.partition = stmt.ColumnInt64(0) })
	if err == nil && w.partition == 0 {
		err = errors.New("it is not in this file")
	}
	if err == nil {
		err = w.prepare()
	}
	if err == nil {
		err = w.insert(&row)
	}
	if err == nil {
		err = w.once(`UPDATE custody_partition SET live=live+1 WHERE id=?1`).int(w.partition).run(nil)
	}
	if err != nil {
		return s.wrap(fmt.Errorf("partition %v: %w", p, err))
	}
	return nil
}
