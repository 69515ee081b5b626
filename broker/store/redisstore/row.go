package redisstore

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/custodymq/custody/broker/store"
)

// A row is three values under its order: the head, which never changes while it
// has content, the state, which the scripts change, and the content. Head and state
// are lists of fields, each behind its length, and end in a checksum that binds
// them to the order; that of the content is in the head.
//
// Redis itself has checksums for neither its memory nor its log. A script verifies a
// state before it changes it: else a damaged one would get a checksum that fits.

// Fields of a head and of a state, as write.lua has them.
const (
	headID = iota
	headBusinessID
	headTopic
	headKey
	headInsertedAt
	headSize
	headContentSum
	headFields
)

const (
	stateState = iota
	stateVersion
	stateAttempts
	stateExpiresAt
	stateKeepUntil
	stateGroup
	stateLastConsumer
	stateReason
	stateFields
)

// orderText has one length, so that texts sort as numbers do.
func orderText(order int64) string { return fmt.Sprintf("%016d", order) }

// moment is a time as text that sorts; empty is the zero time. The clock is the
// broker's: Redis lets nothing expire.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%016x", uint64(t.UnixNano())^1<<63)
}

const momentLength = 16

func timeOf(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseUint(text, 16, 64)
	return time.Unix(0, int64(n^1<<63)), err
}

// encode gives what the script inserts: order, head, state, content and deadline.
func encode(r *store.Row, order int64) ([]any, error) {
	var headers []byte
	if len(r.Headers) > 0 {
		var err error
		if headers, err = json.Marshal(r.Headers); err != nil {
			return nil, fmt.Errorf("headers of %s: %w", r.MessageID, err)
		}
	}
	content := make([]byte, 4, 4+len(headers)+len(r.Payload))
	binary.BigEndian.PutUint32(content, uint32(len(headers)))
	content = append(append(content, headers...), r.Payload...)
	at := orderText(order)
	head := seal(at, r.MessageID, r.BusinessID, r.Topic, r.Key, strconv.FormatInt(r.InsertedAt.UnixNano(), 10),
		strconv.Itoa(len(headers)+len(r.Payload)), contentSum(r.MessageID, content))
	state := seal(at, strconv.Itoa(int(store.Pending)), strconv.Itoa(int(r.Version)), strconv.Itoa(r.Attempts), moment(r.ExpiresAt), "",
		r.Group, r.LastConsumer, r.Reason)
	return []any{at, head, state, content, moment(r.ExpiresAt)}, nil
}

// contentSum binds the content to its message.
func contentSum(messageID string, content []byte) string {
	var digest xxhash.Digest
	digest.Reset()
	_, _ = digest.WriteString(strconv.Itoa(len(messageID)) + ":" + messageID) // a hash does not fail
	_, _ = digest.Write(content)
	return strconv.FormatUint(digest.Sum64(), 16)
}

const sumLength = 16

func sum(order string, body []byte) string {
	h := sha1.New() // the one hash that scripts have
	_, _ = h.Write([]byte(order + ":"))
	_, _ = h.Write(body)
	return hex.EncodeToString(h.Sum(nil))[:sumLength]
}

// seal makes one value of fields.
func seal(order string, fields ...string) []byte {
	var body []byte
	for _, field := range fields {
		body = binary.BigEndian.AppendUint32(body, uint32(len(field)))
		body = append(body, field...)
	}
	return append(body, sum(order, body)...)
}

var errDamaged = errors.New("it fails its checksum")

// fieldsOf are the fields of a value, as far as they can be read, whatever its
// checksum says.
func fieldsOf(order, value string, n int) (fields []string, err error) {
	fields = make([]string, n)
	if len(value) < sumLength {
		return fields, errDamaged
	}
	body := value[:len(value)-sumLength]
	if sum(order, []byte(body)) != value[len(body):] {
		err = errDamaged
	}
	for i := range fields {
		if len(body) < 4 {
			return fields, errDamaged
		}
		size := int(binary.BigEndian.Uint32([]byte(body)))
		if body = body[4:]; size > len(body) {
			return fields, errDamaged
		}
		fields[i], body = body[:size], body[size:]
	}
	if body != "" {
		err = errDamaged
	}
	return fields, err
}

// raw is a row as the server gives it.
type raw struct {
	order                string
	head, state, content string
	whole                bool // with content
}

// decode verifies a row. It refuses no payload version.
func (v raw) decode(p store.Partition) store.Row {
	order, _ := strconv.ParseUint(v.order, 10, 64)
	r := store.Row{Order: order, Partition: p}
	head, wrong := fieldsOf(v.order, v.head, headFields)
	state, err := fieldsOf(v.order, v.state, stateFields)
	wrong = errors.Join(wrong, err)
	version, err := strconv.ParseUint(state[stateVersion], 10, 8)
	wrong = errors.Join(wrong, err)
	was, err := strconv.ParseUint(state[stateState], 10, 8)
	wrong = errors.Join(wrong, err)
	inserted, err := strconv.ParseInt(head[headInsertedAt], 10, 64)
	wrong = errors.Join(wrong, err)
	r.MessageID, r.BusinessID, r.Topic = head[headID], head[headBusinessID], head[headTopic]
	r.Version, r.State, r.InsertedAt = uint8(version), store.State(was), time.Unix(0, inserted)
	r.Size, err = strconv.Atoi(head[headSize])
	wrong = errors.Join(wrong, err)
	r.KeepUntil, err = timeOf(state[stateKeepUntil])
	wrong = errors.Join(wrong, err)
	if wrong == nil && r.State == store.SettledMarker {
		return r
	}
	bare := r
	r.Key, r.Group, r.LastConsumer, r.Reason = head[headKey], state[stateGroup], state[stateLastConsumer], state[stateReason]
	r.Attempts, err = strconv.Atoi(state[stateAttempts])
	wrong = errors.Join(wrong, err)
	r.ExpiresAt, err = timeOf(state[stateExpiresAt])
	wrong = errors.Join(wrong, err)
	if wrong == nil && v.whole {
		wrong = v.takeContent(&r, head[headContentSum])
	}
	if wrong != nil {
		bare.State, bare.KeepUntil, bare.Reason = store.Damaged, time.Time{}, errDamaged.Error()+" (as "+r.State.String()+")"
		return bare
	}
	return r
}

func (v raw) takeContent(r *store.Row, want string) error {
	content := []byte(v.content)
	if contentSum(r.MessageID, content) != want || len(content) < 4 {
		return errDamaged
	}
	size := int(binary.BigEndian.Uint32(content))
	if content = content[4:]; size > len(content) {
		return errDamaged
	}
	r.Payload = content[size:]
	if size == 0 {
		return nil
	}
	if err := json.Unmarshal(content[:size], &r.Headers); err != nil && store.Readable(r.Version) {
		return err
	}
	return nil // another version may have written them otherwise
}

// text is a value of a reply; empty if there is none.
func text(v any) string {
	s, _ := v.(string)
	return s
}

func number(v any) (int64, error) {
	n, err := strconv.ParseInt(text(v), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the partition's key has no number where the mark is: %w", err)
	}
	return n, nil
}

func numbers(values []any) (list []int64, err error) {
	for _, v := range values {
		n, err := number(v)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}
