package sqlite

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// BenchmarkRestart measures how long a store takes to open and to load what a
// broker needs, and how large its file is: with a million pending messages, and
// after an hour of 2,000 messages per second, all settled. TMPDIR selects where
// the files are created.
func BenchmarkRestart(b *testing.B) {
	const loaded = 256 << 10 // the number of settled IDs that a broker remembers by default
	for _, c := range []struct {
		name     string
		messages int
		settled  bool
	}{
		{"pending-1M", 1_000_000, false},
		{"settled-an-hour", 3600 * 2000, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "store.db")
			generate(b, path, c.messages, c.settled)
			rows := 0
			for b.Loop() {
				rows = 0
				s, err := Open(b.Context(), Options{Path: path, Partition: partition})
				if err == nil {
					err = s.Load(b.Context(), loaded, func(store.Row) error { rows++; return nil })
				}
				if err == nil {
					err = s.Close()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			info, err := os.Stat(path)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(rows), "rows")
			b.ReportMetric(float64(info.Size())/(1<<20), "MiB")
		})
	}
}

// generate fills a file the way a broker does, except that it syncs only
// occasionally.
func generate(b *testing.B, path string, messages int, settled bool) {
	b.Helper()
	s, err := Open(b.Context(), Options{Path: path, Partition: partition, Sync: store.FlushPeriodic})
	if err != nil {
		b.Fatal(err)
	}
	const atOnce = 4000
	payload := make([]byte, 256)
	now := time.Now()
	for n := 0; n < messages; n += atOnce {
		inserts, settles := make([]store.Operation, atOnce), make([]store.Operation, atOnce)
		for i := range atOnce {
			id := fmt.Sprintf("4QTX7AB2-%d", n+i)
			inserts[i] = store.Operation{Kind: store.Insert, Row: store.Row{
				MessageID: id, BusinessID: fmt.Sprintf("order-%d", n+i), Topic: "orders", Version: wire.Version, Payload: payload,
				InsertedAt: now, ExpiresAt: now.Add(24 * time.Hour), Attempts: 1,
			}}
			settles[i] = store.Operation{Kind: store.Delete, Row: store.Row{MessageID: id, KeepUntil: now.Add(time.Hour + time.Duration(n+i)*time.Microsecond)}}
		}
		err := s.Apply(b.Context(), inserts)
		if err == nil && settled {
			err = s.Apply(b.Context(), settles)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
