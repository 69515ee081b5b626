package kafka

import (
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	kafkalink "github.com/custodymq/custody/links/kafka"
	"github.com/custodymq/custody/systems"
)

// names is the prefix of one run's names: a broker serves several runs in turn.
type names string

// topic of a destination, in the characters that Kafka allows: letters, digits,
// '.', '_' and '-'.
func (n names) topic(destination string) (string, error) {
	legal := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	topic := string(n) + "." + destination
	if destination == "" || strings.ContainsFunc(destination, func(r rune) bool { return !legal(r) }) || len(topic) > maxTopicName {
		return "", fmt.Errorf("kafka: destination %q: a topic's name has letters, digits, '.', '_' and '-', and %d characters at most", destination, maxTopicName)
	}
	return topic, nil
}

// maxTopicName is Kafka's limit.
const maxTopicName = 249

// has reports whether a topic is the run's.
func (n names) has(topic string) bool { return strings.HasPrefix(topic, string(n)+".") }

func (n names) destination(topic string) string { return strings.TrimPrefix(topic, string(n)+".") }

// group of a logical subscriber to one destination.
func (n names) group(subscription, destination string) string {
	return string(n) + "." + subscription + "@" + destination
}

// subscriber is the inverse of group.
func (n names) subscriber(group string) (subscription, destination string, ok bool) {
	rest, ok := strings.CutPrefix(group, string(n)+".")
	at := strings.LastIndexByte(rest, '@')
	if !ok || at < 0 {
		return "", "", false
	}
	return rest[:at], rest[at+1:], true
}

// transactional is a producer's transactional ID, the same for all its
// sessions.
func (n names) transactional(actor string) string { return string(n) + "." + actor }

// encode returns the record of a publish, or an error if Kafka could not carry
// the message unaltered: a failure to measure.
func encode(topic string, m systems.Message) (*kgo.Record, error) {
	if m.MessageID != "" || m.TTL != 0 {
		return nil, fmt.Errorf("kafka: a message ID chosen by the publisher (%q) or a time to live (%v) is not supported", m.MessageID, m.TTL)
	}
	r := &kgo.Record{Topic: topic, Value: m.Payload}
	if m.Key != "" {
		r.Key = []byte(m.Key)
	}
	for name, value := range m.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	return r, nil
}

// decode is the inverse of encode.
func (n names) decode(r *kgo.Record) systems.Message {
	m := systems.Message{
		Destination: n.destination(r.Topic),
		MessageID:   messageID(r),
		Key:         string(r.Key),
		Payload:     r.Value,
	}
	for _, h := range r.Headers {
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		m.Headers[h.Key] = string(h.Value)
	}
	return m
}

func messageID(r *kgo.Record) string { return kafkalink.MessageID(r.Topic, r.Partition, r.Offset) }
