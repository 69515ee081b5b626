package links

import "sync"

// Pending holds a connection's requests that await an answer, shared by its two
// framers. The oldest is dropped beyond a fixed number. Safe for concurrent
// use.
type Pending[K comparable, V any] struct {
	mu       sync.Mutex
	requests map[K]V
	order    []K // ring of keys, oldest at next once full
	next     int
	limit    int
}

// NewPending returns a Pending of at most limit requests.
func NewPending[K comparable, V any](limit int) *Pending[K, V] {
	return &Pending[K, V]{requests: make(map[K]V), limit: max(limit, 1)}
}

// Add stores a request, replacing one with the same key.
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

// Lookup returns the request of a key. It is kept, since an answer may be duplicated.
func (p *Pending[K, V]) Lookup(key K) (V, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.requests[key]
	return v, ok
}
