// Package relational stores rows in a database server: PostgreSQL, MySQL or
// MariaDB, or SQL Server. One implementation serves them all; a Dialect holds the
// differences.
package relational

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/internal/turn"
)

// Store is a store.Store in a database server.
//
// A partition has one owner. It holds a session lock, which the server releases
// when the connection ends. The partition's row carries a mark: the number of its
// last transaction and its writer. Each transaction advances the mark, and fails
// if someone else has advanced it.
type Store struct {
	dialect Dialect
	options Options
	db      *sql.DB
	part    int64        // the partition's ID; set by open
	writer  chan *writer // holds the writer while it is idle
	closing chan struct{}
	close   func() error // once
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Certifier = (*Store)(nil)
	_ store.Durable   = (*Store)(nil)
	_ store.Counter   = (*Store)(nil)
)

// Options configures a Store.
type Options struct {
	DSN         string // in the driver's format; may contain a password and is never shown
	Partition   store.Partition
	Sync        store.Flush
	KeepHistory bool // Delete marks the row processed instead
	MaxSettled  int  // maximum number of settled IDs; the oldest are swept first; 0 selects 1,048,576
}

const (
	readers       = 3 // connections in addition to the writer's
	sweepAtOnce   = 10_000
	statementRows = 500     // rows per statement
	statementSize = 4 << 20 // bytes per statement, unless a single row has more
)

// Open opens the partition. Its tables must exist: see Migrate. It refuses a
// server that may lose confirmed writes, unless the flush policy allows that.
func Open(ctx context.Context, d Dialect, o Options) (*Store, error) {
	if o.MaxSettled <= 0 {
		o.MaxSettled = 1 << 20
	}
	if o.Sync == store.FlushNever {
		return nil, errors.New("a database server keeps what it is given: the flush policy never is for memory")
	}
	db, err := d.open(o.DSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1 + readers)
	db.SetMaxIdleConns(1 + readers)
	s := &Store{dialect: d, options: o, db: db, writer: make(chan *writer, 1), closing: make(chan struct{})}
	s.close = sync.OnceValue(s.end)
	w := &writer{store: s, token: rand.Int64(), absent: true}
	if err := w.open(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.part = w.partition
	s.writer <- w
	return s, nil
}

func (s *Store) Partition() store.Partition { return s.options.Partition }

func (s *Store) Flush() store.Flush { return s.options.Sync }

// Close waits for a write in progress.
func (s *Store) Close() error { return s.close() }

func (s *Store) end() error {
	close(s.closing)
	w := <-s.writer
	w.drop()
	if err := s.db.Close(); err != nil {
		return s.wrap(err)
	}
	return nil
}

func (s *Store) wrap(err error) error {
	return fmt.Errorf("%s store of %v: %w", s.dialect.name, s.options.Partition, err)
}

// own returns the writer for exclusive use.
func (s *Store) own(ctx context.Context) (*writer, error) {
	w, err := turn.Take(ctx, s.writer, s.closing)
	if err != nil {
		return nil, s.wrap(err)
	}
	return w, nil
}

func (s *Store) Apply(ctx context.Context, batch []store.Operation) error {
	if err := store.Check(batch); err != nil {
		if w, busy := s.own(ctx); busy == nil {
			w.nothing()
			s.writer <- w
		}
		return err
	}
	w, err := s.own(ctx)
	if err != nil {
		return &store.Failure{NotWritten: true, Err: err}
	}
	defer func() { s.writer <- w }()
	err = w.transact(ctx, func(t *transaction) error { return t.apply(batch) })
	if errors.Is(err, errDuplicate) {
		id := w.duplicate(ctx, batch)
		return &store.Failure{NotWritten: true, Err: s.wrap(&store.ExistsError{MessageID: id})}
	}
	return err
}

func (s *Store) Expired(ctx context.Context, now, keepUntil time.Time, limit int) (ids []string, err error) {
	w, err := s.own(ctx)
	if err != nil {
		return nil, &store.Failure{NotWritten: true, Err: err}
	}
	defer func() { s.writer <- w }()
	err = w.transact(ctx, func(t *transaction) (err error) {
		ids, err = t.expire(now, keepUntil, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

func (s *Store) Reestablish(ctx context.Context) (absent bool, err error) {
	w, err := s.own(ctx)
	if err != nil {
		return false, err
	}
	defer func() { s.writer <- w }()
	if err := w.certify(ctx); err != nil {
		return false, s.wrap(fmt.Errorf("certainty not re-established: %w", err))
	}
	return w.absent, w.untold
}

// owner returns the description of the owner stored in the partition's row.
func owner(p store.Partition) string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return fmt.Sprintf("broker %s (process %d on %s, since %s)", p.Connection, os.Getpid(), host, time.Now().UTC().Format(time.RFC3339))
}
