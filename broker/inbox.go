package broker

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/transport"
)

// inbox holds what sessions have said until the loop takes it, from the sessions
// in turn. Each session may have a number of inputs and bytes there; its reader
// waits when it has used them up, so that only its own socket feels it.
//
// Bytes beyond a session's allowance come out of a pool that all share: for large
// payloads. A small message takes of the pool only what is free: otherwise it waits
// for what its own session has said before, so that nobody waits with it for a peer
// that has announced a large one.
type inbox struct {
	allowance int
	pool      *semaphore.Weighted
	wake      chan struct{} // capacity 1: something is here
	ctx       context.Context

	mu   sync.Mutex
	turn []*peer // have inputs here, the next first
	asks []func(*Engine)
}

// said is an input, and the bytes that it keeps reserved.
type said struct {
	in   core.Input
	size int
}

// peer is a session between its reader and the loop.
type peer struct {
	id    core.Session
	conn  *transport.Conn
	inbox *inbox
	room  chan struct{} // capacity 1: the loop has taken something
	freed chan struct{} // capacity 1: bytes were released for a reader that waits

	// Of the reader.
	batch []said
	size  int // of the message that is being read

	// Guarded by inbox.mu.
	inputs []said
	bytes  int   // reserved
	pooled int64 // of these, out of the pool
	scarce bool  // the reader waits for bytes to be released
	listed bool  // stands in inbox.turn, or is parked by the loop

	// Of the loop.
	current []said // taken, and not handled from at on
	at      int
	deficit int // what it may still cost in this round; below zero, what it owes
	touched bool
	lost    bool
}

const (
	queuedInputs = 256 // of one session
	gatherInputs = 128 // of one session, before the loop gets them
	inputCost    = 256 // bytes, beside those that were read
	poolShare    = 2   // half of what may be read ahead is the pool
	leastReserve = 16 << 10
	poolLeast    = 8 << 20 // of which one payload always fits
	waitingAsks  = 64
)

// newInbox makes one for so many sessions, that may hold so many bytes.
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

// reserve waits until a message of n bytes, or that part of one, may be read.
func (p *peer) reserve(n int) error {
	n += inputCost
	b := p.inbox
	switch {
	case p.own(n):
	case b.pool.TryAcquire(int64(n)):
		p.borrow(n)
	default:
		if err := p.hand(); err != nil { // what has been read holds bytes too
			return err
		}
		if p.size+n > b.allowance { // also when all before it is handled
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

// own takes n bytes of the session's allowance, if they are free.
func (p *peer) own(n int) bool {
	p.inbox.mu.Lock()
	defer p.inbox.mu.Unlock()
	p.scarce = p.bytes+n > p.inbox.allowance
	if !p.scarce {
		p.bytes += n
	}
	return !p.scarce
}

// borrow notes n bytes that were taken out of the pool.
func (p *peer) borrow(n int) {
	p.inbox.mu.Lock()
	defer p.inbox.mu.Unlock()
	p.bytes += n
	p.pooled += int64(n)
}

// add puts an input into the reader's batch.
func (p *peer) add(in core.Input) {
	p.batch = append(p.batch, said{in, p.size})
	p.size = 0
}

// hand gives the batch to the loop, once there is room for it. An error says that
// the loop takes nothing any more.
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

// leave gives back what a message that was not read to its end had reserved.
func (p *peer) leave() {
	p.inbox.release(p, p.size)
	p.size = 0
}

// next is the session whose turn it is; nil if nobody has said anything.
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

// back puts a session that has more at the end of the turn, and forgets the turn
// of one that has not.
func (b *inbox) back(p *peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.listed = p.at < len(p.current) || len(p.inputs) > 0; p.listed {
		b.turn = append(b.turn, p)
	} else {
		p.deficit = 0
	}
}

// take is the next input of a session; nil if there is none. It holds until the
// next call.
func (b *inbox) take(p *peer) *core.Input {
	if p.at > 0 {
		last := &p.current[p.at-1]
		b.release(p, last.size)
		*last = said{}
	}
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

// ask has the loop call f; false if too many wait already.
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

// waiting is how many sessions wait for their turn.
func (b *inbox) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.turn)
}
