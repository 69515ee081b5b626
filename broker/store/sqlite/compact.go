package sqlite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/custodymq/custody/broker/store"
)

var _ store.Compactor = (*Store)(nil)

// Compact rewrites the file without the space of deleted rows. The partitions of a
// file share its one writer, so that it is refused while a broker has another one.
func (s *Store) Compact(ctx context.Context) error {
	return s.own(ctx, func(ctx context.Context, w *writer) error {
		if err := w.usable(ctx); err != nil {
			return err
		}
		if err := s.alone(); err != nil {
			return err
		}
		w.conn.SetInterrupt(ctx)
		defer w.conn.SetInterrupt(context.Background())
		for _, statement := range []string{`VACUUM`, `PRAGMA wal_checkpoint(TRUNCATE)`} {
			if err := w.conn.Exec(statement); err != nil {
				return s.wrap(fmt.Errorf("%s: %w", statement, err))
			}
		}
		return nil
	})
}

// alone says whether a broker has another partition of the file.
func (s *Store) alone() error {
	locks, err := filepath.Glob(escape(s.options.Path) + "-*.lock")
	if err != nil {
		return s.wrap(err)
	}
	for _, name := range locks {
		if name == s.owner.file.Name() {
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return s.wrap(err)
		}
		free, err := lock(file)
		_, who, _ := readOwner(file)
		if free {
			unlock(file)
		}
		file.Close()
		if err != nil || !free {
			return fmt.Errorf("%s has a partition in the same file, and would have to wait", who)
		}
	}
	return nil
}

// escape makes a path one that a pattern matches as it is.
func escape(path string) string {
	escaped := make([]byte, 0, len(path))
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', '\\':
			escaped = append(escaped, '\\')
		}
		escaped = append(escaped, path[i])
	}
	return string(escaped)
}
