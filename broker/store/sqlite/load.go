package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/custodymq/custody/broker/store"
	"github.com/ncruces/go-sqlite3"
)

var (
	// The unary plus keeps SQLite from using the index on partition: the table is
	// scanned in its own order, which needs no sort.
	loadSQL = withoutContent + fmt.Sprintf(`WHERE +partition=?1 AND state IN (%d, %d) AND ord>?2 ORDER BY ord`, store.Pending, store.Dead)

	// settledSQL merges two indexes: settled rows with and without history.
	settledSQL = fmt.Sprintf(settledOf(store.Processed)+` UNION ALL `+settledOf(store.SettledMarker)+
		` ORDER BY %d, 1 LIMIT -1 OFFSET ?3`, 2+keepUntilField)

	// oldestSQL finds the settled row that is followed by n newer ones, and
	// countSQL counts the rows from there on. Both use indexes only.
	oldestSQL = keptOf(store.Processed) + ` UNION ALL ` + keptOf(store.SettledMarker) + ` ORDER BY 1 DESC LIMIT 1 OFFSET ?3`
	countSQL  = `SELECT count(*) FROM (` + keptOf(store.Processed) + ` UNION ALL ` + keptOf(store.SettledMarker) + `)`
)

func settledOf(state store.State) string {
	return withoutContent + fmt.Sprintf(`WHERE partition=?1 AND keep_until>=?2 AND state=%d`, state)
}

func keptOf(state store.State) string {
	return fmt.Sprintf(`SELECT keep_until FROM custody_row WHERE partition=?1 AND keep_until>=?2 AND state=%d`, state)
}

// Load reads from one snapshot. It scans the table in its own order. If the scan
// breaks off, or finds fewer rows than the partition counts, Load also looks up
// the entries in the index of message IDs, so that missing rows are reported by
// ID.
func (s *Store) Load(ctx context.Context, settled int, fn func(store.Row) error) error {
	return s.read(ctx, s.reader, func(r *reader) (err error) {
		if err := r.conn.Exec(`BEGIN`); err != nil {
			return s.wrap(err)
		}
		l := loading{reader: r, fn: fn, reported: map[uint64]bool{}}
		return errors.Join(l.run(ctx, settled), r.conn.Exec(`ROLLBACK`))
	})
}

// loading is the state of one Load.
type loading struct {
	*reader
	fn       func(store.Row) error
	given    []uint64        // orders of the sound rows passed on so far
	reported map[uint64]bool // damaged rows, by order
	doubtful bool            // damage was seen whose ID is not known yet
}

func (l *loading) run(ctx context.Context, settled int) error {
	if settled > 0 {
		if err := l.settled(ctx, settled); err != nil && !l.skip(err) {
			return err
		}
	}
	b := l.prepare(loadSQL).int(l.partition).int(0)
	err := l.each(ctx, b, func(row store.Row) error {
		if n := len(l.given); n > 0 && row.Order <= l.given[n-1] { // one page has replaced another
			l.doubtful = true
			return nil
		}
		return l.give(row)
	})
	_ = b.close() // repeats each's error
	if err != nil && !l.skip(err) {
		return err
	}
	counted, err := l.counted()
	if err != nil {
		return l.store.wrap(err)
	}
	if l.doubtful || int64(len(l.given)+len(l.reported)) != counted {
		if err := l.audit(ctx); err != nil {
			return err
		}
	}
	return l.tell(counted)
}

// skip reports whether err is damage that the load may skip.
func (l *loading) skip(err error) bool {
	l.doubtful = l.doubtful || errors.Is(err, sqlite3.CORRUPT)
	return errors.Is(err, sqlite3.CORRUPT)
}

// give passes on a pending, dead, refused or damaged row.
func (l *loading) give(row store.Row) error {
	if row.State == store.Damaged {
		l.reported[row.Order] = true
	} else {
		l.given = append(l.given, row.Order)
	}
	return l.fn(row)
}

func (l *loading) settled(ctx context.Context, n int) error {
	from, surplus, err := l.newest(n)
	if err != nil {
		return l.store.wrap(err)
	}
	b := l.prepare(settledSQL).int(l.partition).int(from).int(surplus)
	err = l.each(ctx, b, func(row store.Row) error {
		if row.State == store.Damaged {
			l.doubtful = true // the audit will name it
			return nil
		}
		return l.fn(row.Marker(row.KeepUntil))
	})
	_ = b.close()
	return err
}

// newest returns where the n newest settled rows begin: those kept until from or
// longer, without the first surplus of them.
func (l *loading) newest(n int) (from, surplus int64, err error) {
	from = l.store.options.Now().UnixNano() + 1
	full := false
	err = l.prepare(oldestSQL).int(l.partition).int(from).int(int64(n - 1)).run(func(stmt *sqlite3.Stmt) {
		from, full = stmt.ColumnInt64(0), true
	})
	if err != nil || !full {
		return from, 0, err
	}
	err = l.prepare(countSQL).int(l.partition).int(from).run(func(stmt *sqlite3.Stmt) {
		surplus = stmt.ColumnInt64(0) - int64(n)
	})
	return from, surplus, err
}

func (l *loading) counted() (live int64, err error) {
	err = l.prepare(`SELECT live FROM custody_partition WHERE id=?1`).int(l.partition).run(func(stmt *sqlite3.Stmt) {
		live = stmt.ColumnInt64(0)
	})
	return live, err
}

// audit looks up every row that the index of message IDs has for this partition.
// It passes on those that the scan missed, and names the damaged ones.
func (l *loading) audit(ctx context.Context) error {
	type entry struct {
		order     uint64
		messageID string
	}
	var index []entry
	err := l.prepare(`SELECT ord, message_id FROM custody_row INDEXED BY sqlite_autoindex_custody_row_1 WHERE partition=?1`).
		int(l.partition).run(func(stmt *sqlite3.Stmt) {
		index = append(index, entry{uint64(stmt.ColumnInt64(0)), stmt.ColumnText(1)})
	})
	if err != nil {
		return l.store.wrap(fmt.Errorf("the table of rows is damaged and so is its index: %w; custody broker check tells more", err))
	}
	slices.SortFunc(index, func(a, b entry) int { return cmp.Compare(a.order, b.order) })
	one := l.prepare(withoutContent + `WHERE ord=?1`)
	defer one.close()
	slices.Sort(l.given)
	walked := slices.Clone(l.given)
	for _, e := range index {
		if _, given := slices.BinarySearch(walked, e.order); given || l.reported[e.order] {
			continue
		}
		if err := l.auditOne(ctx, one.again(), e.order, e.messageID); err != nil {
			return err
		}
	}
	return nil
}

func (l *loading) auditOne(ctx context.Context, one *binding, order uint64, messageID string) error {
	missing := store.Row{Order: order, State: store.Damaged, MessageID: messageID, Partition: l.store.options.Partition}
	found := false
	err := l.each(ctx, one.int(int64(order)), func(row store.Row) error {
		found = true
		switch {
		case row.State == store.Damaged || row.MessageID != messageID:
			row = damaged(row, row.Partition)
			row.MessageID = messageID
			return l.give(row)
		case row.State == store.Processed || row.State == store.SettledMarker:
			return nil
		}
		return l.give(row)
	})
	switch {
	case errors.Is(err, sqlite3.CORRUPT):
		missing.Reason = "it cannot be read: " + err.Error()
		return l.give(missing)
	case err == nil && !found:
		missing.Reason = "the index knows it, and its row is gone"
		return l.give(missing)
	}
	return err
}

// tell reports missing rows and transactions that have no ID.
func (l *loading) tell(counted int64) error {
	row := store.Row{State: store.Damaged, Partition: l.store.options.Partition}
	if lost := l.store.lost.Load(); lost > 0 {
		row.Reason = fmt.Sprintf("%d transactions are missing: the database is older than what this broker last wrote; "+
			"its log was deleted or damaged, or an older copy was put in its place", lost)
		if err := l.fn(row); err != nil {
			return err
		}
	}
	live := int64(len(l.given))
	switch missing := counted - live; {
	case missing > int64(len(l.reported)):
		row.Reason = fmt.Sprintf("%d rows are missing: the partition counts %d, and has %d that are sound and %d that are damaged",
			missing-int64(len(l.reported)), counted, live, len(l.reported))
	case missing < 0:
		row.Reason = fmt.Sprintf("%d rows are more than the partition counts (%d): rows that were settled may be back", -missing, counted)
	default:
		return nil
	}
	return l.fn(row)
}
