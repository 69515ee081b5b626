package broker

import (
	"context"
	"log/slog"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
)

// progress logs how far a long recovery is, during which no client is admitted.
type progress struct {
	log  *slog.Logger
	now  func() core.Instant
	of   int // 0: unknown
	done int
	told time.Duration
}

const tellEvery = time.Second

func newProgress(ctx context.Context, s store.Store, settled int, log *slog.Logger, now func() core.Instant) *progress {
	p := &progress{log: log, now: now, told: now().Elapsed}
	if counter, ok := s.(store.Counter); ok {
		if n, err := counter.Count(ctx, settled); err == nil { // if counting fails, Load reports why
			p.of = n
		}
	}
	return p
}

// add counts one row.
func (p *progress) add() {
	p.done++
	if p.done%64 != 0 {
		return
	}
	if at := p.now().Elapsed; at-p.told >= tellEvery {
		p.told = at
		p.log.Info("recovering", "rows", p.done, "of", p.of)
	}
}
