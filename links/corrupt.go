package links

import (
	"errors"

	"github.com/custodymq/custody/evidence"
)

// CorruptPayload alters one byte in place: the last of the body, so that the
// envelope still identifies the message. If the body is empty it is the last
// character of the business ID, and the envelope stays well formed. It fails on
// an empty payload.
func CorruptPayload(payload []byte) error {
	if len(payload) == 0 {
		return errors.New("links: an empty payload cannot be corrupted")
	}
	last := len(payload) - 1
	if e, err := evidence.ParseEnvelope(payload); err != nil || len(e.Body) > 0 {
		payload[last] ^= 1
		return nil
	}
	last-- // the line feed that ends the head
	if payload[last] == 'x' {
		payload[last] = 'y'
	} else {
		payload[last] = 'x'
	}
	return nil
}
