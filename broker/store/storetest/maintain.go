package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
)

// Maintenance checks that a partition is maintained, and its neighbours are left
// alone, whatever has expired in them.
func Maintenance(t *testing.T, open func(ctx context.Context, p store.Partition) (store.Store, error)) {
	ctx := testContext(t)
	opened := func(p store.Partition) store.Store {
		t.Helper()
		s, err := open(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	var neighbours [][]store.Row
	for i, p := range []store.Partition{neighbour, stranger, home} {
		s := opened(p)
		expiring := row("expired")
		expiring.ExpiresAt = longAgo
		lasting := row("lasting")
		lasting.ExpiresAt = farOff
		apply(t, s, on(store.Insert, expiring), on(store.Insert, lasting), insert("for ever"), insert("dead"), insert("settled"), insert("lapsed"),
			on(store.DeadLetter, store.Row{MessageID: "dead", Reason: "poison"}),
			on(store.Delete, store.Row{MessageID: "settled", KeepUntil: farOff}),
			on(store.Delete, store.Row{MessageID: "lapsed", KeepUntil: longAgo}))
		if i < 2 {
			neighbours = append(neighbours, whole(t, s))
		}
		shut(t, s)
	}
	s := opened(home)
	got, err := store.Maintain(ctx, s, time.Now(), farOff)
	if err != nil {
		t.Fatal(err)
	}
	if got.Expired != 1 || got.Swept != 1 || got.Before["pending"] != 3 || got.After["pending"] != 2 || got.After["dead"] != 1 || got.After["settled"] != 2 {
		t.Errorf("it reports %+v", got)
	}
	if _, can := s.(store.Compactor); can && !got.Compacted {
		t.Errorf("not compacted: %s", got.NotCompacted)
	}
	if again, err := store.Maintain(ctx, s, time.Now(), farOff); err != nil || again.Expired+again.Swept != 0 {
		t.Errorf("and again: %+v, %v", again, err)
	}
	var ids []string
	for _, r := range whole(t, s) {
		ids = append(ids, r.MessageID)
	}
	if len(ids) != 5 {
		t.Errorf("the rows that are left: %q", ids)
	}
	if other, err := open(ctx, home); err == nil { // as a broker that runs would have it
		t.Error("the partition was opened twice")
		shut(t, other)
	}
	shut(t, s)
	for i, p := range []store.Partition{neighbour, stranger} {
		s := opened(p)
		same(t, whole(t, s), neighbours[i])
		shut(t, s)
	}
}
