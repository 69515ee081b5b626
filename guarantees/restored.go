package guarantees

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// restoration measures what a restored backup lacked, and how long it took until
// that was back: the recovery point and the recovery time of the application's
// database.
type restoration struct {
	taken   map[string]time.Duration // checkpoints
	effects []committed              // since the first of them
	missing map[effect]bool
	when    time.Duration // of the last restore
	age     time.Duration // of its backup then
	lacked  int
	back    time.Duration // when the last one was, that has come
}

type effect struct {
	of  ref
	sub symbol
}

type committed struct {
	effect
	at time.Duration
}

// maxCommitted bounds the effects that are kept. Of a longer run the oldest are
// forgotten, which a backup is most likely to have.
const maxCommitted = 1 << 16

func (c *restoration) observe(e *evidence.Event, m *message, r *receipt) {
	switch {
	case e.Kind == evidence.SnapshotTaken:
		if c.taken == nil {
			c.taken = map[string]time.Duration{}
		}
		if _, twice := c.taken[e.Checkpoint]; !twice && len(c.taken) < maxCommitted {
			c.taken[e.Checkpoint] = e.At
		}
	case e.Kind == evidence.Commanded && e.Command == evidence.CommandRestore && e.Actor != ledger.Broker:
		taken, known := c.taken[e.Checkpoint]
		if !known {
			return
		}
		c.when, c.age, c.back, c.missing = e.At, e.At-taken, 0, map[effect]bool{}
		for _, done := range c.effects {
			if done.at > taken {
				c.missing[done.effect] = true
			}
		}
		c.lacked = len(c.missing)
	case e.Kind == evidence.EffectCommitted && m != nil && r != nil && c.taken != nil:
		done := effect{m.Ref, r.Sub}
		if c.missing[done] {
			delete(c.missing, done)
			c.back = e.At
		}
		if len(c.effects) == maxCommitted {
			c.effects = c.effects[:copy(c.effects, c.effects[maxCommitted/2:])]
		}
		c.effects = append(c.effects, committed{done, e.At})
	}
}

// Names of the measures of a restore.
const (
	MeasureBackupAge = "age of the restored backup"
	MeasureLacked    = "effects that the backup lacked"
	MeasureNotBack   = "effects that never came back"
	MeasureBack      = "time until the last came back"
)

func (c *restoration) measures() []Measure {
	if c.missing == nil {
		return nil
	}
	list := []Measure{{MeasureBackupAge, milliseconds(c.age), "ms"}, {MeasureLacked, float64(c.lacked), "effects"}, {MeasureNotBack, float64(len(c.missing)), "effects"}}
	if c.back > 0 {
		list = append(list, Measure{MeasureBack, milliseconds(c.back - c.when), "ms"})
	}
	return list
}
