package broker_test

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/attack"
	"github.com/custodymq/custody/broker/client"
)

// BenchmarkStrangers attacks a broker for a while without its token and reports
// the cost: how long a connection lasts, how many are held at the end, the peak
// memory use (including the attacker's own), how long a client takes to enter
// meanwhile, and how many tokens are tried per second.
func BenchmarkStrangers(b *testing.B) {
	const lasting = 8 * time.Second
	for _, stranger := range attack.Strangers() {
		b.Run(stranger.Name, func(b *testing.B) {
			for range b.N {
				s := start(b, broker.Config{Store: newStore(), Token: token})
				var held, ended, life atomic.Int64
				var all sync.WaitGroup
				end := time.Now().Add(lasting)
				for range stranger.Connections {
					all.Go(func() {
						for again := true; again && time.Now().Before(end); again = stranger.Repeat {
							nc, err := net.Dial("tcp", s.Addr())
							if err != nil {
								return
							}
							held.Add(1)
							began := time.Now()
							if !stranger.Stay(nc, end) {
								held.Add(-1)
								ended.Add(1)
								life.Add(int64(time.Since(began)))
							}
							nc.Close()
						}
					})
				}
				peak, entered := peakUntil(end, func() time.Duration {
					began := time.Now()
					if c, err := client.Dial(within(b), s.Addr(), client.Options{Token: token}); err == nil {
						c.Close()
						return time.Since(began)
					}
					return -1
				})
				all.Wait()
				b.ReportMetric(float64(held.Load()), "held")
				b.ReportMetric(float64(life.Load())/1e9/float64(max(1, ended.Load())), "s/connection")
				b.ReportMetric(float64(ended.Load())/lasting.Seconds(), "ended/s")
				b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
				b.ReportMetric(entered.Seconds()*1000, "ms/entry") // negative: refused
			}
		})
	}
}

// peakUntil samples the memory in use, and tries to enter in the last third.
func peakUntil(end time.Time, enter func() time.Duration) (peak uint64, entered time.Duration) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late, tried := end.Add(-time.Until(end)/3), false
	for time.Now().Before(end) {
		<-tick.C
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapInuse+m.StackInuse)
		if !tried && time.Now().After(late) {
			entered, tried = enter(), true
		}
	}
	return peak, entered
}
