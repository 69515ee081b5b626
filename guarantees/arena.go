package guarantees

import "math/bits"

// ref names one publish in the ledger; 0 is none.
type ref uint32

// arena holds values without pointers in chunks: it grows without copying, its
// addresses are stable, and the garbage collector never looks inside.
type arena[T any] struct {
	chunks []*[arenaChunk]T
	n      uint32
}

const arenaChunk = 1 << 10

// grow adds k values side by side and gives the index of the first, from 1.
func (a *arena[T]) grow(k uint32) uint32 {
	if room := arenaChunk - a.n%arenaChunk; k > room && k <= arenaChunk {
		a.n += room // neighbours never straddle two chunks
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

// index finds publishes by a hash that is kept in their slots: open addressing
// over cells of eight bytes. The tag alone places a cell, so growing never
// touches the slots.
type index struct {
	cells []cell
	n     int
}

type cell struct {
	tag uint32
	ref ref
}

// find gives the first publish whose hash is h, or 0.
func (x *index) find(h uint64, same func(ref) bool) ref {
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

// put adds a publish whose hash is not there yet.
func (x *index) put(h uint64, r ref) {
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

// hash is a 64-bit hash of s, the same on every machine (a judgement must be).
// Two of ten million IDs agree by accident once in 370,000 runs. 0 is kept for
// "no ID".
func hash(s string) uint64 {
	if s == "" {
		return 0
	}
	const k0, k1 = 0xa0761d6478bd642f, 0xe7037ed1a0b428db
	h := uint64(len(s)) * k0
	for len(s) > 8 {
		h = fold(h^word(s), k1)
		s = s[8:]
	}
	return max(1, fold(fold(h^word(s), k1), k0))
}

// word reads up to eight bytes of s, little-endian.
func word(s string) (w uint64) {
	if len(s) >= 8 {
		return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	}
	for i := len(s) - 1; i >= 0; i-- {
		w = w<<8 | uint64(s[i])
	}
	return w
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x8ebc6af09c88c6e3, b)
	return hi ^ lo
}
