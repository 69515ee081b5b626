package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/tasks"
)

// Honest runs publishers at a steady rate and consumers that acknowledge every
// delivery. They reconnect whenever the broker is gone, and never publish a
// message twice.
type Honest struct {
	Server  *Server
	Journal *Journal
	Rate    float64       // publishes per second, all publishers together
	Phase   func() string // the phase to which latencies are attributed

	publishers, consumers tasks.Group

	mu        sync.Mutex
	out       map[uint64]*outstanding // messages unanswered or undelivered
	latencies map[string]*Latencies
}

// outstanding is a message in flight: when it was due, in which phase, and the
// broker's start count at that time.
type outstanding struct {
	at    time.Time
	phase string
	start int64

	accepted, delivered bool
}

// Latencies of one phase. Accept is measured from when a publish was due until
// its answer, Cycle until the answer to its acknowledgement. Messages that span a
// kill or restart, or were redelivered, are not counted.
type Latencies struct {
	Accept, Cycle []time.Duration
}

const (
	publishers    = 4
	consumers     = 2
	honestFilter  = "honest/#"
	honestTTL     = 24 * time.Hour
	answerBound   = time.Minute
	dialBound     = 10 * time.Second
	unansweredMax = 512 // per publisher
	longestFiller = 2 << 10
	window        = 64 // deliveries per consumer
)

// content returns the payload of message n: its number, and pseudorandom bytes
// derived from it.
func content(n uint64) []byte {
	source := rand.New(rand.NewPCG(n, 1))
	b := binary.BigEndian.AppendUint64(nil, n)
	for range source.IntN(longestFiller / 8) {
		b = binary.BigEndian.AppendUint64(b, source.Uint64())
	}
	return b
}

// Begin starts the clients. Publishing stops when publish is cancelled, consuming
// when consume is.
func (h *Honest) Begin(publish, consume context.Context) {
	h.out, h.latencies = map[uint64]*outstanding{}, map[string]*Latencies{}
	for i := range publishers {
		h.publishers.Go(func() { h.connected(publish, func(c *client.Conn) { h.publish(publish, c, i) }) })
	}
	for range consumers {
		h.consumers.Go(func() { h.connected(consume, func(c *client.Conn) { h.consume(consume, c) }) })
	}
}

// connected calls do with a session, and with a new one each time do returns,
// with backoff between failed dials.
func (h *Honest) connected(ctx context.Context, do func(*client.Conn)) {
	for pause := 10 * time.Millisecond; ctx.Err() == nil; {
		bounded, cancel := context.WithTimeout(ctx, dialBound)
		c, err := client.Dial(bounded, h.Server.Addr, client.Options{Name: "honest", Token: h.Server.Token})
		cancel()
		if err == nil {
			pause = 10 * time.Millisecond
			do(c)
			c.Close()
			continue
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		case <-ctx.Done():
		}
	}
}

func (h *Honest) publish(ctx context.Context, c *client.Conn, publisher int) {
	due := time.NewTicker(time.Duration(float64(publishers) / h.Rate * float64(time.Second)))
	defer due.Stop()
	type asked struct {
		n    uint64
		call *client.Call
	}
	calls := make(chan asked, unansweredMax)
	var answers tasks.Group
	answers.Go(func() {
		for a := range calls {
			if !h.answered(a.n, a.call) {
				c.Close()
			}
		}
	})
	defer answers.Wait()
	defer close(calls)
	for {
		select {
		case at := <-due.C:
			n := h.sending(at)
			call, err := c.Publish(ctx, wire.Message{
				Topic: fmt.Sprint("honest/", publisher), Mode: wire.AtLeastOnce, BusinessID: fmt.Sprint("honest-", n), TTL: honestTTL, Payload: content(n),
			})
			if err != nil {
				h.forget(n, refused)
				return
			}
			calls <- asked{n, call}
		case <-c.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

func (h *Honest) sending(at time.Time) uint64 {
	n := h.Journal.Send()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out[n] = &outstanding{at: at, phase: h.Phase(), start: h.Server.starts.Load()}
	return n
}

// forget journals word and stops tracking the message.
func (h *Honest) forget(n uint64, word string) {
	h.Journal.Note(word, n, "")
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.out, n)
}

// answered waits for the answer to a publish and journals it. It returns false if
// none came on a live connection.
func (h *Honest) answered(n uint64, call *client.Call) bool {
	ctx, cancel := context.WithTimeout(context.Background(), answerBound)
	defer cancel()
	reply, err := call.Wait(ctx)
	switch {
	case errors.Is(err, client.ErrRefused), err == nil && (reply.Answer == wire.Declined || reply.Answer == wire.Rejected),
		errors.Is(err, client.ErrDisconnected) && !call.Written():
		h.forget(n, refused)
	case errors.Is(err, client.ErrDisconnected), err == nil && reply.Answer != wire.Accepted:
		h.forget(n, unknown)
	case err != nil:
		h.forget(n, unanswered)
		return false
	default:
		h.Journal.Note(accepted, n, reply.MessageID)
		o := h.reached(n, func(o *outstanding) { o.accepted = true })
		h.count(o, func(l *Latencies, took time.Duration) { l.Accept = append(l.Accept, took) })
	}
	return true
}

// reached records a message's progress. It returns nil if the message is not
// tracked.
func (h *Honest) reached(n uint64, note func(*outstanding)) *outstanding {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.out[n]
	if o == nil {
		return nil
	}
	if note(o); o.accepted && o.delivered {
		delete(h.out, n)
	}
	return o
}

// count records a latency, unless the broker was started in between.
func (h *Honest) count(o *outstanding, add func(*Latencies, time.Duration)) {
	if o == nil || o.start != h.Server.starts.Load() {
		return
	}
	took := time.Since(o.at)
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.latencies[o.phase]
	if l == nil {
		l = &Latencies{}
		h.latencies[o.phase] = l
	}
	add(l, took)
}

// Undelivered returns the messages that were accepted but not delivered.
func (h *Honest) Undelivered() []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var left []uint64
	for n, o := range h.out {
		if o.accepted && !o.delivered {
			left = append(left, n)
		}
	}
	return left
}

func (h *Honest) consume(ctx context.Context, c *client.Conn) {
	subscribing, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	sub, err := c.Subscribe(subscribing, client.Filter{Topic: honestFilter, Mode: wire.AtLeastOnce, Window: window})
	if err != nil {
		return
	}
	type asked struct {
		n    uint64
		of   *outstanding // nil if it was delivered before
		call *client.Call
	}
	calls := make(chan asked, window)
	var answers tasks.Group
	answers.Go(func() {
		for a := range calls {
			if h.acknowledged(a.n, a.of, a.call) != nil {
				c.Close()
			}
		}
	})
	defer answers.Wait()
	defer close(calls)
	for {
		d, err := sub.Receive(ctx)
		if err != nil {
			return
		}
		n, of := h.delivered(d)
		call, err := d.AckStart()
		if err != nil {
			return
		}
		calls <- asked{n, of, call}
	}
}

func (h *Honest) delivered(d *client.Delivery) (uint64, *outstanding) {
	number, ok := strings.CutPrefix(d.BusinessID, "honest-")
	n, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil {
		n = math.MaxUint64 // a number that was never sent
	}
	if !bytes.Equal(d.Payload, content(n)) {
		h.Journal.Note(altered, n, d.MessageID)
		return n, nil
	}
	h.Journal.Note(delivered, n, d.MessageID)
	return n, h.reached(n, func(o *outstanding) { o.delivered = true })
}

func (h *Honest) acknowledged(n uint64, of *outstanding, call *client.Call) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerBound)
	defer cancel()
	reply, err := call.Wait(ctx)
	if err == nil && reply.Answer == wire.Accepted {
		h.Journal.Note(settled, n, "")
		h.count(of, func(l *Latencies, took time.Duration) { l.Cycle = append(l.Cycle, took) })
	}
	return err
}
