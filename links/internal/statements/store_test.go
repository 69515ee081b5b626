package statements_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/relational"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/internal/statements"
	"github.com/custodymq/custody/links/linktest"
)

var record = flag.Bool("record", false, "record the store's dialogue with real servers in testdata anew")

// rig is a store behind a link to a real server.
type rig struct {
	*linktest.Rig
	server *server
	store  *relational.Store
}

func newRig(t *testing.T, s *server, p links.Protocol) *rig {
	t.Helper()
	s.run(t)
	r := &rig{Rig: linktest.Open(t, s.address, p), server: s}
	var err error
	r.store, err = relational.Open(r.Ctx, s.dialect, relational.Options{DSN: s.dsn(r.Link.Addr()), Partition: store.Partition{Connection: t.Name() + rand.Text()}})
	r.Must(err)
	t.Cleanup(func() { r.store.Close() })
	return r
}

// awkward is a body with every byte that SQL string literals escape.
const awkward = "it's \\ '' \\' \"x\" \x00\x1a\r\n ) AS v, _binary'"

func operation(kind store.OperationKind, n string) store.Operation {
	return store.Operation{Kind: kind, Row: store.Row{
		MessageID: "m'" + n, BusinessID: "order-" + n, Topic: "orders", Version: wire.Version, Payload: linktest.Payload(n, awkward), InsertedAt: time.Unix(1, 0),
	}}
}

func batch(kind store.OperationKind, ns ...string) (list []store.Operation) {
	for _, n := range ns {
		list = append(list, operation(kind, n))
	}
	return list
}

// dialogue performs every kind of store operation once.
func (r *rig) dialogue() {
	t := r.T
	t.Helper()
	r.Must(r.store.Apply(r.Ctx, batch(store.Insert, "1", "2", "3")))
	err := r.store.Apply(r.Ctx, batch(store.Insert, "2"))
	if exists := (*store.ExistsError)(nil); !errors.As(err, &exists) {
		t.Fatalf("an ID was stored twice: %v", err)
	}
	r.Must(r.store.Apply(r.Ctx, append(batch(store.Attempt, "1", "2"), batch(store.Delete, "3")...)))
	found := 0
	r.Must(r.store.Content(r.Ctx, []string{"m'1", "m'2", "m'3"}, func(row store.Row) error {
		found++
		if e, err := evidence.ParseEnvelope(row.Payload); err != nil || string(e.Body) != awkward {
			t.Errorf("%s has the body %q, %v", row.MessageID, e.Body, err)
		}
		return nil
	}))
	if found != 2 {
		t.Fatalf("%d rows, want 2", found)
	}
}

const one, two, three = "order-1/p1-1-1/m'1", "order-2/p1-2-1/m'2", "order-3/p1-3-1/m'3"

// writes lists the expected frames of the dialogue, without queries.
func writes(refusal string) []string {
	var list []string
	for _, request := range []string{
		"begin", "insert " + one + " " + two + " " + three, "mark", "commit " + one + " " + two + " " + three,
		"begin", "insert " + two, "rollback",
		"begin", "update " + one + " " + two, "delete " + three, "mark", "commit",
	} {
		kind, items, _ := strings.Cut(request, " ")
		says := " says accepted"
		if request == "insert "+two {
			says = " says " + refusal
		}
		reply := kind + "-reply"
		if items != "" {
			reply += " " + items
		}
		list = append(list, request, reply+says)
	}
	return list
}

var refusals = map[string]string{"postgres": "23505", "mysql": "1062"}

func TestRecord(t *testing.T) {
	if !*record {
		t.Skip("with -record")
	}
	for _, s := range servers {
		recorder := &linktest.Recorder{Protocol: s.protocol}
		r := newRig(t, s, recorder)
		r.dialogue()
		r.Must(r.store.Close())
		r.Must(r.Link.Close())
		recorder.Carried().Write(t, s.capture)
	}
}

func TestRealClientsAreUnderstood(t *testing.T) {
	for name, s := range servers {
		t.Run(name, func(t *testing.T) {
			open := func() links.Protocol { return s.protocol }
			c := linktest.Read(t, s.capture)
			linktest.EveryKind(t, open, c)
			linktest.Splitting(t, open, c)
			var got []string
			for _, f := range c.Understood(t, s.protocol) {
				if f.Kind != "" && !strings.HasPrefix(f.Kind, statements.Query) {
					got = append(got, linktest.Summary(f))
				}
			}
			want := writes(refusals[name])
			if len(got) < len(want) || !slices.Equal(got[len(got)-len(want):], want) {
				t.Errorf("got\n%s\nwant at the end\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// The link sees exactly the operations that a real store performs on a real
// server.
func TestFramesAreTheStoresOperations(t *testing.T) {
	for name, s := range servers {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, s, s.protocol)
			before := len(r.Sink.Carried(""))
			r.dialogue()
			var got []string
			for _, e := range r.Sink.Carried("")[before:] {
				if !strings.HasPrefix(e.Frame, statements.Query) {
					got = append(got, linktest.Summary(links.Frame{Kind: e.Frame, Items: e.Items, Status: e.Reason}))
				}
			}
			if want := writes(refusals[name]); !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// A reply of any length passes, as one frame.
func TestALongReplyIsOneFrame(t *testing.T) {
	for name, s := range servers {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, s, s.protocol)
			const rows, size = 12, 1 << 20
			for n := range rows {
				op := operation(store.Insert, fmt.Sprint(n))
				op.Row.Payload = append(op.Row.Payload, make([]byte, size)...)
				r.Must(r.store.Apply(r.Ctx, []store.Operation{op}))
			}
			before, found := len(r.Sink.Carried("query-reply")), 0
			r.Must(r.store.Rows(r.Ctx, store.Selection{Content: true}, func(store.Row) error { found++; return nil }))
			if seen := len(r.Sink.Carried("query-reply")) - before; found != rows || seen != 1 {
				t.Errorf("%d rows in %d replies, want %d in 1", found, seen, rows)
			}
		})
	}
}

// outcome is the result of an insert under a strike.
type outcome int

const (
	stored    outcome = iota
	notStored         // Apply reports that
	lostLater         // Apply is in doubt, and the row exists
	lostFirst         // Apply is in doubt, and the row does not exist
)

func TestStrikes(t *testing.T) {
	for _, x := range []struct {
		action links.Action
		kind   string
		want   outcome
	}{
		{links.Drop, statements.Commit, lostFirst},
		{links.Drop, "commit-reply", lostLater},
		{links.CutBefore, statements.Commit, lostFirst},
		{links.CutBefore, "commit-reply", lostLater},
		{links.CutAfter, "commit-reply", stored},
		{links.Delay, statements.Commit, stored},
		{links.Delay, "commit-reply", stored},
		{links.Delay, statements.Insert, stored},
		{links.Drop, statements.Begin, notStored},
		{links.Drop, statements.Insert, notStored},
		{links.Drop, "insert-reply", notStored},
		{links.CutBefore, statements.Insert, notStored},
		{links.CutAfter, "insert-reply", notStored},
		{links.CutBefore, "mark-reply", notStored},
	} {
		for name, s := range servers {
			t.Run(fmt.Sprintf("%s/%s %s", name, x.action, x.kind), func(t *testing.T) {
				r := newRig(t, s, s.protocol)
				r.Must(r.store.Apply(r.Ctx, batch(store.Insert, "1")))
				ctx, cancel := context.WithCancel(r.Ctx)
				defer cancel()
				strike := links.Strike{Action: x.action, Kind: x.kind, N: 2, Delay: time.Millisecond}
				if x.action == links.Drop {
					strike.Then = cancel // no reply will come
				}
				a := r.Arm(strike)
				r.Must(r.store.Apply(r.Ctx, batch(store.Insert, "2")))
				if a.Count() != 0 {
					t.Fatal("the first was struck, not the second")
				}
				err := r.store.Apply(ctx, batch(store.Insert, "3"))
				r.Fired(a)
				r.Must(a.Heal(r.Ctx))
				var failure *store.Failure
				doubt := errors.As(err, &failure) && !failure.NotWritten
				switch x.want {
				case stored:
					r.Must(err)
				case notStored:
					if failure == nil || doubt {
						t.Errorf("the store says %v", err)
					}
				case lostLater, lostFirst:
					if !doubt {
						t.Errorf("the store says %v", err)
					}
					var absent bool
					r.Must(patiently(r.Ctx, func() (err error) { absent, err = r.store.Reestablish(r.Ctx); return err }))
					if absent != (x.want == lostFirst) {
						t.Errorf("absent: %v", absent)
					}
				}
				want := []string{"m'1", "m'2"}
				if x.want == stored || x.want == lostLater {
					want = append(want, "m'3")
				}
				var got []string
				r.Must(patiently(r.Ctx, func() error {
					got = nil
					return r.store.Rows(r.Ctx, store.Selection{}, func(row store.Row) error { got = append(got, row.MessageID); return nil })
				}))
				if !slices.Equal(got, want) {
					t.Errorf("rows %q, want %q", got, want)
				}
			})
		}
	}
}

// A strike on one message hits the statement that carries it.
func TestAStrikeOfOneMessage(t *testing.T) {
	for name, s := range servers {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, s, s.protocol)
			r.Must(r.store.Apply(r.Ctx, batch(store.Insert, "1", "2", "3")))
			a := r.Arm(links.Strike{Action: links.CutBefore, Kind: statements.Delete, Of: "order-2"})
			r.Must(r.store.Apply(r.Ctx, batch(store.Delete, "1")))
			if a.Count() != 0 {
				t.Fatal("another message's was struck")
			}
			if err := r.store.Apply(r.Ctx, batch(store.Delete, "3", "2")); err == nil {
				t.Error("not struck")
			}
			r.Fired(a)
		})
	}
}
