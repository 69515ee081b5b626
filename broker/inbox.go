package broker

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/transport"
)

// inbox queues the sessions' inputs for the loop, which takes them from the
// sessions in turn. Each session may queue a limited number of inputs and bytes;
// beyond that its reader blocks, so that backpressure affects only its own
// socket.
//
// Bytes beyond a session's allowance come from a shared pool, meant for large
// payloads. A small message takes from the pool only what is free at once;
// otherwise it waits for its own session's earlier inputs, so that it never waits
// along with a peer that has announced a large message.
type inbox struct {
	allowance int
	pool      *semaphore.Weighted
	wake      chan struct{} // capacity 1: there is input
	ctx       context.Context

	mu   sync.Mutex
	turn []*peer // sessions with input, the next one first
	asks []func(*Engine)
}

// said is an input with the bytes reserved for it.
type said struct {
	in   core.Input
	size int
}

// peer connects a session's reader with the loop.
type peer struct {
	id    core.Session
	conn  *transport.Conn
	inbox *inbox
	room  chan struct{} // capacity 1: the loop has taken inputs
	freed chan struct{} // capacity 1: bytes were released while the reader waited

	// Used by the reader only.
	batch []said
	size  int // reserved for the message being read

	// Guarded by inbox.mu.
	inputs []said
	bytes  int   // reserved
	pooled int64 // of these, taken from the pool
	scarce bool  // the reader waits for bytes
	listed bool  // is in inbox.turn, or parked by the loop

	// Used by the loop only.
	current []said // inputs taken; those from at on are not handled yet
	at      int
	deficit int // cost still allowed in this round; negative: owed
	touched bool
	lost    bool
}

const (
	queuedInputs = 256 // per session
	gatherInputs = 128 // per session, before they are handed to the loop
	inputCost    = 256 // bytes, in addition to those read
	poolShare    = 2   // the divisor of the memory for input that gives the pool's share
	leastReserve = 16 << 10
	poolLeast    = 8 << 20 // large enough for any single payload
	waitingAsks  = 64
)

// newInbox returns an inbox for that many sessions, which together may hold that
// many bytes.
func newInbox(ctx context.Context, sessions int, bytes int64) *inbox {
	return &inbox{
		allowance: max(int(bytes/poolShare)/sessions, leastReserve),
		pool:      semaphore.NewWeighted(max(bytes/poolShare, poolLeast)),
		wake:      make(chan struct{}, 1), ctx: ctx,
	}
}

func (b *inbox) enter(id core.Session, conn *transport.Conn) *peer {
	p := &peer{id: id, conn: conn, inbox: b, room: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
	conn.SetReserve(p.reserve)
	return p
}

// reserve blocks until a message or a part of it, of n bytes, may be read.
func (p *peer) reserve(n int) error {
	n += inputCost
	b := p.inbox
	switch {
	case p.own(n):
	case b.pool.TryAcquire(int64(n)):
		p.borrow(n)
	default:
		if err := p.hand(); err != nil { // inputs not yet handed over hold bytes too
			return err
		}
		if p.size+n > b.allowance { // would not fit even after all earlier inputs are handled
			if err := b.pool.Acquire(b.ctx, int64(n)); err != nil {
				return errEnded
			}
			p.borrow(n)
			break
		}
		for !p.own(n) {
			select {
			case <-p.freed:
			case <-b.ctx.Done():
				return errEnded
			}
		}
	}
	p.size += n
	return nil
}

// own takes n bytes from the session's allowance, if they are free.
func (p *peer) own(n int) bool {
	p.inbox.mu.Lock()
	defer p.inbox.mu.Unlock()
	p.scarce = p.bytes+n > p.inbox.allowance
	if !p.scarce {
		p.bytes += n
	}
	return !p.scarce
}

// borrow records n bytes taken from the pool.
func (p *peer) borrow(n int) {
	p.inbox.mu.Lock()
	defer p.inbox.mu.Unlock()
	p.bytes += n
	p.pooled += int64(n)
}

// add appends an input to the reader's batch.
func (p *peer) add(in core.Input) {
	p.batch = append(p.batch, said{in, p.size})
	p.size = 0
}

// hand passes the batch to the loop, once there is room for it. It returns an
// error once the loop takes no more input.
func (p *peer) hand() error {
	b := p.inbox
	for len(p.batch) > 0 {
		b.mu.Lock()
		full := len(p.inputs) >= queuedInputs
		if !full {
			p.inputs = append(p.inputs, p.batch...)
			if !p.listed {
				p.listed = true
				b.turn = append(b.turn, p)
			}
		}
		b.mu.Unlock()
		if !full {
			clear(p.batch)
			p.batch = p.batch[:0]
			b.signal()
			return nil
		}
		select {
		case <-p.room:
		case <-b.ctx.Done():
			return errEnded
		}
	}
	return nil
}

func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// leave releases what was reserved for a message that was not read completely.
func (p *peer) leave() {
	p.inbox.release(p, p.size)
	p.size = 0
}

// next removes and returns the session whose turn it is, or nil.
func (b *inbox) next() *peer {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.turn) == 0 {
		return nil
	}
	p := b.turn[0]
	b.turn[0] = nil
	b.turn = b.turn[1:]
	return p
}

// back queues a session for another turn if it has more input, and otherwise
// resets its deficit.
func (b *inbox) back(p *peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.listed = p.at < len(p.current) || len(p.inputs) > 0; p.listed {
		b.turn = append(b.turn, p)
	} else {
		p.deficit = 0
	}
}

// take is the next input of a session; nil if there is none. It holds until
// handled, or the next call.
func (b *inbox) take(p *peer) *core.Input {
	b.handled(p)
	if p.at == len(p.current) {
		b.mu.Lock()
		p.current, p.inputs, p.at = p.inputs, p.current[:0], 0
		b.mu.Unlock()
		select {
		case p.room <- struct{}{}:
		default:
		}
		if len(p.current) == 0 {
			return nil
		}
	}
	p.at++
	return &p.current[p.at-1].in
}

// handled gives back what the input that was taken last had reserved: its session
// may have nothing more to say, or wait for these bytes in order to say it.
func (b *inbox) handled(p *peer) {
	if p.at > 0 {
		last := &p.current[p.at-1]
		b.release(p, last.size)
		*last = said{}
	}
}

func (b *inbox) release(p *peer, n int) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	p.bytes -= n
	pooled := min(p.pooled, int64(n))
	p.pooled -= pooled
	if p.scarce {
		p.scarce = false
		select {
		case p.freed <- struct{}{}:
		default:
		}
	}
	b.mu.Unlock()
	if pooled > 0 {
		b.pool.Release(pooled)
	}
}

// ask makes the loop call f. It returns false if too many calls are waiting
// already.
func (b *inbox) ask(f func(*Engine)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.asks) == waitingAsks {
		return false
	}
	b.asks = append(b.asks, f)
	b.signal()
	return true
}

func (b *inbox) asked() []func(*Engine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	asks := b.asks
	b.asks = nil
	return asks
}

// waiting returns how many sessions wait for their turn.
func (b *inbox) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.turn)
}
