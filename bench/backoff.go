package bench

import (
	"context"
	"time"
)

// backoff spaces out tries: 10 ms, doubled up to 320 ms.
type backoff struct{ next time.Duration }

const firstBackoff, longestBackoff = 10 * time.Millisecond, 320 * time.Millisecond

// wait until the next try is due, or ctx ends.
func (b *backoff) wait(ctx context.Context) error {
	b.next = min(max(2*b.next, firstBackoff), longestBackoff)
	return pause(ctx, b.next)
}

// pause lets time pass where only time can bring something about: a back-off, a
// time to live, a watch for what must not happen. Nothing else waits this way.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
