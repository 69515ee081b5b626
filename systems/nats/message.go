package nats

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/systems"
)

// One stream holds every destination. Its name is the first token of every
// subject, which keeps them apart from the server's own subjects.
const (
	streamName    = "custody"
	keyHeader     = "Custody-Key"
	serverHeaders = "Nats-" // prefix of headers reserved for client and server
)

// messageID names a stored message: "custody:7".
func messageID(stream string, sequence uint64) string {
	return stream + ":" + strconv.FormatUint(sequence, 10)
}

// subjectOf maps a destination, which may hold NATS wildcards in a
// subscription.
func subjectOf(stream, destination string) (string, error) {
	for token := range strings.SplitSeq(destination, ".") {
		if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return "", fmt.Errorf("nats: destination %q: its tokens, separated by dots, must be non-empty and without white space", destination)
		}
	}
	return stream + "." + destination, nil
}

// encode returns the NATS message of a publish, or an error if NATS could not
// carry the message unaltered: a failure to measure.
func encode(stream string, m systems.Message) (*client.Msg, error) {
	subject, err := subjectOf(stream, m.Destination)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(m.Destination, "*>") {
		return nil, fmt.Errorf("nats: publish to %q: wildcards are for subscriptions only", m.Destination)
	}
	out := &client.Msg{Subject: subject, Data: m.Payload, Header: client.Header{}}
	for name, value := range m.Headers {
		if name == keyHeader || strings.HasPrefix(name, serverHeaders) {
			return nil, fmt.Errorf("nats: header %q is reserved", name)
		}
		out.Header[name] = []string{value}
	}
	set := func(name, value string) {
		if value != "" {
			out.Header[name] = []string{value}
		}
	}
	set(keyHeader, m.Key)
	set(jetstream.MsgIDHeader, m.MessageID)
	if m.TTL > 0 {
		// Unrounded: the server itself refuses less than a second.
		set(jetstream.MsgTTLHeader, m.TTL.String())
	}
	return out, nil
}

// decode is the inverse of encode.
func decode(stream, id, subject string, header client.Header, payload []byte) systems.Message {
	m := systems.Message{
		Destination: strings.TrimPrefix(subject, stream+"."),
		MessageID:   id,
		Key:         header.Get(keyHeader),
		Payload:     payload,
	}
	for name := range header {
		if name == keyHeader || strings.HasPrefix(name, serverHeaders) {
			continue
		}
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		m.Headers[name] = header.Get(name)
	}
	// The server has validated it: an invalid one is never stored.
	m.TTL, _ = time.ParseDuration(header.Get(jetstream.MsgTTLHeader))
	return m
}
