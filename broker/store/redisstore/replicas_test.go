package redisstore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
)

// TestReplicas checks that a write which no replica has acknowledged is called
// neither stored nor absent, and is certain once a replica has it.
func TestReplicas(t *testing.T) {
	for _, program := range programs {
		t.Run(program, func(t *testing.T) {
			server := start(t, program, "repl-diskless-sync-delay", "0")
			defer server.Stop()
			replica := start(t, program, "replicaof", fmt.Sprintf("127.0.0.1 %d", server.port))
			defer replica.Stop()
			dsn := server.dsn(0) + "?replicas=1"
			var s *Store
			eventually(t, func() (err error) { s, err = Open(t.Context(), Options{DSN: dsn, Partition: orders}); return err })
			defer s.Close()
			apply := func(id string) error { return s.Apply(t.Context(), []store.Operation{insertion(id)}) }
			if err := apply("before"); err != nil {
				t.Fatal(err)
			}

			replica.Kill()
			var failure *store.Failure
			if err := apply("doubtful"); !errors.As(err, &failure) || failure.NotWritten || !errors.Is(err, errUnreplicated) {
				t.Fatalf("a write that no replica has: %v", err)
			}
			if absent, err := s.Reestablish(t.Context()); err == nil {
				t.Fatalf("called certain while no replica answers: absent %v", absent)
			}
			replica.Start(t)
			eventually(t, func() error {
				absent, err := s.Reestablish(t.Context())
				if err == nil && absent {
					t.Error("a write that the server has is called absent")
				}
				return err
			})
			if err := apply("after"); err != nil {
				t.Fatal(err)
			}

			replica.Kill()
			if _, err := s.Reestablish(t.Context()); err == nil {
				t.Error("called certain while no replica answers")
			}
			if err := apply("refused"); !errors.As(err, &failure) || !failure.NotWritten {
				t.Errorf("a write behind one in doubt: %v", err)
			}
			if err := apply("before"); errors.Is(err, store.ErrExists) {
				t.Errorf("a write behind one in doubt was made: %v", err)
			}
			replica.Start(t)
			eventually(t, func() error { return apply("last") })
			replica.with(t, replica.dsn(0), func(c *redis.Client) error {
				n, err := c.HLen(t.Context(), keysOf(orders)[1]).Result()
				if n != 4 {
					t.Errorf("the replica has %d rows", n)
				}
				return err
			})
			if got := ids(t, s); got != "before doubtful after last" {
				t.Errorf("rows %s", got)
			}
		})
	}
}

// eventually tries until that succeeds.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	deadline := time.After(time.Minute)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}
