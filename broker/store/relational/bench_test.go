package relational

import (
	"context"
	"fmt"
	"testing"

	"github.com/custodymq/custody/broker/store"
)

// BenchmarkAccepts inserts batches the size of a publish window, and for
// comparison runs the bare driver, which does the same in one statement and one
// commit.
func BenchmarkAccepts(b *testing.B) {
	for kind := range kinds {
		for _, window := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/window=%d/store", kind, window), func(b *testing.B) {
				server := running(b, kind)
				s := mustOpen(b, server.dialect, Options{DSN: server.database(b), Partition: orders})
				n := 0
				for b.Loop() {
					batch := make([]store.Operation, window)
					for i := range batch {
						n++
						batch[i] = insertion(fmt.Sprint(n))
						batch[i].Row.Payload = make([]byte, 256)
					}
					if err := s.Apply(context.Background(), batch); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
			})
			b.Run(fmt.Sprintf("%s/window=%d/bare", kind, window), func(b *testing.B) {
				server := running(b, kind)
				db, err := server.dialect.open(server.database(b))
				if err != nil {
					b.Fatal(err)
				}
				defer db.Close()
				for _, q := range statements("CREATE TABLE bare (id BIGINT PRIMARY KEY, topic VARCHAR(100) NOT NULL, payload " + map[string]string{"postgres": "BYTEA", "mariadb": "LONGBLOB"}[kind] + " NOT NULL)") {
					if _, err := db.Exec(q); err != nil {
						b.Fatal(err)
					}
				}
				n := int64(0)
				for b.Loop() {
					columns := []column{{name: "id", ints: make([]int64, window)}, {name: "topic", texts: make([][]byte, window)}, {name: "payload", texts: make([][]byte, window)}}
					for i := range window {
						n++
						columns[0].ints[i], columns[1].texts[i], columns[2].texts[i] = n, []byte("orders"), make([]byte, 256)
					}
					v, args := server.dialect.values(columns)
					topic := map[string]string{"postgres": "convert_from(v.topic, 'UTF8')", "mariadb": "v.topic"}[kind]
					tx, err := db.Begin()
					if err != nil {
						b.Fatal(err)
					}
					if _, err := tx.Exec(server.dialect.bind("INSERT INTO bare (id, topic, payload) SELECT v.id, "+topic+", v.payload FROM "+v), args...); err != nil {
						b.Fatal(err)
					}
					if err := tx.Commit(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}
