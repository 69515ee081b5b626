package amqp

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/custodymq/custody/links"
)

// unit is one method with its content, a heartbeat, or a protocol header. Its
// slices alias the buffer.
type unit struct {
	channel   uint16
	method    uint32 // class<<16 | method; 0 if not a method
	arguments []byte // of the method
	header    []byte // payload of the content header, if there is one
	body      [][]byte
}

// Frame types (section 4.2.3; a heartbeat has 8 in the 0-9-1 constants).
const (
	typeMethod    = 1
	typeHeader    = 2
	typeBody      = 3
	typeHeartbeat = 8
)

const (
	frameHead = 7 // type, channel, size
	frameEnd  = 0xCE
)

// protocolHeader begins a connection, and a broker's answer to an unsupported
// version (section 4.2.2); four bytes of version follow.
var protocolHeader = []byte("AMQP")

// withContent lists the methods followed by a content header and bodies.
var withContent = map[uint32]bool{basicPublish: true, basicReturn: true, basicDeliver: true, basicGetOK: true}

// cut parses the unit at the start of buf; n is 0 if it is incomplete.
func cut(buf []byte) (u unit, n int, err error) {
	if head := buf[:min(len(buf), len(protocolHeader))]; bytes.HasPrefix(protocolHeader, head) {
		if n = len(protocolHeader) + 4; len(buf) < n {
			n = 0
		}
		return u, n, nil
	}
	f, n, err := cutFrame(buf)
	if err != nil || n == 0 {
		return u, 0, err
	}
	switch {
	case f.kind == typeHeartbeat:
		return u, n, nil
	case f.kind != typeMethod || len(f.payload) < 4:
		return u, 0, fmt.Errorf("amqp: a frame of type %d with %d bytes instead of a method", f.kind, len(f.payload))
	}
	u.channel, u.method, u.arguments = f.channel, binary.BigEndian.Uint32(f.payload), f.payload[4:]
	if !withContent[u.method] {
		return u, n, nil
	}
	length, err := u.content(buf[n:])
	if err != nil || length == 0 {
		return unit{}, 0, err
	}
	return u, n + length, nil
}

// content parses the frames of a method's content; n is 0 if incomplete.
func (u *unit) content(buf []byte) (n int, err error) {
	for missing := uint64(0); u.header == nil || missing > 0; {
		f, length, err := cutFrame(buf[n:])
		if err != nil || length == 0 {
			return 0, err
		}
		if n += length; n > links.MaxFrame {
			return 0, fmt.Errorf("amqp: a message of more than %d bytes", links.MaxFrame)
		}
		switch {
		case f.kind == typeHeartbeat:
		case f.channel != u.channel:
			return 0, fmt.Errorf("amqp: the content on channel %d is interleaved with a frame on channel %d", u.channel, f.channel)
		case f.kind == typeHeader && u.header == nil && len(f.payload) >= contentHead:
			u.header, missing = f.payload, binary.BigEndian.Uint64(f.payload[4:])
			if missing > links.MaxFrame {
				return 0, fmt.Errorf("amqp: a message of %d bytes, more than %d", missing, links.MaxFrame)
			}
		case f.kind == typeBody && u.header != nil && uint64(len(f.payload)) <= missing:
			u.body = append(u.body, f.payload)
			missing -= uint64(len(f.payload))
		default:
			return 0, fmt.Errorf("amqp: a frame of type %d with %d bytes does not continue a content that lacks %d", f.kind, len(f.payload), missing)
		}
	}
	return n, nil
}

// frame is a frame on the wire.
type frame struct {
	kind    byte
	channel uint16
	payload []byte
}

// cutFrame parses the frame at the start of buf; n is 0 if it is incomplete.
func cutFrame(buf []byte) (f frame, n int, err error) {
	if len(buf) == 0 {
		return f, 0, nil
	}
	switch f.kind = buf[0]; f.kind {
	case typeMethod, typeHeader, typeBody, typeHeartbeat:
	default:
		return f, 0, fmt.Errorf("amqp: no frame has type %d", f.kind)
	}
	if len(buf) < frameHead {
		return f, 0, nil
	}
	f.channel = binary.BigEndian.Uint16(buf[1:])
	size := binary.BigEndian.Uint32(buf[3:])
	if size > links.MaxFrame-frameHead-1 {
		return f, 0, fmt.Errorf("amqp: a frame of %d bytes, more than %d", size, links.MaxFrame)
	}
	n = frameHead + int(size) + 1
	if len(buf) < n {
		return f, 0, nil
	}
	if buf[n-1] != frameEnd {
		return f, 0, fmt.Errorf("amqp: a frame of %d bytes does not end with %#x", size, frameEnd)
	}
	f.payload = buf[frameHead : n-1 : n-1]
	return f, n, nil
}

// contentHead is class, weight, body size and property flags.
const contentHead = 14

// Property flags of class basic before message-id (section 4.2.6.1), highest
// bit first.
const (
	flagContentType     = 1 << 15
	flagContentEncoding = 1 << 14
	flagHeaders         = 1 << 13
	flagDeliveryMode    = 1 << 12
	flagPriority        = 1 << 11
	flagCorrelationID   = 1 << 10
	flagReplyTo         = 1 << 9
	flagExpiration      = 1 << 8
	flagMessageID       = 1 << 7
)

// messageID returns the message-id property of a content header, or "".
func messageID(header []byte) string {
	flags := binary.BigEndian.Uint16(header[contentHead-2:])
	if flags&flagMessageID == 0 {
		return ""
	}
	rest := header[contentHead:]
	for _, property := range []struct {
		flag uint16
		skip func([]byte) ([]byte, bool)
	}{
		{flagContentType, skipShortString},
		{flagContentEncoding, skipShortString},
		{flagHeaders, skipTable},
		{flagDeliveryMode, skipOctet},
		{flagPriority, skipOctet},
		{flagCorrelationID, skipShortString},
		{flagReplyTo, skipShortString},
		{flagExpiration, skipShortString},
	} {
		if flags&property.flag == 0 {
			continue
		}
		var ok bool
		if rest, ok = property.skip(rest); !ok {
			return ""
		}
	}
	id, _, _ := shortString(rest)
	return string(id)
}

func shortString(b []byte) (s, rest []byte, ok bool) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return nil, nil, false
	}
	end := 1 + int(b[0])
	return b[1:end], b[end:], true
}

func skipShortString(b []byte) ([]byte, bool) {
	_, rest, ok := shortString(b)
	return rest, ok
}

func skipTable(b []byte) ([]byte, bool) {
	if len(b) < 4 || uint64(len(b)-4) < uint64(binary.BigEndian.Uint32(b)) {
		return nil, false
	}
	return b[4+binary.BigEndian.Uint32(b):], true
}

func skipOctet(b []byte) ([]byte, bool) {
	if len(b) == 0 {
		return nil, false
	}
	return b[1:], true
}
