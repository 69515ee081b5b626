package evidence

import (
	"slices"
	"strings"
	"time"
)

// Format 1 kept in free text what later formats keep in fields. Reading its
// events and rows fills in the fields, so that no other code parses text.

// commandWords are the first words of a reason that in format 1 denoted a command.
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

// fromFormat1 fills in the fields of an event of format 1.
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
		e.Offset, _ = time.ParseDuration(e.Reason) // 0 if it is malformed
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

// format1Cause of a dead letter or a look-up: format 1 distinguished only these.
func format1Cause(reason string) Cause {
	switch {
	case strings.Contains(reason, "expired"):
		return CauseExpired
	case reason != "":
		return CauseStated
	}
	return NoCause
}

// fromFormat1 fills in the fields of a row of format 1.
func (r *StoredRow) fromFormat1() {
	if r.State == RowDead {
		r.Cause = format1Cause(r.Reason)
	}
}
