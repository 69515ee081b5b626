package relational

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
)

// BenchmarkAccepts inserts batches the size of a publish window. "bare" is the
// limit: the driver alone commits the same rows to the same tables, in the same
// statements, made before the clock runs. "plain" is what a table of an ID, a
// topic and a payload would cost.
func BenchmarkAccepts(b *testing.B) {
	for kind := range kinds {
		for _, window := range []int{1, 64, 256} {
			for _, by := range []struct {
				name string
				run  func(b *testing.B, server *server, dsn string, window int) (rows int, took time.Duration)
			}{{"store", acceptsOfStore}, {"bare", acceptsOfDriver}, {"plain", acceptsOfPlainTable}} {
				b.Run(fmt.Sprintf("%s/window=%d/%s", kind, window, by.name), func(b *testing.B) {
					server := running(b, kind)
					n, took := by.run(b, server, server.database(b), window)
					b.ReportMetric(float64(n)/took.Seconds(), "rows/s")
				})
			}
		}
	}
}

func batchOf(from, window int) []store.Operation {
	batch := make([]store.Operation, window)
	for i := range batch {
		batch[i] = insertion(fmt.Sprint(from + i))
		batch[i].Row.Payload = make([]byte, 256)
	}
	return batch
}

func acceptsOfStore(b *testing.B, server *server, dsn string, window int) (n int, took time.Duration) {
	s := mustOpen(b, server.dialect, Options{DSN: dsn, Partition: orders})
	for b.Loop() {
		batch := batchOf(n, window)
		began := time.Now()
		if err := s.Apply(context.Background(), batch); err != nil {
			b.Fatal(err)
		}
		took += time.Since(began)
		n += window
	}
	return n, took
}

func acceptsOfDriver(b *testing.B, server *server, dsn string, window int) (n int, took time.Duration) {
	s, d := mustOpen(b, server.dialect, Options{DSN: dsn, Partition: orders}), server.dialect
	w, err := s.own(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { s.writer <- w }()
	for b.Loop() {
		var rows []*store.Row
		var ords []int64
		for i, op := range batchOf(n, window) {
			rows, ords = append(rows, &op.Row), append(ords, int64(n+i+1))
		}
		insert, args, err := (&transaction{w: w}).insertion(rows, ords)
		if err != nil {
			b.Fatal(err)
		}
		n += window
		began := time.Now()
		for _, statement := range []struct {
			text string
			args []any
		}{
			{d.begin, nil},
			{d.bind(insert), args},
			{d.bind("UPDATE custody_partition SET batch = batch + 1, last_ord = ? WHERE id = ?"), []any{n, w.partition}},
			{"COMMIT", nil},
		} {
			if _, err := w.conn.ExecContext(context.Background(), statement.text, statement.args...); err != nil {
				b.Fatal(err)
			}
		}
		took += time.Since(began)
	}
	return n, took
}

func acceptsOfPlainTable(b *testing.B, server *server, dsn string, window int) (n int, took time.Duration) {
	d := server.dialect
	db, err := d.open(dsn)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	payload := map[string]string{"postgres": "BYTEA", "mysql": "LONGBLOB"}[d.name]
	if _, err := db.Exec("CREATE TABLE plain (id BIGINT PRIMARY KEY, topic VARCHAR(100) NOT NULL, payload " + payload + " NOT NULL)"); err != nil {
		b.Fatal(err)
	}
	topic := map[string]string{"postgres": "convert_from(v.topic, 'UTF8')", "mysql": "v.topic"}[d.name]
	for b.Loop() {
		columns := []column{{name: "id", ints: make([]int64, window)}, {name: "topic", texts: make([][]byte, window)}, {name: "payload", texts: make([][]byte, window)}}
		for i := range window {
			n++
			columns[0].ints[i], columns[1].texts[i], columns[2].texts[i] = int64(n), []byte("orders"), make([]byte, 256)
		}
		v, args := d.values(columns)
		began := time.Now()
		if err := inTransaction(db, d.bind("INSERT INTO plain (id, topic, payload) SELECT v.id, "+topic+", v.payload FROM "+v), args); err != nil {
			b.Fatal(err)
		}
		took += time.Since(began)
	}
	return n, took
}

func inTransaction(db *sql.DB, statement string, args []any) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	if _, err := tx.Exec(statement, args...); err != nil {
		return err
	}
	return tx.Commit()
}
