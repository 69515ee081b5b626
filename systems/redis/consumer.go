package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links/resp"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// consumer reads the stream for its group, one entry at a time and only during
// Receive: an entry requested by a Receive that was cancelled is kept for the
// next call. Safe for concurrent use; one Receive at a time waits for the
// server.
//
// Like Redis, its connection does one thing at a time: an acknowledgement waits
// for the end of a blocking read, which is short.
type consumer struct {
	clients
	*session
	destination, key string
	group, name      string
	// Entries leave it after claimIdle, whether or not this profile's consumers
	// claim them.
	window *systems.Window

	calls     chan *call    // to the goroutine that owns the connection
	done      chan struct{} // closed when that goroutine has ended
	receiving chan struct{} // semaphore: one Receive at a time

	// Guarded by receiving.
	reading   *call     // in progress
	read      reading   // its result; valid once it is done
	own       string    // last of its own pending entries that was read; empty: no more
	claimFrom string    // where the next claim starts
	claimNext time.Time // when the next claim is due
}

// call is one use of the connection.
type call struct {
	run  func(ctx context.Context)
	done chan struct{}
}

// join creates the group of a logical subscriber, at the beginning of the
// stream, unless it exists, and opens a consumer in it.
func (c clients) join(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	key := c.name(o.Destination)
	s, err := c.profile.open(ctx, cmp.Or(o.Address, c.address), func(ctx context.Context, s *session) error {
		err := s.client.XGroupCreateMkStream(ctx, key, o.Subscription, "0").Err()
		if err != nil && strings.HasPrefix(err.Error(), "BUSYGROUP ") {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	k := &consumer{
		clients: c, session: s, destination: o.Destination, key: key, group: o.Subscription, name: o.Name, window: systems.NewWindow(o.Window),
		calls: make(chan *call), done: make(chan struct{}), receiving: make(chan struct{}, 1),
		claimFrom: "0-0",
	}
	if c.profile.reads != newOnly {
		k.own = "0-0"
	}
	tasks.Go(k.run)
	return k, nil
}

// run makes the calls in order until the session ends.
func (c *consumer) run() {
	defer close(c.done)
	for {
		select {
		case next := <-c.calls:
			ctx, cancel := context.WithTimeout(context.Background(), c.profile.scaled(blockFor+replyWithin))
			next.run(ctx)
			cancel()
			close(next.done)
		case <-c.gone:
			return
		}
	}
}

// Close ends the session. Entries that it holds stay pending in the group.
func (c *consumer) Close(ctx context.Context) error {
	c.end()
	return ended(ctx, c.done)
}

func (c *consumer) Receive(ctx context.Context) (systems.Delivery, error) {
	select {
	case c.receiving <- struct{}{}:
		defer func() { <-c.receiving }()
	case <-c.gone:
		return nil, systems.ErrDisconnected
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		if c.reading == nil {
			if err := c.ask(ctx); err != nil {
				return nil, err
			}
		}
		select {
		case <-c.reading.done:
		case <-c.gone:
			return nil, systems.ErrDisconnected
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		c.reading = nil
		d, err := c.take(time.Now())
		if d != nil || err != nil {
			return d, err
		}
	}
}

// ask waits for room in the window and starts a read.
func (c *consumer) ask(ctx context.Context) error {
	if err := c.window.Wait(ctx, c.gone); err != nil {
		return err
	}
	read := &call{run: c.next(time.Now()), done: make(chan struct{})}
	select {
	case c.calls <- read:
		c.reading = read
		return nil
	case <-c.gone:
		return systems.ErrDisconnected
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reading is the result of a read.
type reading struct {
	from    source
	entry   *client.XMessage // nil: none
	attempt int              // 0: unknown
	cursor  string           // of a claim: where the next one starts
	err     error
}

// source says where an entry came from.
type source uint8

const (
	fromNew   source = iota // never delivered
	fromOwn                 // pending for this consumer
	fromClaim               // claimed after idling
)

// next reads first what is pending for this consumer, then what was left idle,
// then what is new.
func (c *consumer) next(now time.Time) func(context.Context) {
	switch {
	case c.own != "":
		after := c.own
		return func(ctx context.Context) { c.read = c.readGroup(ctx, fromOwn, after, -1) }
	case c.profile.reads == claim && !now.Before(c.claimNext):
		from := c.claimFrom
		return func(ctx context.Context) { c.read = c.claim(ctx, from) }
	}
	block := max(c.profile.scaled(blockFor), time.Millisecond) // 0 would block forever
	return func(ctx context.Context) { c.read = c.readGroup(ctx, fromNew, ">", block) }
}

func (c *consumer) readGroup(ctx context.Context, from source, after string, block time.Duration) reading {
	streams, err := c.client.XReadGroup(ctx, &client.XReadGroupArgs{
		Group: c.group, Consumer: c.name, Streams: []string{c.key, after}, Count: 1, Block: block,
	}).Result()
	r := reading{from: from, attempt: 1}
	switch {
	case errors.Is(err, client.Nil):
	case err != nil:
		r.err = err
	case len(streams) == 1 && len(streams[0].Messages) == 1:
		r.entry = &streams[0].Messages[0]
		if from != fromNew {
			r.attempt = c.attempt(ctx, r.entry.ID)
		}
	}
	return r
}

// claim takes over one entry that has been idle for claimIdle, of any consumer.
func (c *consumer) claim(ctx context.Context, from string) reading {
	entries, cursor, err := c.client.XAutoClaim(ctx, &client.XAutoClaimArgs{
		Stream: c.key, Group: c.group, Consumer: c.name, MinIdle: c.profile.scaled(claimIdle), Start: from, Count: 1,
	}).Result()
	r := reading{from: fromClaim, cursor: cursor, err: err}
	if err == nil && len(entries) == 1 {
		r.entry = &entries[0]
		r.attempt = c.attempt(ctx, r.entry.ID)
	}
	return r
}

// attempt reads the server's delivery count of an entry; 0 if it has none.
func (c *consumer) attempt(ctx context.Context, id string) int {
	pending, err := c.client.XPendingExt(ctx, &client.XPendingExtArgs{Stream: c.key, Group: c.group, Start: id, End: id, Count: 1}).Result()
	if err != nil || len(pending) != 1 {
		return 0
	}
	return int(pending[0].RetryCount)
}

// take turns the result of a read into a delivery; it returns neither delivery
// nor error if there was none.
func (c *consumer) take(now time.Time) (systems.Delivery, error) {
	r := c.read
	if r.err != nil {
		c.end() // the connection or the group is gone: a new session recreates it
		return nil, fmt.Errorf("%w: read %s: %w", systems.ErrDisconnected, c.key, r.err)
	}
	switch {
	case r.from == fromOwn && r.entry == nil:
		c.own = ""
	case r.from == fromOwn:
		c.own = r.entry.ID
	case r.from == fromClaim:
		c.claimFrom = r.cursor
		if r.entry == nil && r.cursor == "0-0" { // the scan is complete
			c.claimNext = now.Add(c.profile.scaled(claimEvery))
		}
	}
	if r.entry == nil || r.entry.Values == nil { // deleted while pending
		return nil, nil
	}
	d := &delivery{consumer: c, id: r.entry.ID, message: decode(c.destination, c.key, *r.entry), attempt: r.attempt, again: r.from != fromNew}
	c.window.Enter(d, now.Add(c.profile.scaled(claimIdle)))
	return d, nil
}

// delivery is one entry held by the application.
type delivery struct {
	consumer *consumer
	id       string
	message  systems.Message
	attempt  int
	again    bool
}

func (d *delivery) Message() systems.Message { return d.message }

func (d *delivery) Attempt() (int, bool) { return d.attempt, d.attempt > 0 }

func (d *delivery) Mark() evidence.Mark {
	if d.again {
		return evidence.MarkRedelivered
	}
	return evidence.MarkFirst
}

// Ack is confirmed by XACK's count of entries removed from the group's pending
// list: this one, or none.
func (d *delivery) Ack(ctx context.Context) (evidence.AckOutcome, error) {
	c := d.consumer
	var n int64
	var err error
	ack := &call{done: make(chan struct{}), run: func(ctx context.Context) {
		if n, err = c.client.XAck(ctx, c.key, c.group, d.id).Result(); err == nil {
			c.window.Leave(d) // even if the caller no longer waits
		}
	}}
	what := "ack of " + resp.MessageID(c.key, d.id)
	select {
	case c.calls <- ack:
	case <-c.gone:
		return evidence.AckUnknown, fmt.Errorf("redis: %s was not sent: %w", what, systems.ErrDisconnected)
	case <-ctx.Done():
		return evidence.AckUnknown, fmt.Errorf("redis: %s was not sent: %w", what, context.Cause(ctx))
	}
	select {
	case <-ack.done:
	case <-ctx.Done():
		return evidence.AckUnknown, fmt.Errorf("redis: %s has no answer: %w", what, context.Cause(ctx))
	}
	var reply client.Error
	switch {
	case errors.As(err, &reply):
		return evidence.AckRefused, fmt.Errorf("redis: %s: %w", what, err)
	case err != nil:
		return evidence.AckUnknown, fmt.Errorf("redis: %s: %w: %w", what, systems.ErrDisconnected, err)
	}
	if n == 0 {
		return evidence.AckRefused, fmt.Errorf("redis: %s: no longer pending", what)
	}
	return evidence.AckConfirmed, nil
}
