package relational

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/storetest"
	"github.com/custodymq/custody/broker/wire"
)

var orders = store.Partition{Connection: "orders", Identity: "node-a"}

func insertion(id string) store.Operation {
	return store.Operation{Kind: store.Insert, Row: store.Row{
		MessageID: id, BusinessID: "order", Topic: "orders", Version: wire.Version, Payload: []byte("payload of " + id), InsertedAt: time.Unix(1, 0),
	}}
}

// TestNothingAcceptedIsLostByKills kills a server at random moments under load:
// it must have every batch it confirmed, all or nothing of the others, and the
// store must be able to tell which.
func TestNothingAcceptedIsLostByKills(t *testing.T) {
	kills := 3
	if os.Getenv("CUSTODY_TORTURE") != "" {
		kills = 100
	}
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			server := running(t, kind)
			s := mustOpen(t, server.dialect, Options{DSN: server.database(t), Partition: orders})
			stored, doubts := map[string]bool{}, 0
			for n := range kills {
				timer := time.AfterFunc(time.Duration(rand.IntN(150))*time.Millisecond, server.Kill)
				var err error
				var batch []store.Operation
				for i := 0; err == nil; i++ {
					batch = batch[:0]
					for k := range 1 + rand.IntN(8) {
						batch = append(batch, insertion(fmt.Sprintf("%d-%d-%d", n, i, k)))
					}
					if err = s.Apply(t.Context(), batch); err == nil {
						for _, op := range batch {
							stored[op.Row.MessageID] = true
						}
					}
				}
				timer.Stop()
				server.Kill() // it may have been asked to by the timer alone
				server.Start(t)
				var failure *store.Failure
				if !errors.As(err, &failure) {
					t.Fatalf("kill %d: %v", n, err)
				}
				absent := failure.NotWritten
				if !absent {
					doubts++
					if absent, err = certain(t, s); err != nil {
						t.Fatalf("kill %d: %v", n, err)
					}
				}
				for _, op := range batch {
					if !absent {
						stored[op.Row.MessageID] = true
					}
				}
				found := map[string]bool{}
				if err := s.Load(t.Context(), 0, func(r store.Row) error { found[r.MessageID] = r.State == store.Pending; return nil }); err != nil {
					t.Fatalf("kill %d: %v", n, err)
				}
				for id := range stored {
					if !found[id] {
						t.Errorf("kill %d: %s was confirmed, and is lost", n, id)
					}
				}
				if len(found) != len(stored) {
					t.Errorf("kill %d: %d rows, and %d were confirmed", n, len(found), len(stored))
				}
			}
			t.Logf("%d kills, %d confirmed, %d in doubt for a time", kills, len(stored), doubts)
		})
	}
}

// certain retries Reestablish until the server answers: the session of the lost
// connection may hold the partition's lock for a moment.
func certain(t *testing.T, s *Store) (absent bool, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		absent, err = s.Reestablish(ctx)
		if err == nil || ctx.Err() != nil || errors.Is(err, store.ErrFenced) {
			return absent, err
		}
		<-again.C
	}
}

func TestCommitInDoubt(t *testing.T) {
	for kind := range kinds {
		for _, c := range []struct {
			name            string
			swallow         func(*storetest.Link, string)
			absent, another bool // another call comes before the question
		}{
			{"the commit is lost", (*storetest.Link).SwallowCommand, true, false},
			{"its reply is lost", (*storetest.Link).SwallowReply, false, false},
			{"its reply is lost, and a malformed batch follows", (*storetest.Link).SwallowReply, false, true},
		} {
			t.Run(kind+", "+c.name, func(t *testing.T) {
				server := running(t, kind)
				direct := server.database(t)
				_, after, _ := strings.Cut(direct, "127.0.0.1:")
				port := after[:strings.IndexAny(after, ")/")]
				link := storetest.NewLink(t, "127.0.0.1:"+port)
				dsn := strings.Replace(direct, "127.0.0.1:"+port, link.Address(), 1)
				s := mustOpen(t, server.dialect, Options{DSN: dsn, Partition: orders})
				if err := s.Apply(t.Context(), []store.Operation{insertion("before")}); err != nil {
					t.Fatal(err)
				}
				c.swallow(link, "COMMIT")
				short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				err := s.Apply(short, []store.Operation{insertion("doubtful")})
				var failure *store.Failure
				if !errors.As(err, &failure) || failure.NotWritten {
					t.Fatalf("a COMMIT without an answer: %v", err)
				}
				if c.another && s.Apply(t.Context(), []store.Operation{{}}) == nil {
					t.Fatal("a malformed batch was taken")
				}
				absent, err := certain(t, s)
				if want := c.absent || c.another; err != nil || absent != want { // of the last call
					t.Fatalf("absent %v, %v; want %v", absent, err, want)
				}
				if err := s.Apply(t.Context(), []store.Operation{insertion("after")}); err != nil {
					t.Fatal(err)
				}
				var ids []string
				if err := s.Rows(t.Context(), store.Selection{}, func(r store.Row) error { ids = append(ids, r.MessageID); return nil }); err != nil {
					t.Fatal(err)
				}
				want := "before doubtful after"
				if c.absent {
					want = "before after"
				}
				if got := strings.Join(ids, " "); got != want {
					t.Errorf("rows %s; want %s", got, want)
				}
			})
		}
	}
}

// TestFence checks that the store is fenced by another broker that writes the
// partition, and by a server that has lost what it had confirmed, even the
// partition.
func TestFence(t *testing.T) {
	for kind := range kinds {
		for name, test := range map[string]struct {
			strikes     []string
			reconnected bool
			want        string
		}{
			"another broker":              {[]string{"UPDATE custody_partition SET writer = writer + 1"}, false, "two brokers share"},
			"a server that forgot":        {[]string{"UPDATE custody_partition SET batch = batch - 1"}, true, "has lost what it had confirmed"},
			"a server that forgot it all": {[]string{"DELETE FROM custody_row", "DELETE FROM custody_partition"}, true, "has lost what it had confirmed"},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				server := running(t, kind)
				dsn := server.database(t)
				s := mustOpen(t, server.dialect, Options{DSN: dsn, Partition: orders})
				if err := s.Apply(t.Context(), []store.Operation{insertion("a")}); err != nil {
					t.Fatal(err)
				}
				for _, strike := range test.strikes {
					server.exec(t, dsn, strike)
				}
				if test.reconnected {
					w := <-s.writer
					w.drop()
					s.writer <- w
				}
				for range 2 {
					err := s.Apply(t.Context(), []store.Operation{insertion("b")})
					var failure *store.Failure
					if !errors.As(err, &failure) || !failure.NotWritten || !errors.Is(err, store.ErrFenced) || !strings.Contains(err.Error(), test.want) {
						t.Fatalf("got %v", err)
					}
				}
			})
		}
	}
}
