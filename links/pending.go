package links

import "sync"

// Pending holds the requests of a connection that wait for an answer: the
// two framers of a connection share one. The oldest is dropped when a peer
// leaves more than a fixed number unanswered. Safe for concurrent use.
type Pending[K comparable, V any] struct {
	mu       sync.Mutex
	requests map[K]V
	order    []K // ring of the keys, oldest at next once it is full
	next     int
	limit    int
}

// NewPending holds at most limit requests.
func NewPending[K comparable, V any](limit int) *Pending[K, V] {
	return &Pending[K, V]{requests: make(map[K]V), limit: max(limit, 1)}
}

// Add stores a request. A later one under the same key replaces it.
func (p *Pending[K, V]) Add(key K, v V) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.order) < p.limit {
		p.order = append(p.order, key)
	} else {
		delete(p.requests, p.order[p.next])
		p.order[p.next] = key
		p.next = (p.next + 1) % p.limit
	}
	p.requests[key] = v
}

// Lookup returns the request under a key. It stays: an answer may come twice.
func (p *Pending[K, V]) Lookup(key K) (V, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.requests[key]
	return v, ok
}
