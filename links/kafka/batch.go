package kafka

import (
	"encoding/binary"
	"hash/crc32"
)

// batch is a record batch, the unit in which Kafka stores and sends messages
// (https://kafka.apache.org/documentation/#recordbatch).
type batch []byte

// Field offsets.
const (
	batchLength     = 8 // int32: length of what follows
	batchMagic      = 16
	batchChecksum   = 17 // CRC-32C of what follows
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

// batchAt returns the batch at the start of b; ok is false if it is incomplete
// or of an old format.
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

// records yields offset and value of each message, aliasing the batch.
// Compressed and control batches yield none.
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

// readRecord parses attributes, timestamp, offset, key and value, before the
// headers.
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

// varbytes parses length-prefixed bytes; length -1 is null.
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

// abort is an aborted transaction: its producer's messages are skipped from the
// first offset to its control record.
type abort struct{ producer, first int64 }

// recordsOf yields the messages of a record set, without those of aborted
// transactions (sorted by first offset). It ends at a truncated batch, which
// brokers send at the size limit.
func recordsOf(set []byte, aborted []abort) func(yield func(offset int64, value []byte) bool) {
	return func(yield func(offset int64, value []byte) bool) {
		out := make(map[int64]bool) // producers being skipped
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
			case b.is(control): // a commit or abort marker
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
