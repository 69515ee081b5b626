package mqtt

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/eclipse/paho.golang/packets"

	"github.com/custodymq/custody/systems"
)

// Fields that MQTT lacks are user properties, which a server forwards unaltered
// (MQTT 5, section 3.3.2.3.7).
const (
	keyProperty       = "custody-key"
	messageIDProperty = "custody-message-id"
	reservedPrefix    = "custody-"
)

// maxText is the maximum length of an MQTT string in bytes.
const maxText = math.MaxUint16

// validTopic checks a destination, which may hold MQTT wildcards in a
// subscription.
func validTopic(destination string) error {
	if err := validText(destination); err != nil {
		return fmt.Errorf("mqtt: destination %.80q: %w", destination, err)
	}
	if destination == "" || destination[0] == '$' {
		return fmt.Errorf("mqtt: destination %.80q: a topic is non-empty, and topics starting with $ belong to the server", destination)
	}
	return nil
}

func validText(s string) error {
	if len(s) > maxText || !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return errors.New("not an MQTT string: it must be UTF-8 without NUL, at most 65,535 bytes")
	}
	return nil
}

// encode returns the PUBLISH of a message without packet identifier, or an
// error if MQTT could not carry the message unaltered: a failure to measure.
func encode(m systems.Message, qos byte) (*packets.Publish, error) {
	if err := validTopic(m.Destination); err != nil {
		return nil, err
	}
	if strings.ContainsAny(m.Destination, "+#") {
		return nil, fmt.Errorf("mqtt: publish to %q: wildcards are for subscriptions only", m.Destination)
	}
	properties := &packets.Properties{}
	add := func(name, value string) error {
		if err := errors.Join(validText(name), validText(value)); err != nil {
			return fmt.Errorf("mqtt: header %.80q: %w", name, err)
		}
		properties.User = append(properties.User, packets.User{Key: name, Value: value})
		return nil
	}
	for name, value := range m.Headers {
		if strings.HasPrefix(name, reservedPrefix) {
			return nil, fmt.Errorf("mqtt: header %q is reserved", name)
		}
		if err := add(name, value); err != nil {
			return nil, err
		}
	}
	for name, value := range map[string]string{keyProperty: m.Key, messageIDProperty: m.MessageID} {
		if value == "" {
			continue
		}
		if err := add(name, value); err != nil {
			return nil, err
		}
	}
	if m.TTL > 0 {
		// MQTT counts whole seconds; rounding up expires nothing early.
		seconds := uint32(min(math.Ceil(m.TTL.Seconds()), math.MaxUint32))
		properties.MessageExpiry = &seconds
	}
	return &packets.Publish{Topic: m.Destination, QoS: qos, Properties: properties, Payload: m.Payload}, nil
}

// decode is the inverse of encode. The time to live is the remaining one.
func decode(p *packets.Publish) systems.Message {
	m := systems.Message{Destination: p.Topic, Payload: p.Payload}
	for _, property := range p.Properties.User {
		switch property.Key {
		case keyProperty:
			m.Key = property.Value
		case messageIDProperty:
			m.MessageID = property.Value
		default:
			if m.Headers == nil {
				m.Headers = make(map[string]string)
			}
			m.Headers[property.Key] = property.Value
		}
	}
	if left := p.Properties.MessageExpiry; left != nil {
		m.TTL = time.Duration(*left) * time.Second
	}
	return m
}

// shareName of a logical subscriber, within the characters that share names
// allow.
func shareName(subscription string) string { return systems.SubscriberName(subscription, "") }
