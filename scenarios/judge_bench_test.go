package scenarios_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/scenarios"
)

// BenchmarkJudgeFile reads, decodes and judges a saved run of 100,000 messages,
// five events each.
func BenchmarkJudgeFile(b *testing.B) {
	const messages = 100_000
	dir := filepath.Join(b.TempDir(), "run")
	m := evidence.Manifest{Run: "run", System: "bench", Scenario: "bench", Scale: 1, Expect: []string{evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.Order},
		Profile: evidence.Profile{Name: "bench", AckConfirms: true, Limits: evidence.Limits{OrderScope: "connection"}}}
	rec, err := evidence.Create(dir, m, []byte("scenario bench\nexpect no-accepted-loss, no-phantom, order\n"))
	if err != nil {
		b.Fatal(err)
	}
	rec.Record(evidence.Event{Kind: evidence.SubscribeCalled, Actor: "c1", Session: "c1#1", Subscription: "orders", Destination: "orders"})
	rec.Record(evidence.Event{Kind: evidence.SubscribeReturned, Actor: "c1", Session: "c1#1", Subscription: "orders", Destination: "orders", OK: true})
	for i := 1; i <= messages; i++ {
		e := evidence.Event{Kind: evidence.PublishCalled, Actor: "p1", Session: "p1#1", Destination: "orders", BusinessID: fmt.Sprintf("order-%d", i),
			PublishID: evidence.PublishID("p1", i, 1), Digest: "0123456789abcdef"}
		rec.Record(e)
		e.Kind, e.MessageID, e.Acceptance, e.HeldBy, e.ClientResult = evidence.PublishReturned, fmt.Sprintf("m-%d", i), evidence.Accepted, evidence.HeldByStore, "ok"
		rec.Record(e)
		e.Actor, e.Session, e.Subscription, e.Acceptance, e.HeldBy, e.ClientResult = "c1", "c1#1", "orders", evidence.Unknown, evidence.HeldByNobody, ""
		e.Kind, e.Mark, e.Attempt = evidence.Delivered, evidence.MarkFirst, 1
		rec.Record(e)
		e.Kind, e.Mark, e.Attempt = evidence.AckCalled, evidence.MarkNone, 0
		rec.Record(e)
		e.Kind, e.Ack = evidence.AckReturned, evidence.AckConfirmed
		rec.Record(e)
	}
	rec.Record(evidence.Event{Kind: evidence.DrainEnded, Reason: "settled"})
	if err := rec.Close(evidence.End{How: evidence.EndCompleted}); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for b.Loop() {
		j, err := scenarios.Judge(dir)
		if err != nil {
			b.Fatal(err)
		}
		if len(j.Anomalies) > 0 || j.Error != "" {
			b.Fatalf("%s %v", j.Error, j.Anomalies)
		}
	}
	b.ReportMetric(float64(5*messages*b.N)/b.Elapsed().Seconds(), "events/s")
}
