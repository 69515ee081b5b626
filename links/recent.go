package links

import "sync"

// Recent remembers what was asked on a connection, until the answer comes: the
// two framers of a connection share one. The oldest is forgotten when a peer
// leaves more than a fixed number unanswered. Safe for concurrent use.
type Recent[K comparable, V any] struct {
	mu    sync.Mutex
	asked map[K]V
	order []K // ring of the keys, oldest at next once it is full
	next  int
	limit int
}

// NewRecent remembers at most limit questions.
func NewRecent[K comparable, V any](limit int) *Recent[K, V] {
	return &Recent[K, V]{asked: make(map[K]V), limit: max(limit, 1)}
}

// Ask notes a question. Asked again under the same key, the newer one counts.
func (r *Recent[K, V]) Ask(key K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.order) < r.limit {
		r.order = append(r.order, key)
	} else {
		delete(r.asked, r.order[r.next])
		r.order[r.next] = key
		r.next = (r.next + 1) % r.limit
	}
	r.asked[key] = v
}

// Asked gives the question under a key. It stays known: an answer may come twice.
func (r *Recent[K, V]) Asked(key K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.asked[key]
	return v, ok
}
