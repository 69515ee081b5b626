package process

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Pool keeps servers that no run has struck, so that the next run which needs
// the same one does not wait for its start. A server is used by one run at a
// time. Safe for concurrent use; a nil Pool keeps nothing.
type Pool struct {
	mu     sync.Mutex
	idle   map[string][]Kept
	closed bool
}

// Kept is a server as a Pool sees it.
type Kept interface {
	Untouched() bool // it runs, and nothing has struck or changed it
	Close(ctx context.Context) error
}

// idleLimit is how many servers of one key wait for their next run.
const idleLimit = 4

// NewPool makes an empty pool. Its user closes it.
func NewPool() *Pool { return &Pool{idle: make(map[string][]Kept)} }

// Take gives a server that was put back under the same key, which names
// everything that makes two servers alike; ok is false if there is none.
func Take[S Kept](ctx context.Context, p *Pool, key string) (kept S, ok bool) {
	for {
		next := p.take(key)
		if next == nil {
			return kept, false
		}
		if kept, ok := next.(S); ok && kept.Untouched() {
			return kept, true
		}
		_ = next.Close(ctx) // it ended while it was idle, which no run has to hear of
	}
}

func (p *Pool) take(key string) Kept {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	waiting := p.idle[key]
	if len(waiting) == 0 {
		return nil
	}
	last := waiting[len(waiting)-1]
	p.idle[key] = waiting[:len(waiting)-1]
	return last
}

// Put gives a server back after a run. One that was struck, or for which there
// is no room, is closed.
func (p *Pool) Put(ctx context.Context, key string, s Kept) error {
	if p == nil || !s.Untouched() || !p.keep(key, s) {
		return s.Close(ctx)
	}
	return nil
}

func (p *Pool) keep(key string, s Kept) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle[key]) >= idleLimit {
		return false
	}
	p.idle[key] = append(p.idle[key], s)
	return true
}

// Idle is how many servers wait.
func (p *Pool) Idle() int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, waiting := range p.idle {
		n += len(waiting)
	}
	return n
}

// closeBound bounds the end of the servers that were kept.
const closeBound = 30 * time.Second

// Close ends every server that waits, also after ctx has ended; none is kept
// from then on.
func (p *Pool) Close(ctx context.Context) error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeBound)
	defer cancel()
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	var errs []error
	for _, waiting := range idle {
		for _, s := range waiting {
			errs = append(errs, s.Close(ctx))
		}
	}
	return errors.Join(errs...)
}
