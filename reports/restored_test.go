package reports

import (
	"reflect"
	"testing"

	"github.com/custodymq/custody/guarantees"
)

func TestRestored(t *testing.T) {
	of := func(age, lacked, never, back float64) guarantees.Judgement {
		return guarantees.Judgement{Verdicts: []guarantees.Verdict{{Measures: []guarantees.Measure{
			{Name: guarantees.MeasureBackupAge, Value: age}, {Name: guarantees.MeasureLacked, Value: lacked},
			{Name: guarantees.MeasureNotBack, Value: never}, {Name: guarantees.MeasureBack, Value: back},
		}}}}
	}
	store := guarantees.Judgement{Verdicts: []guarantees.Verdict{{Measures: []guarantees.Measure{
		{Name: guarantees.MeasureStoreAge, Value: 2500}, {Name: guarantees.MeasureStoreMissing, Value: 20}, {Name: guarantees.MeasureStoreSpan, Value: 2400},
		{Name: guarantees.MeasureStoreAgain, Value: 1}, {Name: guarantees.MeasureStoreBack, Value: 300},
	}}}}
	for _, c := range []struct {
		of   guarantees.Judgement
		want []string
	}{
		{guarantees.Judgement{}, nil},
		{store, []string{"store's backup of 2.5s ago lacked 20 accepted messages (RPO 2.4s)", "system back in 300ms (RTO)", "1 settled message came again"}},
		{of(1500, 1, 0, 250), []string{"backup lacked 1 effect (RPO 1.5s)", "back in 250ms (RTO)"}},
		{of(50, 3, 2, 20), []string{"backup lacked 3 effects (RPO 50ms)", "back in 20ms (RTO)", "2 never came back"}},
	} {
		if got := restored(c.of); !reflect.DeepEqual(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
