package attack

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/custodymq/custody/broker/wire"
)

// Greeting and Ready are what libzmq sends with the NULL mechanism.
func Greeting() []byte {
	b := make([]byte, 64)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], "NULL")
	return b
}

// Ready ends the handshake; properties are as in ZMTP, such as Dealer.
func Ready(properties string) []byte {
	body := "\x05READY" + properties
	return append([]byte{4, byte(len(body))}, body...)
}

// Dealer says what socket it is.
const Dealer = "\x0bSocket-Type\x00\x00\x00\x06DEALER"

// Ping is ZMTP's own.
const Ping = "\x04\x07\x04PING\x00\x00"

// Header begins a frame that announces so many bytes.
func Header(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | 2}, size)
}

// Hello with a token, which may be empty.
func Hello(token string) []byte {
	return Frames(wire.Message{Kind: wire.Hello, Request: 1, Client: "hostile", Token: token})
}

// Entering is all from the first byte to the Hello.
func Entering(token string) []byte {
	return slices.Concat(Greeting(), Ready(Dealer), Hello(token))
}

// Frames of a message, which must be a valid one.
func Frames(m wire.Message) []byte {
	parts, err := wire.Encode(nil, &m)
	if err != nil {
		panic(fmt.Sprintf("attack: a message that cannot be encoded: %v", err))
	}
	b := append([]byte{1, byte(len(parts[0]))}, parts[0]...)
	b = append(b, Header(0, uint64(len(parts[1])))...)
	return append(b, parts[1]...)
}
