package sqlite

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/ncruces/go-sqlite3"
)

// Every row has two checksums. content_checksum covers headers and payload, which
// never change; checksum covers every other column and content_checksum, so that
// a row's head can be verified without reading its content.
//
// checksum is the sum of one hash per field, modulo 2^64. An UPDATE adds the
// hashes of the new values and subtracts those of the old ones. Damage therefore
// stays detectable, in columns that the UPDATE does not touch and also in those
// that it does: what is subtracted is not what was once added. Recomputing the
// sum would give a damaged row a matching checksum.

// field is a column covered by checksum.
type field int

const (
	partitionField field = iota
	messageIDField
	stateField
	versionField
	businessIDField
	topicField
	competitorField
	keyField
	insertedAtField
	expiresAtField
	attemptsField
	lastConsumerField
	reasonField
	keepUntilField
	contentField
	fields // the number of fields
)

var columnOf = [fields]string{
	"partition", "message_id", "state", "version", "business_id", "topic", "competitor", "key",
	"inserted_at", "expires_at", "attempts", "last_consumer", "reason", "keep_until", "content_checksum",
}

// head lists all fields.
var head = strings.Join(columnOf[:], ", ")

const golden = 0x9E3779B97F4A7C15

// mix is the finalizer of SplitMix64: a bijection in which flipping any input bit
// flips about half of the output bits.
func mix(v uint64) uint64 {
	v = (v ^ v>>30) * 0xBF58476D1CE4E5B9
	v = (v ^ v>>27) * 0x94D049BB133111EB
	return v ^ v>>31
}

func (f field) null() uint64         { return mix(uint64(4*f+1) * golden) }
func (f field) int(v int64) uint64   { return mix(uint64(v) + uint64(4*f+2)*golden) }
func (f field) text(v string) uint64 { return mix(xxhash.Sum64String(v) + uint64(4*f+3)*golden) }

// other is the hash of a value whose type the column does not hold.
func (f field) other() uint64 { return mix(uint64(4*f+4) * golden) }

func (f field) time(v time.Time) uint64 {
	if v.IsZero() {
		return f.null()
	}
	return f.int(v.UnixNano())
}

func (f field) value(v sqlite3.Value) uint64 {
	switch v.Type() {
	case sqlite3.NULL:
		return f.null()
	case sqlite3.INTEGER:
		return f.int(v.Int64())
	case sqlite3.TEXT:
		return mix(xxhash.Sum64(v.RawText()) + uint64(4*f+3)*golden)
	default:
		return f.other()
	}
}

// contentChecksum covers the message ID too, so that another row's content does
// not match.
func contentChecksum(messageID string, headers, payload []byte) int64 {
	var digest xxhash.Digest
	digest.Reset()
	var length [8]byte
	for _, part := range [][]byte{headers, payload} {
		binary.LittleEndian.PutUint64(length[:], uint64(len(part)))
		_, _ = digest.Write(length[:]) // a hash does not fail
		_, _ = digest.Write(part)
	}
	_, _ = digest.WriteString(messageID)
	return int64(digest.Sum64())
}

// change is the set of fields that an UPDATE sets, for updating the checksum.
type change struct {
	name   string
	fields []field
}

var (
	attempting    = change{"attempt", []field{attemptsField, competitorField, lastConsumerField}}
	processing    = change{"process", []field{stateField, keepUntilField, reasonField}}
	deadLettering = change{"dead_letter", []field{stateField, reasonField, lastConsumerField}}
	redriving     = change{"redrive", []field{stateField, attemptsField, reasonField, expiresAtField}}
	marking       = change{"mark", []field{
		stateField, keepUntilField, topicField, competitorField, keyField, expiresAtField, attemptsField,
		lastConsumerField, reasonField, contentField,
	}}
	changes = []change{attempting, processing, deadLettering, redriving, marking}
)

// set returns the assignment that updates the checksum. parameter is the sum of
// the new values' hashes.
func (c change) set(parameter string) string {
	call := "checksum=custody_" + c.name + "(checksum, " + parameter
	for _, f := range c.fields {
		call += ", " + columnOf[f]
	}
	return call + ")"
}

// intact is the SQL condition that a row matches its checksum.
var intact = "custody_checksum(" + head + ")=checksum"

// registerFunctions registers the checksum functions on this connection.
func registerFunctions(conn *sqlite3.Conn) error {
	const flags = sqlite3.DETERMINISTIC | sqlite3.INNOCUOUS
	err := conn.CreateFunction("custody_checksum", int(fields), flags, func(ctx sqlite3.Context, arg ...sqlite3.Value) {
		var sum uint64
		for i, v := range arg {
			sum += field(i).value(v)
		}
		ctx.ResultInt64(int64(sum))
	})
	if err != nil {
		return err
	}
	err = conn.CreateFunction("custody_content_checksum", 3, flags, func(ctx sqlite3.Context, arg ...sqlite3.Value) {
		ctx.ResultInt64(contentChecksum(arg[0].Text(), arg[1].RawText(), arg[2].RawBlob()))
	})
	for _, c := range changes {
		if err == nil {
			err = c.register(conn)
		}
	}
	return err
}

func (c change) register(conn *sqlite3.Conn) error {
	return conn.CreateFunction("custody_"+c.name, 2+len(c.fields), sqlite3.DETERMINISTIC|sqlite3.INNOCUOUS,
		func(ctx sqlite3.Context, arg ...sqlite3.Value) {
			sum := uint64(arg[0].Int64()) + uint64(arg[1].Int64())
			for i, f := range c.fields {
				sum -= f.value(arg[2+i])
			}
			ctx.ResultInt64(int64(sum))
		})
}
