package attack

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/custodymq/custody/broker/wire"
)

// Greeting returns the ZMTP greeting that libzmq sends with the NULL mechanism.
func Greeting() []byte {
	b := make([]byte, 64)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], "NULL")
	return b
}

// Ready returns the READY command, which ends the handshake. properties are
// encoded as in ZMTP, such as Dealer.
func Ready(properties string) []byte {
	body := "\x05READY" + properties
	return append([]byte{4, byte(len(body))}, body...)
}

// Dealer is the socket-type property of a DEALER.
const Dealer = "\x0bSocket-Type\x00\x00\x00\x06DEALER"

// Ping is a ZMTP PING command.
const Ping = "\x04\x07\x04PING\x00\x00"

// Header returns a long frame header that announces size bytes.
func Header(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | 2}, size)
}

// Hello returns the frames of a Hello with a token, which may be empty.
func Hello(token string) []byte {
	return Frames(wire.Message{Kind: wire.Hello, Request: 1, Client: "hostile", Token: token})
}

// Entering returns everything from the greeting to the Hello.
func Entering(token string) []byte {
	return slices.Concat(Greeting(), Ready(Dealer), Hello(token))
}

// Frames encodes a message as frames. It panics if the message is invalid.
func Frames(m wire.Message) []byte {
	parts, err := wire.Encode(nil, &m)
	if err != nil {
		panic(fmt.Sprintf("attack: a message that cannot be encoded: %v", err))
	}
	b := append([]byte{1, byte(len(parts[0]))}, parts[0]...)
	b = append(b, Header(0, uint64(len(parts[1])))...)
	return append(b, parts[1]...)
}
