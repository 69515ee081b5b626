package broker_test

import (
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
)

// BenchmarkStrangers attacks a broker without its token for a while, and says
// what that costs: how long a connection lasts, how many are held at the end, how
// much memory is in use at most (the attacker's own included), how long a client
// takes to enter meanwhile, and how many tokens are tried in a second.
func BenchmarkStrangers(b *testing.B) {
	const lasting = 8 * time.Second
	entering := join(greeting(), ready(dealer))
	head := frames(b, wire.Message{Kind: wire.Hello, Request: 1, Client: "x"})
	head = head[:len(head)-9] // without its empty payload
	big := make([]byte, 4<<20-1)
	ping := []byte("\x04\x07\x04PING\x00\x00")
	for _, attack := range []struct {
		name        string
		connections int
		first       []byte
		again       []byte // every second
		repeat      bool   // a new connection for each that ends
	}{
		{"no-Hello", 1, entering, nil, false},
		{"pings", 1024, entering, ping, false},
		{"4-MiB-before-Hello", 500, join(entering, head, header(0, 4<<20), big), nil, false},
		{"guesses", 16, join(entering, frames(b, wire.Message{Kind: wire.Hello, Request: 1, Client: "x", Token: "guess"})), nil, true},
	} {
		b.Run(attack.name, func(b *testing.B) {
			for range b.N {
				s := start(b, broker.Config{Store: newStore(), Token: token})
				var held, ended, life atomic.Int64
				var all sync.WaitGroup
				end := time.Now().Add(lasting)
				for range attack.connections {
					all.Go(func() {
						for again := true; again && time.Now().Before(end); again = attack.repeat {
							nc, err := net.Dial("tcp", s.Addr())
							if err != nil {
								return
							}
							held.Add(1)
							began := time.Now()
							if !stay(nc, end, attack.first, attack.again) {
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

// stay says something on a connection, and again every second, and whether it is
// still there at the end.
func stay(nc net.Conn, end time.Time, first, again []byte) bool {
	nc.SetWriteDeadline(end.Add(time.Second))
	_, _ = nc.Write(first)
	buf := make([]byte, 4<<10)
	for time.Now().Before(end) {
		next := min(time.Second, time.Until(end))
		nc.SetReadDeadline(time.Now().Add(next))
		for {
			if _, err := nc.Read(buf); err != nil {
				if timeout, ok := err.(net.Error); !ok || !timeout.Timeout() || err == io.EOF {
					return false
				}
				break
			}
		}
		if again != nil {
			if _, err := nc.Write(again); err != nil {
				return false
			}
		}
	}
	return true
}

// peakUntil watches the memory, and tries to enter in the last third.
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
