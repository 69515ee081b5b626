package guarantees

import (
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// rolledBack has the system's store put back to a backup between two publishes.
func rolledBack(t *tale, before, after string) *tale {
	command := func(c evidence.Command) {
		t.add(evidence.Event{Kind: evidence.Commanded, Actor: ledger.Broker, Command: c, Checkpoint: "backup"})
	}
	t.sub("c1#1", "g").publish(before)
	command(evidence.CommandBackUp)
	t.after(time.Second).publish(after).end("c1#1").exits(true).after(time.Second)
	command(evidence.CommandRestore)
	return t.after(200*time.Millisecond).boots("a").sub("c1#2", "g")
}

// What a restore of the system's store costs.
func TestARestoreOfTheStoreIsMeasured(t *testing.T) {
	const o0, o1, o2 = "p1-1-1", "p1-2-1", "p1-3-1"
	s := newTale().sub("c0#1", "g").publish(o0)
	s = rolledBack(s.end("c0#1"), o1, o2).serve("c1#2", o0, o1).drained("settled").rows("end").business(row(evidence.RowEffect, o0), row(evidence.RowEffect, o1))
	got := map[string]float64{}
	for _, v := range s.judge(t, evidence.RestoreComplete, evidence.RecoveryBounded).Verdicts {
		for _, m := range v.Measures {
			got[m.Name] = m.Value
		}
	}
	if got[MeasureStoreMissing] != 1 || got[MeasureStoreAge] < 2000 || got[MeasureStoreSpan] < 1000 || got[MeasureStoreSpan] >= 2000 ||
		got[MeasureStoreBack] < 200 || got[MeasureStoreBack] > 300 || got[MeasureStoreAgain] != 0 {
		t.Errorf("measured %v", got)
	}
	if _, business := got[MeasureBackupAge]; business {
		t.Errorf("the application's database was not restored: %v", got)
	}
}

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
