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
	for _, c := range []struct {
		of   guarantees.Judgement
		want []string
	}{
		{guarantees.Judgement{}, nil},
		{of(1500, 1, 0, 250), []string{"backup lacked 1 effect (RPO 1.5s)", "back in 250ms (RTO)"}},
		{of(50, 3, 2, 20), []string{"backup lacked 3 effects (RPO 50ms)", "back in 20ms (RTO)", "2 never came back"}},
	} {
		if got := restored(c.of); !reflect.DeepEqual(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
