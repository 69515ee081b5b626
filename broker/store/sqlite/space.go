package sqlite

import (
	"fmt"

	"github.com/custodymq/custody/broker/store"
	"github.com/ncruces/go-sqlite3"
)

// checkSpace refuses inserts that would eat into the reserve. Operations that
// remove rows may use it, because a full store must still be able to empty
// itself.
func (w *writer) checkSpace(batch []store.Operation) error {
	var need uint64
	inserts := false
	for i := range batch {
		if batch[i].Kind == store.Insert {
			inserts = true
			need += uint64(len(batch[i].Row.Payload))
		}
	}
	if !inserts {
		return nil
	}
	s := w.store
	free, err := s.options.free(s.options.Path)
	if err != nil {
		return fmt.Errorf("how much space is left: %w", err)
	}
	// Twice: once for the WAL, and once when it is checkpointed.
	if free >= s.options.Reserve+2*need {
		return nil
	}
	reusable, err := freePages(w.conn.Conn)
	if err != nil {
		return fmt.Errorf("how much of the file is free: %w", err)
	}
	if free+reusable < s.options.Reserve+2*need {
		return fmt.Errorf("%w: %d bytes free on the disk and %d in the file, %d kept in reserve, %d to be written; make room on the disk",
			store.ErrFull, free, reusable, s.options.Reserve, need)
	}
	return nil
}

// freePages returns the bytes of the file's free pages, left by deleted rows.
func freePages(conn *sqlite3.Conn) (bytes uint64, err error) {
	err = query(conn, `SELECT f.freelist_count * p.page_size FROM pragma_freelist_count f, pragma_page_size p`, func(stmt *sqlite3.Stmt) {
		bytes = uint64(stmt.ColumnInt64(0))
	})
	return bytes, err
}
