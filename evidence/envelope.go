package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// Envelope is the header of every payload that Custody publishes. It carries the
// publish ID and the business ID through any system, whatever that does to
// message headers: one line of text, then the body:
//
//	custody/1 PUBLISH-ID BUSINESS-ID\n body
//
// The IDs contain no spaces and no control characters (see ValidID).
type Envelope struct {
	PublishID  string
	BusinessID string
	Body       []byte
}

const envelopeMagic = "custody/1 "

// maxEnvelopeHead bounds the header line, so that foreign payloads are rejected cheaply.
const maxEnvelopeHead = len(envelopeMagic) + 2*MaxIDLength + 2

// MaxIDLength is the longest business or publish ID, in bytes.
const MaxIDLength = 128

// ErrNoEnvelope: the payload was not published by Custody, or was altered.
var ErrNoEnvelope = errors.New("evidence: payload has no custody envelope")

// Encode returns the payload's bytes.
func (e Envelope) Encode() []byte {
	b := make([]byte, 0, len(envelopeMagic)+len(e.PublishID)+len(e.BusinessID)+2+len(e.Body))
	b = append(b, envelopeMagic...)
	b = append(b, e.PublishID...)
	b = append(b, ' ')
	b = append(b, e.BusinessID...)
	b = append(b, '\n')
	return append(b, e.Body...)
}

// ParseEnvelope parses a payload. Body aliases the payload's memory. A
// truncated body is not an error here: the digest detects it.
func ParseEnvelope(payload []byte) (Envelope, error) {
	if !bytes.HasPrefix(payload, []byte(envelopeMagic)) {
		return Envelope{}, ErrNoEnvelope
	}
	head := payload[:min(len(payload), maxEnvelopeHead)]
	end := bytes.IndexByte(head, '\n')
	if end < 0 {
		return Envelope{}, ErrNoEnvelope
	}
	pub, biz, ok := strings.Cut(string(head[len(envelopeMagic):end]), " ")
	if !ok || ValidID(pub) != nil || ValidID(biz) != nil {
		return Envelope{}, ErrNoEnvelope
	}
	return Envelope{PublishID: pub, BusinessID: biz, Body: payload[end+1:]}, nil
}

// ValidID reports why s cannot be a business or publish ID.
func ValidID(s string) error {
	if s == "" || len(s) > MaxIDLength {
		return fmt.Errorf("evidence: an ID has 1 to %d bytes, %q has %d", MaxIDLength, s, len(s))
	}
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return fmt.Errorf("evidence: ID %q: byte %d is not printable ASCII", s, i)
		}
	}
	return nil
}

// PublishID identifies one call: the producer, the number of that producer's
// publish (from 1), and the try (from 1).
func PublishID(producer string, count, try int) string {
	return producer + "-" + strconv.Itoa(count) + "-" + strconv.Itoa(try)
}

// SplitPublishID is the inverse of PublishID.
func SplitPublishID(id string) (producer string, count, try int, ok bool) {
	i := strings.LastIndexByte(id, '-')
	if i < 1 {
		return "", 0, 0, false
	}
	j := strings.LastIndexByte(id[:i], '-')
	if j < 1 {
		return "", 0, 0, false
	}
	count, ok1 := ordinal(id[j+1 : i])
	try, ok2 := ordinal(id[i+1:])
	if !ok1 || !ok2 {
		return "", 0, 0, false
	}
	return id[:j], count, try, true
}

// ordinal parses a positive number as strconv writes it. Judging splits an ID
// for every event, and strconv.Atoi is four times slower.
func ordinal(s string) (n int, ok bool) {
	if s == "" || s[0] == '0' || len(s) > 9 {
		return 0, false
	}
	for i := range len(s) {
		d := s[i] - '0'
		if d > 9 {
			return 0, false
		}
		n = n*10 + int(d)
	}
	return n, true
}

// Digest returns the digest of the payload, key and headers, which a delivery
// must match: 16 hex digits of SHA-256, enough against accidental corruption.
func Digest(payload []byte, key string, headers map[string]string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d\n", len(payload))
	h.Write(payload)
	fmt.Fprintf(h, "%q\n", key)
	names := make([]string, 0, len(headers))
	for n := range headers {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		fmt.Fprintf(h, "%q=%q\n", n, headers[n])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
