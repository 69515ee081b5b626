package kafka

import (
	"encoding/binary"
	"hash/crc32"
)

// batch is one record batch, the unit in which Kafka stores and carries
// messages (https://kafka.apache.org/documentation/#recordbatch).
type batch []byte

// Where the fields of a batch stand.
const (
	batchLength     = 8 // int32, of all that follows it
	batchMagic      = 16
	batchChecksum   = 17 // CRC-32C of all that follows it
	batchAttributes = 21
	batchProducer   = 43 // int64
	batchCount      = 57
	batchRecords    = 61
)

const (
	compressed    = 0x07 // bits of the attributes
	transactional = 0x10
	control       = 0x20
)

// batchAt reads the batch that begins b; not ok where none of today's format
// does, or only a part.
func batchAt(b []byte) (batch, bool) {
	if len(b) < batchRecords || b[batchMagic] != 2 {
		return nil, false
	}
	length := int64(int32(binary.BigEndian.Uint32(b[batchLength:])))
	if end := batchLength + 4 + length; end >= batchRecords && end <= int64(len(b)) {
		return batch(b[:end:end]), true
	}
	return nil, false
}

func (b batch) base() int64 { return int64(binary.BigEndian.Uint64(b)) }

func (b batch) producer() int64 { return int64(binary.BigEndian.Uint64(b[batchProducer:])) }

func (b batch) is(bits uint16) bool { return binary.BigEndian.Uint16(b[batchAttributes:])&bits != 0 }

func (b batch) sum() uint32 { return binary.BigEndian.Uint32(b[batchChecksum:]) }

func (b batch) setSum(sum uint32) { binary.BigEndian.PutUint32(b[batchChecksum:], sum) }

func (b batch) checksum() uint32 {
	return crc32.Checksum(b[batchAttributes:], crc32.MakeTable(crc32.Castagnoli))
}

// records yields the offset and the value of each message, which share the
// batch's memory. A compressed batch yields none, and neither do the marks of
// a transaction.
func (b batch) records(yield func(offset int64, value []byte) bool) {
	if b.is(compressed | control) {
		return
	}
	rest := []byte(b[batchRecords:])
	for range int32(binary.BigEndian.Uint32(b[batchCount:])) {
		length, n := binary.Varint(rest)
		if n <= 0 || length < 0 || length > int64(len(rest)-n) {
			return
		}
		record := rest[n : n+int(length)]
		rest = rest[n+int(length):]
		delta, value, ok := readRecord(record)
		if !ok || !yield(b.base()+delta, value) {
			return
		}
	}
}

// readRecord reads attributes, timestamp, offset, key and value; headers follow.
func readRecord(b []byte) (delta int64, value []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	b = b[1:]
	if _, b, ok = varint(b); !ok {
		return 0, nil, false
	}
	if delta, b, ok = varint(b); !ok {
		return 0, nil, false
	}
	if _, b, ok = varbytes(b); !ok {
		return 0, nil, false
	}
	value, _, ok = varbytes(b)
	return delta, value, ok
}

func varint(b []byte) (v int64, rest []byte, ok bool) {
	v, n := binary.Varint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}

// varbytes reads bytes with their length before them; -1 is none at all.
func varbytes(b []byte) (v, rest []byte, ok bool) {
	length, b, ok := varint(b)
	if !ok || length > int64(len(b)) {
		return nil, nil, false
	}
	if length < 0 {
		return nil, b, true
	}
	return b[:length:length], b[length:], true
}

// abort is a transaction of a producer that was aborted: its messages are left
// out from its first offset up to the mark of its end.
type abort struct{ producer, first int64 }

// recordsOf yields the messages of a record set but those of aborted
// transactions, which come in the order of their beginnings; a batch cut off at
// its end, as a broker sends it where its limit is reached, ends it.
func recordsOf(set []byte, aborted []abort) func(yield func(offset int64, value []byte) bool) {
	return func(yield func(offset int64, value []byte) bool) {
		out := make(map[int64]bool) // producers whose messages are left out
		for {
			b, ok := batchAt(set)
			if !ok {
				return
			}
			set = set[len(b):]
			for len(aborted) > 0 && aborted[0].first <= b.base() {
				out[aborted[0].producer] = true
				aborted = aborted[1:]
			}
			switch {
			case b.is(control): // the end of a transaction, whichever
				delete(out, b.producer())
				continue
			case b.is(transactional) && out[b.producer()]:
				continue
			}
			for offset, value := range b.records {
				if !yield(offset, value) {
					return
				}
			}
		}
	}
}
