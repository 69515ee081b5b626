package ledger

import (
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
)

// window is a period during which something may explain an anomaly.
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

// failure is a crash, a restart or a store failure of the broker.
type failure struct {
	Stamp
	crashed bool // on its own, without an order
	store   bool // only its store failed; the broker went on
}

const (
	maxTroubles = 1 << 12 // later ones count as one that never ends
	maxFailures = 1 << 16 // later ones excuse nothing
)

// trouble records the start of a fault, active until it is healed; or, without
// a fault, a momentary event: an order, a standstill, the end of a process.
func (l *Ledger) trouble(fault string) {
	if n := len(l.troubles); n == maxTroubles {
		l.troubles[n-1].to = -1
		return
	}
	l.troubles.open(fault, l.Now.At)
	if fault == "" {
		l.troubles[len(l.troubles)-1].to = l.Now.At
	}
}

func (l *Ledger) fails(f failure) {
	if len(l.failures) < maxFailures {
		f.Stamp = l.Now
		l.failures = append(l.failures, f)
	}
}

// ClassOf returns the class of a fault, given its label.
func (v *View) ClassOf(fault string) evidence.Class { return v.class[fault] }

// FaultActive reports whether a fault is active whose class is not listed.
func (v *View) FaultActive(but ...evidence.Class) bool {
	for fault := range v.active {
		if !slices.Contains(but, v.class[fault]) {
			return true
		}
	}
	return false
}

// Calm reports whether nothing disturbed the system between the two times.
func (v *View) Calm(from, to time.Duration) bool { return !v.troubles.overlap(from, to) }

// StruckBetween reports whether a disturbance began between the two times.
func (v *View) StruckBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(v.troubles, func(w window) bool { return w.from >= from && w.from <= to })
}

// Paused reports whether the broker was paused at some time between the two.
func (v *View) Paused(from, to time.Duration) bool { return v.pauses.overlap(from, to) }

// Delayed reports whether a fault held or delayed frames on a link between the
// two times, or so shortly before that some may have arrived late.
func (v *View) Delayed(link Symbol, from, to time.Duration) bool {
	return v.held[link].overlap(from-v.Limits.InFlightBound, to)
}

// DelayedSince reports whether a fault holds or delays frames on any link, or
// did so after a time.
func (v *View) DelayedSince(at time.Duration) bool {
	for _, held := range v.held {
		if slices.ContainsFunc(held, func(w window) bool { return w.to < 0 || w.to > at }) {
			return true
		}
	}
	return false
}

// Failed reports whether the broker or its store ever failed or was restarted.
func (v *View) Failed() bool { return len(v.failures) > 0 }

func (v *View) FailedBetween(from, to Stamp) bool {
	return slices.ContainsFunc(v.failures, func(f failure) bool { return f.Seq > from.Seq && f.Seq < to.Seq })
}

// CrashedAround reports whether the broker crashed on its own between the call
// of an acknowledgement and the bound for carrying it out.
func (v *View) CrashedAround(r *Receipt) bool {
	return v.failedAround(r, func(f failure) bool { return f.crashed })
}

// MayOwe reports whether the effect of an acknowledgement may still be missing
// at a time because of a failure meanwhile. A failure of the store alone is an
// excuse until the store has worked again for as long as a recovery and a
// delete may take.
func (v *View) MayOwe(r *Receipt, at time.Duration) bool {
	if v.failedAround(r, func(f failure) bool { return !f.store }) {
		return true
	}
	return !v.Calm(at-v.Limits.RecoveryBound-v.Limits.DeleteBound, at) && v.failedAround(r, func(f failure) bool { return f.store })
}

func (v *View) failedAround(r *Receipt, which func(failure) bool) bool {
	return slices.ContainsFunc(v.failures, func(f failure) bool {
		return which(f) && f.Seq > r.AckCalled.Seq && (r.Confirm.Seq == 0 || f.At <= r.Confirm.At+v.Limits.DeleteBound)
	})
}
