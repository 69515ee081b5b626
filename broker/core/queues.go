package core

// place is where an element stands in a heap, counted from 1; 0 is outside.
type place = int32

// heap is a binary heap whose elements know their places, so that one can be
// removed or moved in O(log n) without a search.
type heap[T any] struct {
	items  []T
	before func(a, b T) bool
	place  func(T) *place
}

func (h *heap[T]) len() int { return len(h.items) }

func (h *heap[T]) first() T { return h.items[0] }

func (h *heap[T]) push(x T) {
	h.items = append(h.items, x)
	h.up(len(h.items) - 1)
}

// fix restores the order after x has changed.
func (h *heap[T]) fix(x T) {
	i := int(*h.place(x)) - 1
	h.up(i)
	h.down(int(*h.place(x)) - 1)
}

func (h *heap[T]) remove(x T) {
	i, last := int(*h.place(x))-1, len(h.items)-1
	*h.place(x) = 0
	moved := h.items[last]
	var none T
	h.items[last] = none
	h.items = h.items[:last]
	if i == last {
		return
	}
	h.put(i, moved)
	h.fix(moved)
}

func (h *heap[T]) put(i int, x T) {
	h.items[i] = x
	*h.place(x) = place(i + 1)
}

func (h *heap[T]) up(i int) {
	x := h.items[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !h.before(x, h.items[parent]) {
			break
		}
		h.put(i, h.items[parent])
		i = parent
	}
	h.put(i, x)
}

func (h *heap[T]) down(i int) {
	x := h.items[i]
	for {
		child := 2*i + 1
		if child >= len(h.items) {
			break
		}
		if right := child + 1; right < len(h.items) && h.before(h.items[right], h.items[child]) {
			child = right
		}
		if !h.before(h.items[child], x) {
			break
		}
		h.put(i, h.items[child])
		i = child
	}
	h.put(i, x)
}

// fifo is a queue that gives its space back when it has been emptied.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(x T) {
	if q.head > len(q.items)/2 && q.head > 32 { // move down instead of growing
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, x)
}

func (q *fifo[T]) first() T { return q.items[q.head] }

func (q *fifo[T]) pop() T {
	x := q.items[q.head]
	var none T
	q.items[q.head] = none
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
		if cap(q.items) > 1024 {
			q.items = nil
		}
	}
	return x
}

// chain is a list of messages through their own links. A message stands in one
// chain at a time.
type chain struct{ head, tail *message }

func (l *chain) push(m *message) {
	m.prev, m.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = m
	} else {
		l.head = m
	}
	l.tail = m
}

func (l *chain) remove(m *message) {
	if m.prev != nil {
		m.prev.next = m.next
	} else {
		l.head = m.next
	}
	if m.next != nil {
		m.next.prev = m.prev
	} else {
		l.tail = m.prev
	}
	m.prev, m.next = nil, nil
}
