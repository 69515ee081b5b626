package transport

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/wire"
)

// Outgoing is the bounded queue of bytes to one peer. Senders only append; one
// goroutine writes everything gathered with a single call.
type Outgoing struct {
	nc   net.Conn
	opts Options
	wake chan struct{} // capacity 1
	took chan struct{} // capacity 1
	done chan struct{} // closed when the writer has ended

	mu      sync.Mutex
	full    [][]byte // buffers to write before queue; large payloads are referenced here instead of copied, if sharing is allowed
	queue   []byte
	waiting int // bytes in full and queue
	scratch []byte
	queued  int64 // bytes ever appended
	begun   int64 // of these, handed to the socket; corrected after a failed write to what the socket took
	idle    bool  // nothing appended since the last heartbeat

	beatEvery time.Duration // set by SetHeartbeat; 0 once Run has adopted it
	closing   bool          // write what is queued, then close
	err       error

	share   bool    // payloads are immutable after Send
	budget  *Budget // nil: not counted
	pending int64   // bytes queued or being written
}

// Budget limits the bytes waiting for all peers together. It is safe for
// concurrent use.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Limit returns the limit in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Exceeded reports whether more bytes are waiting than the limit allows.
func (b *Budget) Exceeded() bool { return b.used.Load() > b.limit }

func newOutgoing(nc net.Conn, o Options) *Outgoing {
	return &Outgoing{nc: nc, opts: o, wake: make(chan struct{}, 1), took: make(chan struct{}, 1), done: make(chan struct{})}
}

// Send enqueues a message. It neither blocks nor writes; Flush triggers the
// write. start is the stream position of the message's first byte, for Written.
// wire.ErrField means that the message cannot be encoded and that nothing was
// enqueued.
func (q *Outgoing) Send(m *wire.Message) (start int64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	head, err := wire.AppendHead(q.scratch[:0], m)
	if err != nil {
		return 0, err
	}
	q.scratch = head
	if err := q.ready(); err != nil {
		return 0, err
	}
	if len(q.queue) >= keepBuffer { // rather than copy it all again and again while it grows
		q.full = append(q.full, q.queue)
		q.queue = make([]byte, 0, keepBuffer)
	}
	start = q.queued
	before := len(q.queue)
	q.queue = appendFrame(q.queue, flagMore, head)
	if q.share && len(m.Payload) >= sharedPayload {
		q.queue = appendHeader(q.queue, 0, len(m.Payload))
		q.count(len(q.queue) - before + len(m.Payload))
		q.full = append(q.full, q.queue, m.Payload)
		q.queue = nil
	} else {
		q.queue = appendFrame(q.queue, 0, m.Payload)
		q.count(len(q.queue) - before)
	}
	q.idle = false
	return start, nil
}

func (q *Outgoing) sendCommand(body []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(); err != nil {
		return err
	}
	before := len(q.queue)
	q.queue = appendFrame(q.queue, flagCommand, body)
	q.count(len(q.queue) - before)
	return nil
}

// count accounts for n appended bytes.
func (q *Outgoing) count(n int) {
	q.waiting += n
	q.queued += int64(n)
	q.owe(int64(n))
}

func (q *Outgoing) owe(n int64) {
	q.pending += n
	if q.budget != nil {
		q.budget.used.Add(n)
	}
}

// SetBudget charges the bytes waiting for this peer to b. Run must be called
// afterwards, because only its end returns them.
func (q *Outgoing) SetBudget(b *Budget) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.budget = b
	b.used.Add(q.pending)
}

// Pending returns how many bytes are queued or being written.
func (q *Outgoing) Pending() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pending
}

func (q *Outgoing) ready() error {
	switch {
	case q.err != nil:
		return q.err
	case q.closing:
		return ErrClosed
	case q.waiting >= q.opts.Queue:
		return ErrFull
	}
	return nil
}

func appendFrame(dst []byte, flags byte, body []byte) []byte {
	return append(appendHeader(dst, flags, len(body)), body...)
}

func appendHeader(dst []byte, flags byte, size int) []byte {
	if size > 255 {
		dst = append(dst, flags|flagLong)
		return binary.BigEndian.AppendUint64(dst, uint64(size))
	}
	return append(dst, flags, byte(size))
}

// sharedPayload is the size in bytes from which copying a payload costs more than
// a separate write.
const sharedPayload = 16 << 10

// Share declares payloads immutable after Send, so that a large one sent to many
// peers is held once.
func (q *Outgoing) Share() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.share = true
}

// Flush wakes the writer.
func (q *Outgoing) Flush() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Took signals that the writer has taken what was queued, which is when to retry
// after ErrFull. It may coalesce signals.
func (q *Outgoing) Took() <-chan struct{} { return q.took }

// Written reports whether any byte of the message at start may have reached the
// socket. False is definitive only once the connection has ended.
func (q *Outgoing) Written(start int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return start < q.begun
}

// Run writes until Close, CloseAfterQueue or an error, then closes the
// connection. Exactly one goroutine must run it.
func (q *Outgoing) Run() error {
	defer close(q.done)
	defer q.discard()
	defer q.nc.Close()
	beat := time.NewTicker(q.opts.Heartbeat)
	defer beat.Stop()
	var writing []byte
	for {
		select {
		case <-q.wake:
			if d := q.newInterval(); d > 0 {
				beat.Reset(d)
			}
		case <-beat.C:
			q.beat()
		}
		var err error
		if writing, err = q.write(writing[:0]); err != nil {
			return err
		}
	}
}

// discard drops what will no longer be written and returns it to the budget.
func (q *Outgoing) discard() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.full, q.queue, q.waiting = nil, nil, 0
	q.owe(-q.pending)
}

func (q *Outgoing) newInterval() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.beatEvery
	q.beatEvery = 0
	return d
}

// beat sends a Ping if nothing else was sent for a whole interval.
func (q *Outgoing) beat() {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle {
		_, _ = q.Send(&wire.Message{Kind: wire.Ping}) // a full or closed queue needs no heartbeat
	}
	q.mu.Lock()
	q.idle = true
	q.mu.Unlock()
}

func (q *Outgoing) write(spare []byte) ([]byte, error) {
	q.mu.Lock()
	if q.err != nil {
		defer q.mu.Unlock()
		return nil, q.err
	}
	out, all, size := q.queue, net.Buffers(append(q.full, q.queue)), int64(q.waiting)
	q.full, q.queue, q.waiting = nil, spare, 0
	from := q.begun
	q.begun += size
	closing := q.closing
	q.mu.Unlock()
	select {
	case q.took <- struct{}{}:
	default:
	}

	if size > 0 {
		err := q.nc.SetWriteDeadline(time.Now().Add(q.opts.Write))
		n := int64(0)
		if err == nil {
			n, err = all.WriteTo(q.nc)
		}
		if err != nil {
			q.mu.Lock()
			q.begun = from + n
			q.mu.Unlock()
			return nil, q.fail(err)
		}
		q.mu.Lock()
		q.owe(-size)
		q.mu.Unlock()
	}
	if closing {
		return nil, q.fail(ErrClosed)
	}
	if cap(out) > keepBuffer {
		out = nil
	}
	return out, nil
}

func (q *Outgoing) fail(err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
	return q.err
}

// Close ends the connection at once; Receive and Run return.
func (q *Outgoing) Close() error {
	_ = q.fail(ErrClosed)
	err := q.nc.Close()
	q.Flush()
	return err
}

// CloseAfterQueue closes the connection once the queue has been written, or
// writing failed.
func (q *Outgoing) CloseAfterQueue() {
	q.mu.Lock()
	q.closing = true
	q.mu.Unlock()
	q.Flush()
}

// Done returns a channel that is closed when Run has ended.
func (q *Outgoing) Done() <-chan struct{} { return q.done }
