package core

import (
	"encoding/binary"
	"hash/maphash"
)

// finished keeps the IDs of finished messages, oldest first, in a few byte chunks
// and a pointer-free index: about 60 bytes per message, plus its two IDs.
//
// The index holds hashes. Two live records with the same hash are not
// distinguished: the newer displaces the older, which add reports, so that the
// caller never considers the older one proven absent.
type finished struct {
	chunks [][]byte
	base   uint64 // position of the first byte of chunks[0]
	head   uint64 // of the oldest record
	tail   uint64 // where the next record goes
	n      int
	index  map[uint64]uint64 // hash of an ID, or of a business ID and a state → position
	seed   maphash.Seed
}

// record is one finished message.
type record struct {
	state          state
	id, businessID []byte // valid until the record is forgotten
	inserted       int64  // wall clock, ns
	until          int64  // when it may be forgotten, wall clock, ns
}

const (
	chunkSize    = 64 << 10
	recordHeader = 3 + 8 + 8 // state, sizes of both IDs, inserted, until
	recordIndex  = 2 * 36    // approximate size of the index entries per record
)

func newFinished() finished {
	return finished{index: map[uint64]uint64{}, seed: maphash.MakeSeed()}
}

// bytes returns the memory used by the records and their index.
func (f *finished) bytes() int64 { return int64(len(f.chunks))*chunkSize + int64(f.n)*recordIndex }

// add appends a record. displaced is the insertion time of the youngest message
// that can no longer be found as a result, or 0.
func (f *finished) add(id, businessID string, st state, inserted, until int64) (displaced int64) {
	id, businessID = id[:min(len(id), 255)], businessID[:min(len(businessID), 255)]
	size := uint64(recordHeader + len(id) + len(businessID))
	if room := chunkSize - f.tail%chunkSize; room < size {
		f.tail += room // a zero state marks the unused end
	}
	if f.n == 0 {
		f.head = f.tail
	}
	if f.tail >= f.base+uint64(len(f.chunks))*chunkSize {
		f.chunks = append(f.chunks, make([]byte, chunkSize))
	}
	at := f.at(f.tail)[:0]
	at = append(at, byte(st), byte(len(id)), byte(len(businessID)))
	at = binary.LittleEndian.AppendUint64(at, uint64(inserted))
	at = binary.LittleEndian.AppendUint64(at, uint64(until))
	_ = append(append(at, id...), businessID...)
	position := f.tail
	f.tail += size
	f.n++

	key := f.idKey(id)
	if old, there := f.index[key]; there {
		if r := f.read(old); string(r.id) != id {
			displaced = r.inserted
		}
	}
	f.index[key] = position
	if businessID != "" {
		key := f.businessKey(businessID, st)
		if old, there := f.index[key]; there {
			if r := f.read(old); string(r.businessID) != businessID || r.state != st {
				displaced = max(displaced, r.inserted)
			}
		}
		f.index[key] = position
	}
	return displaced
}

func (f *finished) idKey(id string) uint64 { return maphash.String(f.seed, id) }

func (f *finished) businessKey(id string, st state) uint64 {
	return maphash.String(f.seed, id) ^ stateKey(st)
}

func stateKey(st state) uint64 { return uint64(st) * 0x9e3779b97f4a7c15 }

func (f *finished) at(position uint64) []byte {
	offset := position - f.base
	return f.chunks[offset/chunkSize][offset%chunkSize:]
}

func (f *finished) read(position uint64) record {
	b := f.at(position)
	id, businessID := int(b[1]), int(b[2])
	ids := b[recordHeader:]
	return record{
		state: state(b[0]), id: ids[:id], businessID: ids[id : id+businessID],
		inserted: int64(binary.LittleEndian.Uint64(b[3:])), until: int64(binary.LittleEndian.Uint64(b[11:])),
	}
}

// find looks a message ID up.
func (f *finished) find(id string) (record, bool) {
	position, there := f.index[f.idKey(id)]
	if !there {
		return record{}, false
	}
	r := f.read(position)
	return r, string(r.id) == id
}

// latest returns the newest record of a business ID that ended in this state.
func (f *finished) latest(businessID string, st state) (record, bool) {
	position, there := f.index[f.businessKey(businessID, st)]
	if !there {
		return record{}, false
	}
	r := f.read(position)
	return r, r.state == st && string(r.businessID) == businessID
}

// oldest returns the record that drop would remove.
func (f *finished) oldest() record { return f.read(f.head) }

func (f *finished) drop() {
	r := f.oldest()
	for _, key := range [...]uint64{maphash.Bytes(f.seed, r.id), maphash.Bytes(f.seed, r.businessID) ^ stateKey(r.state)} {
		if position, there := f.index[key]; there && position == f.head {
			delete(f.index, key)
		}
	}
	f.head += uint64(recordHeader + len(r.id) + len(r.businessID))
	f.n--
	if f.n == 0 {
		f.tail += (chunkSize - f.tail%chunkSize) % chunkSize
		f.chunks, f.head, f.base = nil, f.tail, f.tail
		return
	}
	if left := chunkSize - f.head%chunkSize; left < recordHeader || f.at(f.head)[0] == 0 {
		f.head += left
	}
	for f.head >= f.base+chunkSize {
		f.chunks[0] = nil
		f.chunks = f.chunks[1:]
		f.base += chunkSize
	}
}
