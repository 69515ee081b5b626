package guarantees

import (
	"slices"
	"time"
)

// window is a time during which something may explain what was seen.
type window struct {
	fault    string
	from, to time.Duration // to is -1 until the fault is healed
}

type windows []window

func (w *windows) open(fault string, at time.Duration) { *w = append(*w, window{fault, at, -1}) }

func (w windows) close(fault string, at time.Duration) {
	for i := range w {
		if w[i].fault == fault && w[i].to < 0 {
			w[i].to = at
		}
	}
}

// overlap reports whether any window shares a moment with [from, to].
func (w windows) overlap(from, to time.Duration) bool {
	return slices.ContainsFunc(w, func(w window) bool { return w.from <= to && (w.to < 0 || w.to >= from) })
}

// maxTroubles are told apart; those that follow count as one that never ends.
const maxTroubles = 1 << 12

// trouble notes a fault that begins to work, until it is healed, or, without a
// fault, a moment: an order, a standstill, the end of a process.
func (l *ledger) trouble(fault string) {
	if n := len(l.troubles); n == maxTroubles {
		l.troubles[n-1].to = -1
		return
	}
	l.troubles.open(fault, l.now.at)
	if fault == "" {
		l.troubles[len(l.troubles)-1].to = l.now.at
	}
}

// calm reports whether nothing disturbed the system between the two times.
func (l *ledger) calm(from, to time.Duration) bool { return !l.troubles.overlap(from, to) }

// struckBetween reports whether a disturbance began between the two times.
func (l *ledger) struckBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(l.troubles, func(w window) bool { return w.from >= from && w.from <= to })
}

// paused reports whether the broker stood still at some time between the two.
func (l *ledger) paused(from, to time.Duration) bool { return l.pauses.overlap(from, to) }

// delayed reports whether a fault held or delayed frames on a link so that one
// sent between the two times may have arrived after the second.
func (l *ledger) delayed(link uint32, from, to time.Duration) bool {
	return l.held[link].overlap(from-l.limits.InFlightBound, to)
}

// delayedSince reports whether a fault holds or delays frames on any link, or
// did so after a time.
func (l *ledger) delayedSince(at time.Duration) bool {
	for _, held := range l.held {
		if slices.ContainsFunc(held, func(w window) bool { return w.to < 0 || w.to > at }) {
			return true
		}
	}
	return false
}

// failure is a crash, a restart or a store failure of the broker.
type failure struct {
	stamp
	crashed bool // by itself
}

// maxFailures are remembered; later ones excuse nothing.
const maxFailures = 1 << 16

func (l *ledger) fails(crashed bool) {
	if len(l.failures) < maxFailures {
		l.failures = append(l.failures, failure{l.now, crashed})
	}
}

// failedAround reports whether a failure came between the call of an
// acknowledgement and the bound for what the system does for it.
func (l *ledger) failedAround(r *receipt, crashesOnly bool) bool {
	return slices.ContainsFunc(l.failures, func(f failure) bool {
		return (f.crashed || !crashesOnly) && f.seq > r.ackCalled.seq && (r.confirm.seq == 0 || f.at <= r.confirm.at+l.limits.DeleteBound)
	})
}

func (l *ledger) failedBetween(from, to stamp) bool {
	return slices.ContainsFunc(l.failures, func(f failure) bool { return f.seq > from.seq && f.seq < to.seq })
}
