package explore

import (
	"testing"
)

// BenchmarkSchedules draws, simulates, hashes and judges schedules on one core.
func BenchmarkSchedules(b *testing.B) {
	b.ReportAllocs()
	desc, run := atLeastOnce.Describe(), simulator(atLeastOnce, "")
	for i := range b.N {
		j, _, _ := run(b.Context(), Generate(desc, uint64(i)), uint64(i))
		if len(j.Broken) > 0 {
			b.Fatalf("seed %d: %s", i, j.Why)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "schedules/s")
}
