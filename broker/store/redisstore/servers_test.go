package redisstore

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/servertest"
)

// server is a Redis server of the tests.
type server struct {
	*servertest.Server
	port int
	used atomic.Int64 // number of databases handed out
}

// programs are tested if they are installed.
var programs = []string{"redis-server", "valkey-server"}

var servers servertest.Shared[*server]

// running returns the server that all tests share.
func running(t testing.TB, program string) *server {
	t.Helper()
	return servers.Get(program, func() *server { return start(t, program) })
}

// start starts a server with durable settings, which settings override.
func start(t testing.TB, program string, settings ...string) *server {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil && program != programs[0] {
		t.Skipf("%s is missing", program)
	}
	s := &server{port: servertest.FreePort(t)}
	s.Server = &servertest.Server{Command: []string{servertest.Program(t, program), "-"}, Dir: servertest.Folder(t, nil), Answers: s.answers}
	s.Input = fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %s\ndatabases 1000\nsave \"\"\nappendonly yes\nappendfsync always\n", s.port, s.Dir)
	for i := 0; i < len(settings); i += 2 {
		s.Input += settings[i] + " " + settings[i+1] + "\n"
	}
	s.Start(t)
	return s
}

func (s *server) answers(ctx context.Context) error {
	o, err := redis.ParseURL(s.dsn(0))
	if err != nil {
		return err
	}
	c := redis.NewClient(o)
	defer c.Close()
	if err = c.Ping(ctx).Err(); redis.HasErrorPrefix(err, "NOAUTH") {
		err = nil
	}
	return err
}

func (s *server) dsn(database int) string {
	return fmt.Sprintf("redis://127.0.0.1:%d/%d", s.port, database)
}

// database returns the DSN of an empty database.
func (s *server) database(t testing.TB) string {
	dsn := s.dsn(int(s.used.Add(1)))
	t.Cleanup(func() {
		s.with(t, dsn, func(c *redis.Client) error { return c.FlushDB(context.Background()).Err() })
	})
	return dsn
}

// with runs do on the database, as another program might.
func (s *server) with(t testing.TB, dsn string, do func(*redis.Client) error) {
	t.Helper()
	o, err := redis.ParseURL(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	defer c.Close()
	if err := do(c); err != nil {
		t.Fatal(err)
	}
}

// alter changes one value of a row; an empty one is deleted.
func (s *server) alter(t testing.TB, dsn string, p store.Partition, key, id string, change func(order, value string) string) {
	t.Helper()
	s.with(t, dsn, func(c *redis.Client) error {
		prefix := strings.TrimSuffix(keysOf(p)[partitionKey], "partition")
		order, err := c.HGet(t.Context(), prefix+"ids", id).Result()
		if err != nil {
			return err
		}
		value, err := c.HGet(t.Context(), prefix+key, order).Result()
		if err != nil {
			return err
		}
		changed := change(order, value)
		if changed == value {
			t.Fatalf("%s of %s is not altered", key, id)
		}
		if changed == "" {
			return c.HDel(t.Context(), prefix+key, order).Err()
		}
		return c.HSet(t.Context(), prefix+key, order, changed).Err()
	})
}

func decimal[T ~uint8](n T) string { return strconv.Itoa(int(n)) }
