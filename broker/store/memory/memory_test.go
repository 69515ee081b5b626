package memory

import (
	"testing"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/storetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Exercise(t, func(*testing.T) storetest.Database {
		return storetest.Database{
			Open: func(_ *testing.T, p store.Partition) store.Store { return New(p, Options{}) },
			History: func(_ *testing.T, p store.Partition) store.Store {
				return New(p, Options{KeepHistory: true})
			},
			Bounded: func(_ *testing.T, p store.Partition, n int) store.Store { return New(p, Options{MaxSettled: n}) },
			Age: func(_ *testing.T, s store.Store, id string, version uint8) {
				memory := s.(*Store)
				memory.mu.Lock()
				defer memory.mu.Unlock()
				memory.rows[id].Version = version
			},
		}
	})
}

func TestSaysThatNothingSurvives(t *testing.T) {
	if f := New(store.Partition{}, Options{}).Flush(); f != store.FlushNever {
		t.Fatalf("got %v", f)
	}
}
