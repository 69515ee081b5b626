package runner

import (
	"context"
	"time"

	"github.com/custodymq/custody/tasks"
)

// backoff spaces retries: 10 ms, doubling up to 320 ms.
type backoff struct{ next time.Duration }

const firstBackoff, longestBackoff = 10 * time.Millisecond, 320 * time.Millisecond

// wait blocks until the next retry is due or ctx ends.
func (b *backoff) wait(ctx context.Context, rt tasks.Runtime) error {
	b.next = min(max(2*b.next, firstBackoff), longestBackoff)
	return rt.Sleep(ctx, b.next)
}
