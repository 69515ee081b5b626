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

// A row is three values under its order: the head, which never changes while the
// row has content; the state, which the scripts change; and the content. Head and
// state are lists of length-prefixed fields, followed by a checksum that covers
// the order too; the content's checksum is in the head.
//
// Redis itself has checksums for neither its memory nor its AOF. A script
// verifies a state before changing it, because otherwise a damaged one would get
// a matching checksum.

// Fields of a head and of a state. write.lua uses the same layout.
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

// orderText has a fixed length, so that lexical order is numerical order.
func orderText(order int64) string { return fmt.Sprintf("%016d", order) }

// moment encodes a time as sortable text; the zero time is empty. Deadlines
// follow the broker's clock: Redis's own expiry is not used.
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

// encode returns the arguments with which the script inserts a row: order, head,
// state, content and deadline.
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

// contentSum covers the message ID too, so that another row's content does not
// match.
func contentSum(messageID string, content []byte) string {
	var digest xxhash.Digest
	digest.Reset()
	_, _ = digest.WriteString(strconv.Itoa(len(messageID)) + ":" + messageID) // hash.Hash never returns an error
	_, _ = digest.Write(content)
	return strconv.FormatUint(digest.Sum64(), 16)
}

const sumLength = 16

func sum(order string, body []byte) string {
	h := sha1.New() // the only hash available to scripts
	_, _ = h.Write([]byte(order + ":"))
	_, _ = h.Write(body)
	return hex.EncodeToString(h.Sum(nil))[:sumLength]
}

// seal encodes fields as one value with its checksum.
func seal(order string, fields ...string) []byte {
	var body []byte
	for _, field := range fields {
		body = binary.BigEndian.AppendUint32(body, uint32(len(field)))
		body = append(body, field...)
	}
	return append(body, sum(order, body)...)
}

var errDamaged = errors.New("it fails its checksum")

// fieldsOf decodes a value's fields as far as possible, even if its checksum does
// not match.
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

// raw is a row as read from the server.
type raw struct {
	order                string
	head, state, content string
	whole                bool // content was requested
}

// decode verifies a row. It accepts any payload version.
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
		r.Reason = state[stateReason]
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
	return nil // another payload version may encode headers differently
}

// text returns a value of a reply as a string, or "" if it is none.
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
