package core

// place is an element's position in a heap, counted from 1; 0 means that it is
// not in the heap.
type place = int32

// heap is a binary heap whose elements know their positions, so that any of them
// can be removed or moved in O(log n).
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

// fix restores the order after x's key has changed. It pushes an element that is
// not in the heap.
func (h *heap[T]) fix(x T) {
	if *h.place(x) == 0 {
		h.push(x)
		return
	}
	h.up(int(*h.place(x)) - 1)
	h.down(int(*h.place(x)) - 1)
}

// remove removes an element, if it is in the heap.
func (h *heap[T]) remove(x T) {
	if *h.place(x) == 0 {
		return
	}
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

// fifo is a queue that reuses its space when it becomes empty, and releases it if
// it is large.
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

// links are an element's links in a chain, to be embedded in the element.
type links[T any] struct{ prev, next *T }

func (l *links[T]) own() *links[T] { return l }

type linked[T any] interface {
	*T
	own() *links[T]
}

// chain is an intrusive doubly linked list. An element is in at most one chain at
// a time.
type chain[T any, P linked[T]] struct{ head, tail P }

func (c *chain[T, P]) push(x P) {
	*x.own() = links[T]{prev: c.tail}
	if c.tail != nil {
		c.tail.own().next = x
	} else {
		c.head = x
	}
	c.tail = x
}

func (c *chain[T, P]) remove(x P) {
	l := x.own()
	if l.prev != nil {
		P(l.prev).own().next = l.next
	} else {
		c.head = l.next
	}
	if l.next != nil {
		P(l.next).own().prev = l.prev
	} else {
		c.tail = l.prev
	}
	*l = links[T]{}
}

type messages = chain[message, *message]
