// Package tinybroker is a minimal at-least-once broker: an in-memory queue per
// topic, and a visibility timeout after which an unacknowledged message is
// redelivered. Its tests show how to put a system of your own under test with
// custodytest.
package tinybroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Broker keeps messages until they are acknowledged. Safe for concurrent use.
type Broker struct {
	visibility  time.Duration
	maxAttempts int

	mu      sync.Mutex
	topics  map[string][]*message // in publish order
	dead    map[string][]Delivery
	lastID  int
	changed chan struct{} // closed and replaced whenever a message may have become deliverable
}

type message struct {
	Delivery
	visible time.Time // deliverable from here on
	holder  *Subscription
}

// Delivery is one message held by a subscriber.
type Delivery struct {
	ID      string
	Topic   string
	Body    []byte
	Attempt int // from 1
}

// ErrLate means that the visibility timeout has passed and the message is
// redelivered or settled.
var ErrLate = errors.New("tinybroker: the delivery is no longer held")

// New makes a broker that redelivers after visibility and sets a message aside
// after maxAttempts.
func New(visibility time.Duration, maxAttempts int) *Broker {
	return &Broker{visibility: visibility, maxAttempts: maxAttempts, topics: make(map[string][]*message),
		dead: make(map[string][]Delivery), changed: make(chan struct{})}
}

// Publish stores a message and returns its ID.
func (b *Broker) Publish(topic string, body []byte) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastID++
	m := &message{Delivery: Delivery{ID: fmt.Sprint(b.lastID), Topic: topic, Body: bytes.Clone(body)}}
	b.topics[topic] = append(b.topics[topic], m)
	b.wake()
	return m.ID
}

// Dead returns the messages of a topic that were set aside.
func (b *Broker) Dead(topic string) []Delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setAside(topic, time.Now())
	return slices.Clone(b.dead[topic])
}

// All returns the messages of all topics: those that wait or are held, and those
// that were set aside.
func (b *Broker) All() (pending, dead []Delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for topic := range b.topics {
		b.setAside(topic, time.Now())
		for _, m := range b.topics[topic] {
			pending = append(pending, m.Delivery)
		}
		dead = append(dead, b.dead[topic]...)
	}
	return pending, dead
}

// Redrive gives a message that was set aside all its attempts again.
func (b *Broker) Redrive(id string) error {
	return b.take(id, func(d Delivery) {
		d.Attempt = 0
		b.topics[d.Topic] = append(b.topics[d.Topic], &message{Delivery: d})
		b.wake()
	})
}

// Discard removes a message that was set aside.
func (b *Broker) Discard(id string) error { return b.take(id, func(Delivery) {}) }

// take removes a message that was set aside, and does something with it.
func (b *Broker) take(id string, do func(Delivery)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for topic, dead := range b.dead {
		if i := slices.IndexFunc(dead, func(d Delivery) bool { return d.ID == id }); i >= 0 {
			do(dead[i])
			b.dead[topic] = slices.Delete(dead, i, i+1)
			return nil
		}
	}
	return fmt.Errorf("tinybroker: message %s was not set aside", id)
}

func (b *Broker) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Subscription competes with others for the messages of a topic.
type Subscription struct {
	broker *Broker
	topic  string
	window int
}

// Subscribe subscribes to a topic; window bounds the unacknowledged deliveries.
func (b *Broker) Subscribe(topic string, window int) *Subscription {
	return &Subscription{broker: b, topic: topic, window: window}
}

// Receive waits for the next delivery.
func (s *Subscription) Receive(ctx context.Context) (Delivery, error) {
	for {
		d, ok, changed, wait := s.next(time.Now())
		if ok {
			return d, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return Delivery{}, ctx.Err()
		}
		timer.Stop()
	}
}

// next takes the first deliverable message. If there is none, it returns what
// to wait for: a change, or the end of a visibility timeout.
func (s *Subscription) next(now time.Time) (d Delivery, ok bool, changed <-chan struct{}, wait time.Duration) {
	b := s.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setAside(s.topic, now)
	wait, held := b.visibility, 0
	for _, m := range b.topics[s.topic] {
		if left := m.visible.Sub(now); left > 0 {
			wait = min(wait, left)
			if m.holder == s {
				held++
			}
		}
	}
	if held >= s.window {
		return d, false, b.changed, wait
	}
	for _, m := range b.topics[s.topic] {
		if !m.visible.After(now) {
			m.Attempt++
			m.visible, m.holder = now.Add(b.visibility), s
			return m.Delivery, true, nil, 0
		}
	}
	return d, false, b.changed, wait
}

// setAside sets aside messages that have used all their attempts.
func (b *Broker) setAside(topic string, now time.Time) {
	kept := b.topics[topic][:0]
	for _, m := range b.topics[topic] {
		if m.Attempt >= b.maxAttempts && !m.visible.After(now) {
			b.dead[topic] = append(b.dead[topic], m.Delivery)
			continue
		}
		kept = append(kept, m)
	}
	clear(b.topics[topic][len(kept):])
	b.topics[topic] = kept
}

// Ack settles a delivery; the message is not redelivered.
func (s *Subscription) Ack(d Delivery) error {
	return s.settle(d, func(i int) {
		queue := s.broker.topics[s.topic]
		s.broker.topics[s.topic] = append(queue[:i:i], queue[i+1:]...)
	})
}

// Nack makes the message deliverable again at once.
func (s *Subscription) Nack(d Delivery) error {
	return s.settle(d, func(i int) { s.broker.topics[s.topic][i].visible = time.Time{} })
}

func (s *Subscription) settle(d Delivery, how func(i int)) error {
	b := s.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, m := range b.topics[s.topic] {
		if m.ID == d.ID && m.holder == s && m.Attempt == d.Attempt && m.visible.After(time.Now()) {
			how(i)
			b.wake()
			return nil
		}
	}
	return fmt.Errorf("message %s of %s, attempt %d: %w", d.ID, s.topic, d.Attempt, ErrLate)
}
