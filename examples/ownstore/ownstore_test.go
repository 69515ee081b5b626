package ownstore

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/storetest"
	"github.com/custodymq/custody/broker/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustOpen(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) // again, where the test has closed it
	return s
}

// The suite that every backend passes.
func TestStore(t *testing.T) {
	storetest.Exercise(t, func(t *testing.T) storetest.Database {
		folder := t.TempDir()
		open := func(o Options) func(*testing.T, store.Partition) store.Store {
			return func(t *testing.T, p store.Partition) store.Store {
				o.Folder, o.Partition = folder, p
				return mustOpen(t, o)
			}
		}
		return storetest.Database{
			Open: open(Options{}), History: open(Options{KeepHistory: true}), Durable: true,
			Bounded: func(t *testing.T, p store.Partition, n int) store.Store { return open(Options{MaxSettled: n})(t, p) },
			Age: func(t *testing.T, s store.Store, id string, version uint8) {
				alter(t, s, id, func(b *bbolt.Bucket, order []byte) error {
					var row store.Row
					if err := load(b.Get(order), &row); err != nil {
						return err
					}
					row.Version = version
					return save(b, order, row)
				})
			},
			Damage: func(t *testing.T, s store.Store, id string) {
				alter(t, s, id, func(b *bbolt.Bucket, order []byte) error {
					return b.Put(order, bytes.Replace(b.Get(order), []byte("orders/new"), []byte("orders/old"), 1))
				})
			},
		}
	})
}

// alter changes the head of a row past the store.
func alter(t *testing.T, s store.Store, id string, change func(b *bbolt.Bucket, order []byte) error) {
	t.Helper()
	err := s.(*Store).db.Update(func(tx *bbolt.Tx) error {
		return change(tx.Bucket(headBucket), bytes.Clone(tx.Bucket(idBucket).Get([]byte(id))))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAPartitionHasOneOwner(t *testing.T) {
	o := Options{Folder: t.TempDir(), Partition: store.Partition{Connection: "orders", Identity: "node-a"}}
	mustOpen(t, o)
	if s, err := Open(o); err == nil {
		s.Close()
		t.Error("two own it")
	}
}

// Example runs the reference broker on the store, twice: what the first accepted
// the second delivers.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	folder, err := os.MkdirTemp("", "ownstore-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	run := func(use func(address string) error) error {
		rows, err := Open(Options{Folder: folder, Partition: store.Partition{Connection: "orders", Identity: "node-a"}})
		if err != nil {
			return err
		}
		defer rows.Close()
		server, err := broker.Open(ctx, broker.Config{Name: "orders", Store: rows})
		if err != nil {
			return err
		}
		defer server.Close(ctx)
		return use(server.Addr())
	}
	err = run(func(address string) error {
		conn, err := client.Dial(ctx, address, client.Options{})
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Subscribe(ctx, client.Filter{Topic: "orders", Mode: wire.AtLeastOnce}); err != nil { // somebody is there, who takes nothing yet
			return err
		}
		call, err := conn.Publish(ctx, wire.Message{Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1", Payload: []byte("a pound of tea")})
		if err != nil {
			return err
		}
		reply, err := call.Wait(ctx)
		fmt.Println("accepted:", reply.Answer == wire.Accepted)
		return err
	})
	fmt.Println(err)
	err = run(func(address string) error {
		conn, err := client.Dial(ctx, address, client.Options{})
		if err != nil {
			return err
		}
		defer conn.Close()
		orders, err := conn.Subscribe(ctx, client.Filter{Topic: "orders", Mode: wire.AtLeastOnce, Window: 1})
		if err != nil {
			return err
		}
		delivery, err := orders.Receive(ctx)
		if err != nil {
			return err
		}
		fmt.Println(string(delivery.Payload))
		_, err = delivery.Ack(ctx)
		return err
	})
	fmt.Println(err)
	// Output:
	// accepted: true
	// <nil>
	// a pound of tea
	// <nil>
}
