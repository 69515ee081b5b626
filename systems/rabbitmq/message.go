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
	serverHeaders = "x-" // a header with this prefix is RabbitMQ's
	// maxShortString is the most that a name or a property can have, in bytes
	// (AMQP 0-9-1, section 4.2.5.3).
	maxShortString = 255
)

// encode gives the AMQP message of a publish. An error is a message that AMQP
// could not carry unaltered: a failure to measure.
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
		// Whole milliseconds, and never fewer than asked for.
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

// deliveries of this message so far, this one included. Quorum queues count,
// and leave the header out at first.
func deliveries(d client.Delivery) int {
	n, _ := d.Headers["x-delivery-count"].(int64)
	return int(n) + 1
}
