package guarantees

import (
	"iter"
	"runtime"
	"runtime/metrics"
	"strconv"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
)

// synthetic is a run of n messages from four producers to four consumers, 256
// in flight, five events each. It is generated while being read, never stored.
func synthetic(n int) iter.Seq2[*evidence.Event, error] {
	return func(yield func(*evidence.Event, error) bool) {
		const lanes, window = 4, 256
		names := [...][lanes]string{{"p1", "p2", "p3", "p4"}, {"p1#1", "p2#1", "p3#1", "p4#1"}, {"c1", "c2", "c3", "c4"}, {"c1#1", "c2#1", "c3#1", "c4#1"}}
		type ids struct{ publish, business, message string }
		var flying [window]ids
		var e evidence.Event
		seq := uint64(0)
		send := func(next evidence.Event) bool {
			seq++
			e = next
			e.Seq, e.At = seq, time.Duration(seq)*time.Microsecond
			return yield(&e, nil)
		}
		for i := range lanes {
			for _, k := range []evidence.Kind{evidence.SubscribeCalled, evidence.SubscribeReturned, evidence.SessionOpened} {
				if !send(evidence.Event{Kind: k, Actor: names[2][i], Session: names[3][i], Subscription: "workers", Destination: "orders", OK: true}) {
					return
				}
			}
		}
		var b [64]byte
		for i := range n + window {
			slot, lane := &flying[i%window], i%lanes
			if i >= window {
				d := evidence.Event{Kind: evidence.Delivered, Actor: names[2][lane], Session: names[3][lane], Subscription: "workers",
					PublishID: slot.publish, BusinessID: slot.business, MessageID: slot.message, Digest: "0123456789abcdef", Mark: evidence.MarkFirst, Attempt: 1}
				a := d
				a.Kind, a.Digest, a.Mark, a.Attempt = evidence.AckCalled, "", 0, 0
				r := a
				r.Kind, r.Ack = evidence.AckReturned, evidence.AckConfirmed
				if !send(d) || !send(a) || !send(r) {
					return
				}
			}
			if i < n {
				count := int64(i/lanes + 1)
				p := append(append(b[:0], names[0][lane]...), '-')
				p = append(strconv.AppendInt(p, count, 10), "-1 o"...)
				head := len(p) - 2
				p = append(strconv.AppendInt(p, int64(i), 10), " m"...)
				mid := len(p) - 2
				p = strconv.AppendInt(p, int64(i), 10)
				all := string(p)
				*slot = ids{all[:head], all[head+1 : mid], all[mid+1:]}
				c := evidence.Event{Kind: evidence.PublishCalled, Actor: names[0][lane], Session: names[1][lane], Destination: "orders",
					PublishID: slot.publish, BusinessID: slot.business, Digest: "0123456789abcdef", Size: 256}
				r := c
				r.Kind, r.MessageID, r.Acceptance, r.HeldBy, r.ClientResult = evidence.PublishReturned, slot.message, evidence.Accepted, evidence.HeldByStore, "ok"
				if !send(c) || !send(r) {
					return
				}
			}
		}
		send(evidence.Event{Kind: evidence.DrainEnded, Drain: evidence.DrainSettled})
	}
}

func BenchmarkJudge1M(b *testing.B)  { benchmarkJudge(b, 1_000_000) }
func BenchmarkJudge10M(b *testing.B) { benchmarkJudge(b, 10_000_000) }

// BenchmarkGenerate1M measures the cost of generating the history.
func BenchmarkGenerate1M(b *testing.B) {
	for b.Loop() {
		for range synthetic(1_000_000) {
		}
	}
	b.ReportMetric(5e6*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func benchmarkJudge(b *testing.B, n int) {
	stop, peak := make(chan struct{}), make(chan uint64)
	go watchHeap(stop, peak)
	for b.Loop() {
		s := newTale()
		s.history.Manifest.Expect = []string{evidence.NoAcceptedLoss, evidence.NoDuplicateDelivery, evidence.NoPhantom, evidence.AckIsFinal}
		s.history.Events = synthetic(n)
		j, err := Judge(&s.history)
		if err != nil || j.Outcome != Held || j.Verdicts[0].Instances != n {
			b.Fatalf("%v %v: %s", err, j.Outcome, j.Why)
		}
	}
	close(stop)
	b.ReportMetric(5*float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(<-peak)/(1<<20), "peak-MiB")
	b.ReportMetric(0, "ns/op")
}

// watchHeap samples the heap size, garbage included.
func watchHeap(stop <-chan struct{}, peak chan<- uint64) {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var most uint64
	for {
		metrics.Read(sample)
		most = max(most, sample[0].Value.Uint64())
		select {
		case <-stop:
			peak <- most
			return
		case <-tick.C:
		}
	}
}
