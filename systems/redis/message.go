package redis

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/links/resp"
	"github.com/custodymq/custody/systems"
)

// Fields of an entry. Headers are fields with a prefix.
const (
	payloadField = "payload"
	keyField     = "key"
	headerPrefix = "header:"
)

// name is the key of a destination's stream, or its channel.
func (c clients) name(destination string) string { return c.prefix + destination }

// encode returns the fields of an entry in storage order.
func encode(m systems.Message) []any {
	fields := make([]any, 0, 2*(2+len(m.Headers)))
	if m.Key != "" {
		fields = append(fields, keyField, m.Key)
	}
	for name, value := range m.Headers {
		fields = append(fields, headerPrefix+name, value)
	}
	return append(fields, payloadField, m.Payload)
}

// decode is the inverse of encode.
func decode(destination, key string, entry client.XMessage) systems.Message {
	m := systems.Message{Destination: destination, MessageID: resp.MessageID(key, entry.ID)}
	for field, value := range entry.Values {
		text, _ := value.(string)
		name, isHeader := strings.CutPrefix(field, headerPrefix)
		switch {
		case field == payloadField:
			m.Payload = []byte(text)
		case field == keyField:
			m.Key = text
		case isHeader:
			if m.Headers == nil {
				m.Headers = make(map[string]string)
			}
			m.Headers[name] = text
		}
	}
	return m
}

// head is the first line of a channel's message, which has no fields.
type head struct {
	Key     string            `json:"key,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// wrap encodes a message for a channel.
func wrap(m systems.Message) ([]byte, error) {
	line, err := json.Marshal(head{Key: m.Key, Headers: m.Headers})
	if err != nil {
		return nil, fmt.Errorf("redis: key and headers of a message: %w", err)
	}
	return append(append(line, '\n'), m.Payload...), nil
}

// unwrap is the inverse of wrap.
func unwrap(destination string, raw []byte) (systems.Message, error) {
	line, payload, ok := bytes.Cut(raw, []byte("\n"))
	var h head
	if err := json.Unmarshal(line, &h); err != nil || !ok {
		return systems.Message{}, errors.Join(errors.New("redis: a message of this channel that this adapter did not publish"), err)
	}
	return systems.Message{Destination: destination, Key: h.Key, Headers: h.Headers, Payload: payload}, nil
}
