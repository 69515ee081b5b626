package broker

import (
	"context"
	"log/slog"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// audit logs events caused by strangers at a bounded rate, so that they cannot
// fill the disk. Each line says how many were dropped before it.
type audit struct {
	out     *slog.Logger
	pace    *rate.Limiter
	leftOut *atomic.Int64
}

const (
	auditPace  = 10 // lines per second
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
