package guarantees

import (
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
)

// What a backup lacked and how long it took until it was back.
func TestARestoreIsMeasured(t *testing.T) {
	const o1, o2, o3 = "p1-1-1", "p1-2-1", "p1-3-1"
	restored := func(again ...string) map[string]float64 {
		s := newTale().sub("c1#1", "g").publish(o1, o2, o3).deliver("c1#1", o1).effect("c1#1", o1)
		s.add(evidence.Event{Kind: evidence.SnapshotTaken, Checkpoint: "backup"})
		s.deliver("c1#1", o2).effect("c1#1", o2).deliver("c1#1", o3).effect("c1#1", o3)
		s.after(time.Second).add(evidence.Event{Kind: evidence.Commanded, Command: evidence.CommandRestore, Checkpoint: "backup"})
		for _, o := range again {
			s.after(100*time.Millisecond).effect("c1#1", o)
		}
		got := map[string]float64{}
		for _, v := range s.drained("").judge(t, evidence.RecoveryBounded).Verdicts {
			for _, m := range v.Measures {
				got[m.Name] = m.Value
			}
		}
		return got
	}
	all := restored(o2, o3)
	if all[MeasureLacked] != 2 || all[MeasureNotBack] != 0 || all[MeasureBackupAge] < 1000 || all[MeasureBack] < 200 || all[MeasureBack] > 300 {
		t.Errorf("with all back: %v", all)
	}
	if one := restored(o3); one[MeasureLacked] != 2 || one[MeasureNotBack] != 1 {
		t.Errorf("with one back: %v", one)
	}
	if none := restored(); none[MeasureNotBack] != 2 || none[MeasureBack] != 0 {
		t.Errorf("with none back: %v", none)
	}
}
