package rabbitmq

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/systems"
)

const (
	keyHeader     = "Custody-Key"
	serverHeaders = "x-" // prefix of RabbitMQ's own headers
	// maxShortString is the maximum length of a name or property in bytes (AMQP
	// 0-9-1, section 4.2.5.3).
	maxShortString = 255
)

// encode returns the AMQP message of a publish, or an error if AMQP could not
// carry the message unaltered: a failure to measure.
func encode(m systems.Message, mode uint8) (client.Publishing, error) {
	out := client.Publishing{MessageId: m.MessageID, DeliveryMode: mode, Body: m.Payload, Headers: client.Table{}}
	if len(m.MessageID) > maxShortString {
		return out, fmt.Errorf("rabbitmq: message ID of %d bytes: at most %d", len(m.MessageID), maxShortString)
	}
	for name, value := range m.Headers {
		if name == keyHeader || strings.HasPrefix(name, serverHeaders) || len(name) > maxShortString {
			return out, fmt.Errorf("rabbitmq: header %.40q is reserved or too long", name)
		}
		out.Headers[name] = value
	}
	if m.Key != "" {
		out.Headers[keyHeader] = m.Key
	}
	if m.TTL > 0 {
		// Whole milliseconds, rounded up.
		out.Expiration = strconv.FormatInt(int64((m.TTL+time.Millisecond-1)/time.Millisecond), 10)
	}
	return out, nil
}

// decode is the inverse of encode.
func decode(destination string, d client.Delivery) systems.Message {
	m := systems.Message{Destination: destination, MessageID: d.MessageId, Payload: d.Body}
	for name, value := range d.Headers {
		text, ok := value.(string)
		switch {
		case !ok || strings.HasPrefix(name, serverHeaders):
		case name == keyHeader:
			m.Key = text
		default:
			if m.Headers == nil {
				m.Headers = make(map[string]string)
			}
			m.Headers[name] = text
		}
	}
	if ms, err := strconv.ParseInt(d.Expiration, 10, 32); err == nil {
		m.TTL = time.Duration(ms) * time.Millisecond
	}
	return m
}

// deliveries of this message including this one. Quorum queues count them,
// without a header on the first.
func deliveries(d client.Delivery) int {
	n, _ := d.Headers["x-delivery-count"].(int64)
	return int(n) + 1
}
