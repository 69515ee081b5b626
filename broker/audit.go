package broker

import (
	"context"
	"log/slog"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// audit writes to the log what strangers cause, at a bounded pace, so that they
// cannot fill the disk with it. A line says how many were left out before it.
type audit struct {
	out     *slog.Logger
	pace    *rate.Limiter
	leftOut *atomic.Int64
}

const (
	auditPace  = 10 // lines a second
	auditBurst = 50
)

func newAudit(out *slog.Logger) audit {
	return audit{out: out, pace: rate.NewLimiter(auditPace, auditBurst), leftOut: new(atomic.Int64)}
}

func (a audit) log(what string, args ...any) {
	if !a.pace.Allow() {
		a.leftOut.Add(1)
		return
	}
	if n := a.leftOut.Swap(0); n > 0 {
		args = append(args, "leftOut", n)
	}
	a.out.Log(context.Background(), slog.LevelWarn, what, args...)
}
