// Package sqlite stores rows in a SQLite file in WAL mode. Several partitions may
// share one file.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/internal/turn"
)

// Store is a store.Store in a SQLite file.
//
// One connection writes and two read; each is used by one call at a time. A write
// runs to completion even if its caller has given up, because a hanging fsync
// cannot be interrupted. A read checks its ctx between rows.
type Store struct {
	options Options
	owner   *owner
	files   files
	lost    atomic.Int64 // transactions found missing on opening

	// Each channel holds its connection while it is idle. Inspections have a
	// reader of their own, so that a long one does not delay deliveries.
	writer            chan *writer
	reader, inspector chan *reader

	closing   chan struct{}
	closeOnce sync.Once
	closeErr  error
	flusher   sync.WaitGroup
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Certifier = (*Store)(nil)
	_ store.Durable   = (*Store)(nil)
)

// Options of a Store. Path and Partition are required.
type Options struct {
	Path      string // of the database file, created if missing; its folder must exist
	Partition store.Partition
	VFS       string      // name of a registered VFS; "" selects the operating system's
	Sync      store.Flush // FlushEveryCommit or FlushPeriodic
	// FlushInterval is the longest time that FlushPeriodic leaves a commit
	// unsynced; 0 selects one second.
	FlushInterval time.Duration
	KeepHistory   bool          // Delete marks the row processed instead
	BusyTimeout   time.Duration // how long to wait for another process's write lock; 0 selects five seconds
	Reserve       uint64        // bytes of disk space that inserts leave free; 0 selects 16 MiB
	// MaxSettled is the maximum number of settled IDs in the file, whatever their
	// window; the oldest are swept first. 0 selects 1,048,576.
	MaxSettled int
	Now        func() time.Time // clock by which Load decides whether a marker is in its window; nil selects time.Now

	free func(path string) (uint64, error) // free disk space in bytes; replaced by tests
}

func (o Options) withDefaults() (Options, error) {
	var err error
	switch {
	case o.Path == "":
		return o, errors.New("sqlite: no path of a database file")
	case o.Path == ":memory:":
		return o, errors.New("sqlite: rows in memory do not survive, and have no WAL: use the memory store")
	case o.Partition.Connection == "" || o.Partition.Identity == "":
		return o, fmt.Errorf("sqlite: partition %q lacks its connection's name or its identity", o.Partition)
	case o.Sync > store.FlushPeriodic:
		return o, errors.New("sqlite: a file is flushed at every commit or periodically")
	}
	if o.Path, err = filepath.Abs(o.Path); err != nil {
		return o, fmt.Errorf("sqlite: %s: %w", o.Path, err)
	}
	if o.FlushInterval <= 0 {
		o.FlushInterval = time.Second
	}
	if o.BusyTimeout <= 0 {
		o.BusyTimeout = 5 * time.Second
	}
	if o.MaxSettled <= 0 {
		o.MaxSettled = 1 << 20
	}
	if o.Reserve == 0 {
		o.Reserve = 16 << 20
	}
	if o.free == nil {
		o.free = freeSpace
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o, nil
}

// Open opens or creates the file. It refuses, and leaves unchanged, a file of an
// unknown schema version, one that lacks a table and one that is not ours.
func Open(ctx context.Context, options Options) (*Store, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{
		options: options,
		writer:  make(chan *writer, 1), reader: make(chan *reader, 1), inspector: make(chan *reader, 1),
		closing: make(chan struct{}),
	}
	if s.owner, err = own(options.Path, options.Partition); err != nil {
		return nil, s.wrap(err)
	}
	if err := s.open(ctx); err != nil {
		s.owner.abandon()
		return nil, err
	}
	if options.Sync == store.FlushPeriodic {
		s.flusher.Go(s.flushPeriodically)
	}
	return s, nil
}

// open opens the connections.
func (s *Store) open(ctx context.Context) error {
	w := &writer{store: s, token: rand.Int64(), absent: true}
	r, i := &reader{store: s}, &reader{store: s}
	discard := func() { w.throwAway(); r.throwAway(); i.throwAway() }
	return s.guard(discard, func() error {
		err := s.connectAll(ctx, w, r, i)
		if err != nil {
			discard()
			return err
		}
		s.writer <- w
		s.reader <- r
		s.inspector <- i
		return nil
	})
}

func (s *Store) connectAll(ctx context.Context, w *writer, readers ...*reader) (err error) {
	if err := createPrivate(s.options.Path); err != nil {
		return s.wrap(fmt.Errorf("open the database: %w", err))
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	for _, r := range readers {
		r.partition = w.partition
		if err := r.open(ctx); err != nil {
			return err
		}
	}
	if s.files, err = watch(s.options.Path); err == nil {
		err = s.owner.claim(s.options.Partition, w.mark.batch)
	}
	if err != nil {
		return s.wrap(err)
	}
	return nil
}

func (s *Store) Partition() store.Partition { return s.options.Partition }

func (s *Store) Flush() store.Flush { return s.options.Sync }

// Apply runs the batch as one transaction.
func (s *Store) Apply(ctx context.Context, batch []store.Operation) error {
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		if err := store.Check(batch); err != nil {
			return err
		}
		return w.transact(ctx, func() (counts, error) {
			if err := w.checkSpace(batch); err != nil {
				return counts{}, err
			}
			return w.apply(batch)
		})
	})
}

func (s *Store) Expired(ctx context.Context, now, keepUntil time.Time, limit int) ([]string, error) {
	var ids []string
	err := s.write(ctx, func(ctx context.Context, w *writer) error {
		return w.transact(ctx, func() (added counts, err error) {
			ids, added, err = w.expire(now, keepUntil, max(0, limit))
			return added, err
		})
	})
	if err != nil {
		return nil, err // ids may belong to a transaction still in progress
	}
	return ids, nil
}

// Reestablish commits and syncs a transaction that replaces the uncertain one in
// the WAL or follows it, and reads in it whether the uncertain one took effect.
// See writer.certify.
func (s *Store) Reestablish(ctx context.Context) (absent bool, err error) {
	err = s.own(ctx, func(ctx context.Context, w *writer) error {
		if err := w.certify(ctx); err != nil {
			return err
		}
		absent = w.absent
		return w.untold
	})
	if err != nil {
		return false, err
	}
	return absent, nil
}

// write first certifies an earlier doubtful write: a later batch must not be
// acknowledged while an earlier one may still reappear.
func (s *Store) write(ctx context.Context, do func(context.Context, *writer) error) error {
	return s.own(ctx, func(ctx context.Context, w *writer) error {
		// This is now the last write; Reestablish no longer reports on the one
		// before.
		w.doubt, w.absent, w.untold = nil, true, nil
		if w.suspect {
			if err := w.certify(ctx); err != nil {
				return &store.Failure{NotWritten: true, Err: fmt.Errorf("an earlier write is still in doubt: %w", err)}
			}
		}
		return do(ctx, w)
	})
}

// own runs do with exclusive use of the writer. When ctx ends it returns at once,
// although do may still be running; the next call waits for it.
func (s *Store) own(ctx context.Context, do func(context.Context, *writer) error) error {
	w, err := turn.Take(ctx, s.writer, s.closing)
	if err != nil {
		return &store.Failure{NotWritten: true, Err: s.wrap(err)}
	}
	done := make(chan error, 1)
	go func() {
		err := s.guard(w.throwAway, func() error { return do(ctx, w) })
		s.writer <- w
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return &store.Failure{Err: s.wrap(fmt.Errorf("the write is still under way: %w", ctx.Err()))}
	}
}

// guard converts a panic of SQLite into an error: it ran out of memory, or a
// damaged file misled it. The connection is no longer usable.
func (s *Store) guard(throwAway func(), do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			throwAway()
			err = s.wrap(fmt.Errorf("SQLite panicked: %v; custody broker check tells what is damaged", v))
		}
	}()
	return do()
}

func (s *Store) wrap(err error) error { return fmt.Errorf("sqlite %s: %w", s.options.Path, err) }

// flushPeriodically syncs what was committed since the last flush.
func (s *Store) flushPeriodically() {
	ticker := time.NewTicker(s.options.FlushInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.closing:
			return
		case <-ticker.C:
		}
		select {
		case <-s.closing:
			return
		case w := <-s.writer:
			if w.unsynced {
				// A failure leaves the writer suspect, and the next write handles
				// it.
				_ = s.guard(w.throwAway, func() error { return w.certify(context.Background()) })
			}
			s.writer <- w
		}
	}
}

// closeWait bounds Close, which a hanging fsync would otherwise block forever.
const closeWait = 30 * time.Second

func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closing)
		s.flusher.Wait()
		s.closeErr = s.close()
	})
	return s.closeErr
}

func (s *Store) close() error {
	timer := time.NewTimer(closeWait)
	defer timer.Stop()
	var w *writer
	var r, i *reader
	for w == nil || r == nil || i == nil {
		select {
		case w = <-s.writer:
		case r = <-s.reader:
		case i = <-s.inspector:
		case <-timer.C:
			return s.wrap(fmt.Errorf("not closed: a call is still under way after %v", closeWait))
		}
	}
	var err error
	if w.unsynced || w.suspect {
		err = s.guard(w.throwAway, func() error { return w.certify(context.Background()) })
	}
	// Close the readers first: the last connection to close checkpoints the WAL.
	for _, close := range []func() error{r.close, i.close, w.close} {
		err = errors.Join(err, s.guard(func() {}, close))
	}
	err = errors.Join(err, s.owner.close())
	if err != nil {
		return s.wrap(err)
	}
	return nil
}
