package zeromq

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/sqlite"
)

// TestStorageProbes runs each probe of the store without a broker, on files of
// its own, beside a store that owns the broker's partition.
func TestStorageProbes(t *testing.T) {
	in := &instance{database: file{path: filepath.Join(t.TempDir(), "broker.db")}, identity: "identity-1", config: brokerConfig{Name: "custody"}}
	running, err := sqlite.Open(t.Context(), sqlite.Options{Path: in.path(), Partition: store.Partition{Connection: "custody", Identity: "identity-1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	names := map[string]bool{}
	for _, p := range slices.Concat(keepings, alterations, flips, twins) {
		if names[p.Name] || p.Kind != storage {
			t.Errorf("%s: twice, or of kind %s", p.Name, p.Kind)
		}
		names[p.Name] = true
		t.Run(p.Name, func(t *testing.T) {
			got, err := p.try(&attempt{ctx: t.Context(), in: in, probe: p})
			if err != nil || got.Outcome != p.Wants {
				t.Errorf("%s: %s, %v", got.Outcome, got.Reason, err)
			}
		})
	}
}
