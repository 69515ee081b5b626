// Package redisstore keeps rows in Redis 7.0 or newer, or in Valkey.
//
// A batch is one script. Redis runs it alone, and writes what it did to its log
// (the AOF) as one MULTI, of which it loads all or nothing. With appendfsync
// always the log is synced before any reply of the same turn of the event loop:
// https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/#how-durable-is-the-append-only-file
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/internal/turn"
)

// Store is a store.Store in a Redis server.
//
// A partition has one owner. Redis has no locks that end with a session: the
// partition's key names the owner's connection instead, and whoever wants the
// partition asks the server whether that is still there. So a broker that was
// killed is followed at once, and one that is paused keeps what it has; a lease
// would give neither. What makes it safe is the mark beside it, the number of the
// last batch and who made it. Each script moves it on, and changes nothing where
// somebody else has moved it.
type Store struct {
	options Options
	server  redis.Options
	vouched vouched
	keys    []string
	writer  chan *writer  // its only place holds the writer when it is free
	readers chan *session // idle ones, and nil for each that may be made
	closing chan struct{}
	close   func() error // once
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Certifier = (*Store)(nil)
	_ store.Durable   = (*Store)(nil)
	_ store.Counter   = (*Store)(nil)
)

// Options of a Store.
type Options struct {
	// DSN is a URL of redis://, rediss:// or unix://, as redis.ParseURL has it;
	// it may hold a password, and is never shown. Where a server forbids CONFIG,
	// the parameter appendfsync=always says what cannot be read from it.
	DSN         string
	Partition   store.Partition
	Sync        store.Flush
	KeepHistory bool             // Delete marks the row processed instead
	MaxSettled  int              // IDs of settled rows that are kept: the oldest are swept first; 0 is 1,048,576
	Now         func() time.Time // by which Load knows whether a marker is in its window; time.Now if nil
}

const (
	readers     = 3       // connections beside the writer's
	pageRows    = 500     // of one reading script: a server does nothing else meanwhile
	pageSize    = 4 << 20 // bytes of content in a page, unless a single row has more
	sweepAtOnce = 10_000
)

// Open opens the partition. A server that does not keep what it has confirmed, or
// that gives up rows for want of memory, is refused.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.MaxSettled <= 0 {
		o.MaxSettled = 1 << 20
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sync == store.FlushNever {
		return nil, errors.New("the store in Redis keeps what it is given: the flush policy never is for memory")
	}
	server, vouched, err := parse(o.DSN)
	if err != nil {
		return nil, err
	}
	s := &Store{
		options: o, server: *server, vouched: vouched, keys: keysOf(o.Partition),
		writer: make(chan *writer, 1), readers: make(chan *session, readers), closing: make(chan struct{}),
	}
	s.close = sync.OnceValue(s.end)
	for range readers {
		s.readers <- nil
	}
	w := &writer{store: s, token: newToken(), absent: true}
	if err := w.open(ctx); err != nil {
		return nil, err
	}
	s.writer <- w
	return s, nil
}

// parse reads a DSN, without what a client would do on its own.
func parse(dsn string) (*redis.Options, vouched, error) {
	wrong := errors.New("the DSN is no URL of Redis, such as redis://user@host:6379/0") // which it must not quote, password and all
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, vouched{}, wrong
	}
	query := u.Query()
	v := vouched{appendfsync: query.Get("appendfsync")}
	query.Del("appendfsync")
	u.RawQuery = query.Encode()
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, v, wrong
	}
	o.Protocol, o.MaxRetries, o.DialerRetries = 2, -1, 1
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.PipelinePoolSize = 1, 0, 0, -1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ConnMaxIdleTime, o.ConnMaxLifetime = 5*time.Second, -1, -1, -1, 0 // the contexts end what takes too long
	o.ClientName, o.DisableIdentity = "custody", true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o, v, nil
}

func (s *Store) Partition() store.Partition { return s.options.Partition }

func (s *Store) Flush() store.Flush { return s.options.Sync }

// Close waits for a write that is under way.
func (s *Store) Close() error { return s.close() }

func (s *Store) end() error {
	close(s.closing)
	w := <-s.writer
	w.release()
	for range readers {
		if x := <-s.readers; x != nil {
			x.drop()
		}
	}
	return nil
}

func (s *Store) wrap(err error) error {
	return fmt.Errorf("redis store of %v: %w", s.options.Partition, err)
}

// own gives the writer, or why it cannot be had.
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
			w.none()
			s.writer <- w
		}
		return err
	}
	w, err := s.own(ctx)
	if err != nil {
		return &store.Failure{NotWritten: true, Err: err}
	}
	defer func() { s.writer <- w }()
	return w.transact(ctx, func(b *batchArgs) error { return b.apply(batch) })
}

func (s *Store) Expired(ctx context.Context, now time.Time, limit int) (ids []string, err error) {
	w, err := s.own(ctx)
	if err != nil {
		return nil, &store.Failure{NotWritten: true, Err: err}
	}
	defer func() { s.writer <- w }()
	err = w.transact(ctx, func(b *batchArgs) (err error) {
		ids, err = b.expire(ctx, now, limit)
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

// owner is what the partition's key says of who has it.
func owner(p store.Partition) string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return fmt.Sprintf("broker %s (process %d on %s, since %s)", p.Connection, os.Getpid(), host, time.Now().UTC().Format(time.RFC3339))
}

// keysOf are the keys of a partition, in the order in which the scripts have them.
// All have one hash tag, and so one slot of a cluster. Hex keeps the names apart,
// whatever is in them.
func keysOf(p store.Partition) []string {
	keys := slices.Clone(keyNames)
	for i := range keys {
		keys[i] = fmt.Sprintf("custody:{%x.%x}:%s", p.Connection, p.Identity, keys[i])
	}
	return keys
}

var keyNames = []string{
	"partition",                   // hash: who has it, and the mark
	"ids",                         // hash: message ID to order
	"heads", "states", "contents", // hashes by order: what never changes, what does, and what Load does not read
	"expiry",          // sorted by text: deadline and order of pending rows
	"keep", "history", // as expiry: until when a marker, and a processed row, is kept
	"pending", "processed", "settled", "dead", // sorted by order: the rows of each state
}

const partitionKey, expiryKey, keepKey, historyKey, pendingKey, deadKey = 0, 5, 6, 7, 8, 11
