package guarantees

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var restoreComplete = Guarantee{
	Name: evidence.RestoreComplete, Usual: "RPO of the broker",
	Text: "A backup of the system's store has all that was accepted before it was made: of that a restore loses nothing.",
	Rule: "Per message accepted before the backup was asked for: it has its effect, is stored, or is excused as in no-accepted-loss. What was accepted later may be missing; how many messages are, and how long after the backup the last of them was accepted (RPO), is reported, as are the settled messages that came again, and how long the system was away from the beginning of the restore (RTO).",
	new:  func() checker { return &rollback{backups: map[string]stamp{}} },
}

// rollback follows the last restore of the system's store.
type rollback struct {
	backups  map[string]stamp // when each was asked for, by checkpoint
	backup   stamp            // that was restored
	restored stamp
	back     time.Duration // when the system was started after that; 0: not
	missing  int
	last     time.Duration // when the last missing one was accepted
	again    int
}

func (c *rollback) on() []evidence.Kind {
	return []evidence.Kind{evidence.Commanded, evidence.ProcessStarted}
}

func (c *rollback) observe(v view, e *evidence.Event, _ *message, _ *receipt, _ *ruling) {
	switch {
	case e.Actor != ledger.Broker:
	case e.Kind == evidence.ProcessStarted:
		if c.restored.Seq != 0 && c.back == 0 {
			c.back = e.At
		}
	case e.Command == evidence.CommandBackUp:
		c.backups[e.Checkpoint] = v.Now
	case e.Command == evidence.CommandRestore:
		c.backup, c.restored, c.back = c.backups[e.Checkpoint], v.Now, 0
	}
}

func (c *rollback) close(v view, m *message, out *ruling) {
	if c.backup.Seq == 0 || !m.Accepted() || !m.Returned.Before(c.restored) {
		return
	}
	before := m.Returned.Before(c.backup)
	for _, r := range v.obliged(m) {
		if r.Acked.Seq != 0 && r.Acked.Before(c.restored) && c.restored.Before(r.Last) {
			c.again++
		}
		o := v.fateOf(m, r)
		gone := o.fate == lost && o.handOver != ConsumerToBusiness // what its consumer has lost is no matter of the store
		switch {
		case !before && gone:
			c.missing++
			c.last = max(c.last, m.Returned.At)
			fallthrough
		case !before:
			continue
		case o.fate == waiting || o.fate == unproven:
			out.undecided(fmt.Sprintf("%s: %s", v.Label(m), o.why))
		case gone:
			f := v.finding(m, r, "not-restored", o.handOver, m.Returned.Seq, c.backup.Seq, c.restored.Seq)
			f.Text = fmt.Sprintf("%s was accepted before the backup was made, and is not there after its restore: %s", v.Label(m), o.why)
			f.Follows = []string{evidence.NoAcceptedLoss}
			out.violate(byAbsence, f)
		}
		out.instances++
	}
}

// Names of the measures of a restore of the system's store.
const (
	MeasureStoreAge     = "age of the store's backup"
	MeasureStoreMissing = "accepted messages that it lacked"
	MeasureStoreSpan    = "from the backup to the last of them"
	MeasureStoreAgain   = "settled messages that came again"
	MeasureStoreBack    = "time until the system was back"
)

func (c *rollback) conclude(_ view, out *ruling) {
	if c.backup.Seq == 0 {
		return
	}
	out.measures = []Measure{
		{MeasureStoreAge, milliseconds(c.restored.At - c.backup.At), "ms"},
		{MeasureStoreMissing, float64(c.missing), "messages"},
		{MeasureStoreAgain, float64(c.again), "messages"},
	}
	if c.missing > 0 {
		out.measures = append(out.measures, Measure{MeasureStoreSpan, milliseconds(c.last - c.backup.At), "ms"})
	}
	if c.back > 0 {
		out.measures = append(out.measures, Measure{MeasureStoreBack, milliseconds(c.back - c.restored.At), "ms"})
	}
}
