package core

import (
	"container/heap"
	"time"
)

// timers is a heap of the messages that wait for a time; a message waits for at
// most one, and knows its place, so that it leaves without a trace.
type timers []*message

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	if t[i].wakes != t[j].wakes {
		return t[i].wakes < t[j].wakes
	}
	return t[i].rank < t[j].rank
}
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer, t[j].timer = i+1, j+1
}
func (t *timers) Push(x any) {
	m := x.(*message)
	*t = append(*t, m)
	m.timer = len(*t)
}
func (t *timers) Pop() any {
	old := *t
	m := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	m.timer = 0
	return m
}

func (t *timers) set(m *message, at time.Duration) {
	m.wakes = at
	if m.timer > 0 {
		heap.Fix(t, m.timer-1)
		return
	}
	heap.Push(t, m)
}

func (t *timers) stop(m *message) {
	if m.timer > 0 {
		heap.Remove(t, m.timer-1)
	}
}

func (t timers) next() (time.Duration, bool) {
	if len(t) == 0 {
		return 0, false
	}
	return t[0].wakes, true
}

// queue is a heap of pending messages, the oldest first. A message that left
// the pending state is dropped when it comes to the front.
type queue []*message

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].rank < q[j].rank }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(*message)) }
func (q *queue) Pop() any {
	old := *q
	m := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return m
}
