// Package redisstore stores rows in Redis 7.0 or newer, or in Valkey.
//
// A batch is one script. Redis runs it in isolation and logs its effects in the
// AOF as one MULTI, which it loads entirely or not at all. With appendfsync
// always, the AOF is synced before any reply of the same event-loop iteration:
// https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/#how-durable-is-the-append-only-file
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/internal/turn"
)

// Store is a store.Store in a Redis server.
//
// A partition has one owner. Redis has no locks that end with a session, so the
// partition's key names the owner's connection, and whoever wants the partition
// asks the server whether that connection still exists. A killed broker can thus
// be succeeded at once, and a paused one keeps its partition; a lease would
// achieve neither. Safety comes from the mark beside it: the number of the last
// batch and its writer. Each script advances the mark, and changes nothing if
// someone else has advanced it.
type Store struct {
	options Options
	server  redis.Options
	demands demands
	keys    []string
	writer  chan *writer  // holds the writer while it is idle
	readers chan *session // holds idle read connections, and nil for each not yet opened
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
	// DSN is a URL as accepted by redis.ParseURL, with the scheme redis, rediss
	// or unix. It may contain a password and is never shown. If the server
	// forbids CONFIG, the parameter appendfsync=always supplies what cannot be
	// read. With replicas=N, a write is stored when N replicas have acknowledged
	// it too; until then it is uncertain, and nothing else is written.
	DSN         string
	Partition   store.Partition
	Sync        store.Flush
	KeepHistory bool             // Delete marks the row processed instead
	MaxSettled  int              // maximum number of settled IDs; the oldest are swept first; 0 selects 1,048,576
	Now         func() time.Time // clock by which Load decides whether a marker is in its window; nil selects time.Now
}

const (
	readers     = 3       // in addition to the writer's connection
	pageRows    = 500     // per reading script: the server does nothing else meanwhile
	pageSize    = 4 << 20 // bytes of content per page, unless a single row has more
	sweepAtOnce = 10_000
)

// Open opens the partition. It refuses a server that may lose confirmed writes or
// evict rows for lack of memory.
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
	server, demands, err := parse(o.DSN)
	if err != nil {
		return nil, err
	}
	s := &Store{
		options: o, server: *server, demands: demands, keys: keysOf(o.Partition),
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

// parse parses a DSN and disables everything that the client would do on its own.
func parse(dsn string) (*redis.Options, demands, error) {
	wrong := errors.New("the DSN is no URL of Redis, such as redis://user@host:6379/0") // must not quote the DSN: it may contain a password
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, demands{}, wrong
	}
	query := u.Query()
	asked := demands{appendfsync: query.Get("appendfsync")}
	if text := query.Get("replicas"); text != "" {
		if asked.replicas, err = strconv.Atoi(text); err != nil || asked.replicas < 0 {
			return nil, asked, fmt.Errorf("replicas=%s in the DSN is no number of replicas, such as 1", text)
		}
	}
	query.Del("appendfsync")
	query.Del("replicas")
	u.RawQuery = query.Encode()
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, asked, wrong
	}
	o.Protocol, o.MaxRetries, o.DialerRetries = 2, -1, 1
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.PipelinePoolSize = 1, 0, 0, -1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ConnMaxIdleTime, o.ConnMaxLifetime = 5*time.Second, -1, -1, -1, 0 // contexts bound everything
	o.ClientName, o.DisableIdentity = "custody", true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o, asked, nil
}

func (s *Store) Partition() store.Partition { return s.options.Partition }

func (s *Store) Flush() store.Flush { return s.options.Sync }

// Close waits for a write in progress.
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

func (s *Store) Expired(ctx context.Context, now, keepUntil time.Time, limit int) (ids []string, err error) {
	w, err := s.own(ctx)
	if err != nil {
		return nil, &store.Failure{NotWritten: true, Err: err}
	}
	defer func() { s.writer <- w }()
	err = w.transact(ctx, func(b *batchArgs) (err error) {
		ids, err = b.expire(ctx, now, keepUntil, limit)
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

// owner returns the description of the owner stored in the partition's key.
func owner(p store.Partition) string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return fmt.Sprintf("broker %s (process %d on %s, since %s)", p.Connection, os.Getpid(), host, time.Now().UTC().Format(time.RFC3339))
}

// keysOf returns a partition's keys in the order that the scripts expect. They
// share one hash tag, and so one cluster slot. Hex keeps partitions' keys
// distinct whatever their names contain.
func keysOf(p store.Partition) []string {
	keys := slices.Clone(keyNames)
	for i := range keys {
		keys[i] = fmt.Sprintf("custody:{%x.%x}:%s", p.Connection, p.Identity, keys[i])
	}
	return keys
}

var keyNames = []string{
	"partition",                   // hash: the owner and the mark
	"ids",                         // hash: message ID to order
	"heads", "states", "contents", // hashes by order: what never changes, what does, and what Load does not read
	"expiry",          // sorted lexically: deadline and order of pending rows
	"keep", "history", // like expiry: until when a marker and a processed row are kept
	"pending", "processed", "settled", "dead", // sorted by order: the rows of each state
}

const partitionKey, expiryKey, keepKey, historyKey, pendingKey, deadKey = 0, 5, 6, 7, 8, 11
