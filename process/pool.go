package process

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Pool keeps servers that no run has struck, to spare the next run the start. A
// server is used by one run at a time. Safe for concurrent use; a nil Pool
// keeps nothing.
type Pool struct {
	mu     sync.Mutex
	idle   map[string][]Kept
	closed bool
}

// Kept is a server in a Pool.
type Kept interface {
	Untouched() bool // running, and neither struck nor changed
	Close(ctx context.Context) error
}

// maxIdle bounds the idle servers per key.
const maxIdle = 4

// NewPool returns an empty pool. The caller closes it.
func NewPool() *Pool { return &Pool{idle: make(map[string][]Kept)} }

// Take returns a server that was put under the same key, which encodes
// everything that makes servers interchangeable. ok is false if there is none.
func Take[S Kept](ctx context.Context, p *Pool, key string) (kept S, ok bool) {
	for {
		next := p.take(key)
		if next == nil {
			return kept, false
		}
		if kept, ok := next.(S); ok && kept.Untouched() {
			return kept, true
		}
		_ = next.Close(ctx) // it exited while idle, which concerns no run
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

// Put returns a server after a run. It is closed if it was struck or there is
// no room.
func (p *Pool) Put(ctx context.Context, key string, s Kept) error {
	if p == nil || !s.Untouched() || !p.keep(key, s) {
		return s.Close(ctx)
	}
	return nil
}

func (p *Pool) keep(key string, s Kept) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle[key]) >= maxIdle {
		return false
	}
	p.idle[key] = append(p.idle[key], s)
	return true
}

// Idle returns the number of idle servers.
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

// closeTimeout bounds closing the idle servers.
const closeTimeout = 30 * time.Second

// Close closes all idle servers, even after ctx has ended; none is kept from
// then on.
func (p *Pool) Close(ctx context.Context) error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
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
