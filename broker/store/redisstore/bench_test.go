package redisstore

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
)

// BenchmarkAccepts inserts batches the size of a publish window, and for
// comparison runs the bare client, which writes hashes with the same content in
// one pipeline.
func BenchmarkAccepts(b *testing.B) {
	for _, window := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("window=%d/store", window), func(b *testing.B) {
			s := mustOpen(b, Options{DSN: running(b, "redis-server").database(b), Partition: orders})
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
		b.Run(fmt.Sprintf("window=%d/bare", window), func(b *testing.B) {
			server := running(b, "redis-server")
			o, err := redis.ParseURL(server.database(b))
			if err != nil {
				b.Fatal(err)
			}
			c := redis.NewClient(o)
			defer c.Close()
			n := 0
			for b.Loop() {
				_, err := c.Pipelined(context.Background(), func(pipe redis.Pipeliner) error {
					for range window {
						n++
						pipe.HSet(context.Background(), fmt.Sprint("row:", n), "message", fmt.Sprint(n), "business", "order", "topic", "orders", "payload", make([]byte, 256))
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
