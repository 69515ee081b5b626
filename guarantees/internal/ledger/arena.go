package ledger

import "github.com/cespare/xxhash/v2"

// Ref identifies one publish of a ledger; 0 means none.
type Ref uint32

// arena stores pointer-free values in chunks: it grows without copying, its
// addresses are stable, and the garbage collector never scans it.
type arena[T any] struct {
	chunks []*[arenaChunk]T
	n      uint32
}

const arenaChunk = 1 << 10

// grow adds k adjacent values and returns the index of the first, from 1.
func (a *arena[T]) grow(k uint32) uint32 {
	if room := arenaChunk - a.n%arenaChunk; k > room && k <= arenaChunk {
		a.n += room // adjacent values never straddle two chunks
	}
	first := a.n
	a.n += k
	for uint32(len(a.chunks))*arenaChunk < a.n {
		a.chunks = append(a.chunks, new([arenaChunk]T))
	}
	return first + 1
}

func (a *arena[T]) at(i uint32) *T {
	i--
	return &a.chunks[i/arenaChunk][i%arenaChunk]
}

// index finds publishes by a hash kept in their slots, using open addressing
// over 8-byte cells. The tag alone determines a cell's position, so growing
// never touches the slots.
type index struct {
	cells []cell
	n     int
}

type cell struct {
	tag uint32
	ref Ref
}

// find returns the first publish whose hash is h, or 0.
func (x *index) find(h uint64, same func(Ref) bool) Ref {
	if len(x.cells) == 0 {
		return 0
	}
	tag, mask := uint32(h>>32), uint32(len(x.cells)-1)
	for i := tag & mask; ; i = (i + 1) & mask {
		c := x.cells[i]
		if c.ref == 0 || c.tag == tag && same(c.ref) {
			return c.ref
		}
	}
}

// put adds a publish with a new hash.
func (x *index) put(h uint64, r Ref) {
	if 4*(x.n+1) > 3*len(x.cells) {
		old := x.cells
		x.cells = make([]cell, max(1<<10, 2*len(old)))
		for _, c := range old {
			if c.ref != 0 {
				x.place(c)
			}
		}
	}
	x.place(cell{uint32(h >> 32), r})
	x.n++
}

func (x *index) place(c cell) {
	mask := uint32(len(x.cells) - 1)
	i := c.tag & mask
	for x.cells[i].ref != 0 {
		i = (i + 1) & mask
	}
	x.cells[i] = c
}

// Hash returns a hash of s that is the same on every machine; 0 is reserved
// for "no ID". Among ten million IDs, two collide once in 370,000 runs.
func Hash(s string) uint64 {
	if s == "" {
		return 0
	}
	return max(1, xxhash.Sum64String(s))
}
