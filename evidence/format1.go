package evidence

import (
	"slices"
	"strings"
	"time"
)

// Format 1 said in words what later formats say in fields. Its events and rows
// are given the fields when they are read, so that nothing behind this file
// ever reads a word.

// commandWords begin the reasons by which format 1 told of an order.
var commandWords = []struct {
	begins  string
	command Command
}{
	{"restart", CommandRestart},
	{"redrive", CommandRedrive},
	{"discard", CommandDiscard},
	{"restore to ", CommandRestore},
	{"rewind to ", CommandRewind},
	{"provoke ", CommandProvoke},
	{"kill", CommandKill},
	{"shutdown", CommandShutdown},
	{"pause", CommandPause},
}

var lookupWords = map[string]Standing{"stored": Stored, "settled": Settled, "dead": Dead, "not-seen": Absent, "forgotten": Forgotten}

// fromFormat1 puts the facts of an event of format 1 into their fields.
func (e *Event) fromFormat1() {
	switch e.Kind {
	case PublishReturned:
		e.OK = e.ClientResult == "ok"
		e.Duplicate = strings.HasPrefix(e.Reason, "duplicate")
	case LookupReturned:
		e.Standing = lookupWords[e.Reason]
		e.Cause = format1Cause(e.Reason)
	case DeadLettered:
		e.Cause = format1Cause(e.Reason)
	case FrameCarried:
		e.Negative = e.Reason != "" && e.Reason != "accepted"
	case SnapshotTaken:
		e.Checkpoint = e.Reason
	case DrainEnded:
		if i := slices.Index(drainReasonNames, e.Reason); i > 0 {
			e.Drain = DrainReason(i)
		}
	case ClockSet:
		e.Offset, _ = time.ParseDuration(e.Reason) // one that cannot be read is none
	case ProcessStarted:
		for _, word := range strings.Fields(e.Reason) {
			for _, prefix := range []string{"partition=", "migrates="} {
				if name, ok := strings.CutPrefix(word, prefix); ok {
					e.Partitions = append(e.Partitions, name)
				}
			}
		}
	case Commanded, Purged:
		for _, w := range commandWords {
			if rest, ok := strings.CutPrefix(e.Reason, w.begins); ok {
				if e.Command = w.command; strings.HasSuffix(w.begins, " to ") {
					e.Checkpoint, _, _ = strings.Cut(rest, " by ")
				}
				break
			}
		}
	}
}

// format1Cause of a dead letter or a look-up: only the two that format 1 could
// tell apart.
func format1Cause(reason string) Cause {
	switch {
	case strings.Contains(reason, "expired"):
		return CauseExpired
	case reason != "":
		return CauseStated
	}
	return NoCause
}

// fromFormat1 puts the facts of a row of format 1 into their fields.
func (r *StoredRow) fromFormat1() {
	if r.State == RowDead {
		r.Cause = format1Cause(r.Reason)
	}
}
