package zeromq

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/custodymq/custody/tasks"
)

// peer speaks ZMTP and the broker's protocol byte by byte, as PROTOCOL.md
// specifies them. It does not use the broker's codec, which refuses to encode
// invalid messages and would share any decoding bug with the broker.
type peer struct {
	nc net.Conn
	br *bufio.Reader
}

// Kinds, tags, answers and causes as numbered in PROTOCOL.md.
const (
	kindHello        = 1
	kindWelcome      = 2
	kindPublish      = 3
	kindPublishReply = 4
	kindSubscribe    = 5
	kindUnsubscribe  = 7
	kindCredit       = 9
	kindDeliver      = 10
	kindAck          = 11
	kindNack         = 13
	kindLookup       = 15
	kindAdmin        = 17
	kindPing         = 19
	kindPong         = 20
	kindError        = 21

	tagClient    = 1
	tagToken     = 2
	tagTopic     = 3
	tagGroup     = 4
	tagMode      = 5
	tagBusiness  = 6
	tagMessage   = 7
	tagKey       = 8
	tagHeaders   = 9
	tagTTL       = 10
	tagAttempt   = 11
	tagAgain     = 12
	tagCredit    = 13
	tagDelay     = 14
	tagDead      = 15
	tagAnswer    = 16
	tagReason    = 17
	tagCause     = 18
	tagPayload   = 19 // never in a head: it is the second part
	beyondAllTag = 99

	modeMost  = 1
	modeLeast = 2

	answerAccepted  = 1
	answerDeclined  = 2
	answerRejected  = 3
	answerUnknown   = 4
	answerRefused   = 5
	answerStored    = 6
	answerSettled   = 7
	answerDead      = 8
	answerNotSeen   = 9
	answerForgotten = 10
)

const (
	mark       = 0xC5
	version    = 2
	maxHead    = 80 << 10
	maxPayload = 4 << 20
)

// field is one encoded field of a head.
type field []byte

// value is what the field holds.
func (f field) value() string {
	_, n := binary.Uvarint(f[1:])
	return string(f[1+n:])
}

func uvarint(v uint64) []byte { return binary.AppendUvarint(nil, v) }

func raw(tag byte, value []byte) field {
	return append(append(field{tag}, uvarint(uint64(len(value)))...), value...)
}

func text(tag byte, value string) field { return raw(tag, []byte(value)) }

func number(tag byte, v uint64) field { return raw(tag, uvarint(v)) }

// milliseconds are zigzag-encoded.
func milliseconds(tag byte, ms int64) field { return number(tag, uint64(ms<<1)^uint64(ms>>63)) }

// headers encodes name-value pairs; names must be sorted.
func headers(pairs ...string) field {
	var b []byte
	for _, s := range pairs {
		b = append(append(b, uvarint(uint64(len(s)))...), s...)
	}
	return raw(tagHeaders, b)
}

func head(kind byte, request uint64, fields ...field) []byte {
	b := append([]byte{mark, version, kind}, uvarint(request)...)
	for _, f := range fields {
		b = append(b, f...)
	}
	return b
}

// frame encodes a ZMTP frame, always in the long form so that its header does
// not depend on the size.
func frame(more bool, body []byte) []byte {
	flags := byte(2)
	if more {
		flags |= 1
	}
	return append(announced(flags, uint64(len(body))), body...)
}

func announced(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags}, size)
}

// message encodes head and payload as a two-part message.
func message(head, payload []byte) []byte { return append(frame(true, head), frame(false, payload)...) }

// greeting and ready are a DEALER's with the NULL mechanism.
func greeting() []byte {
	b := make([]byte, 64)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], "NULL")
	return b
}

func ready(socket string) []byte {
	body := "\x05READY\x0bSocket-Type" + string(binary.BigEndian.AppendUint32(nil, uint32(len(socket)))) + socket
	return append([]byte{4, byte(len(body))}, body...)
}

// connect opens a connection that is closed when ctx ends. Nothing is written
// yet.
func connect(ctx context.Context, address string) (*peer, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("zeromq: probe: %w", err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := nc.SetDeadline(deadline); err != nil {
			nc.Close()
			return nil, fmt.Errorf("zeromq: probe: %w", err)
		}
	}
	return newPeer(ctx, nc), nil
}

func newPeer(ctx context.Context, nc net.Conn) *peer {
	context.AfterFunc(ctx, tasks.Guarded(func() { nc.Close() }))
	return &peer{nc: nc, br: bufio.NewReaderSize(nc, 64<<10)}
}

// write ignores errors: when the broker has closed the connection early, its
// answer can still be read.
func (p *peer) write(b []byte) { _, _ = p.nc.Write(b) }

// greet performs the ZMTP handshake as a socket of this type.
func (p *peer) greet(socket string) error {
	p.write(append(greeting(), ready(socket)...))
	if _, err := io.CopyN(io.Discard, p.br, 64); err != nil {
		return fmt.Errorf("zeromq: probe: the other side's greeting: %w", err)
	}
	flags, body, err := p.frame()
	if err == nil && (flags&4 == 0 || !bytes.HasPrefix(body, []byte("\x05READY"))) {
		err = fmt.Errorf("its first frame is no READY: %.20q", body)
	}
	if err != nil {
		return fmt.Errorf("zeromq: probe: the other side's handshake: %w", err)
	}
	return nil
}

func (p *peer) frame() (flags byte, body []byte, err error) {
	if flags, err = p.br.ReadByte(); err != nil {
		return 0, nil, err
	}
	size := uint64(0)
	if flags&2 == 0 {
		b, err := p.br.ReadByte()
		if err != nil {
			return 0, nil, err
		}
		size = uint64(b)
	} else {
		var b [8]byte
		if _, err := io.ReadFull(p.br, b[:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(b[:])
	}
	if size > maxPayload {
		return 0, nil, fmt.Errorf("the broker announced a frame of %d bytes", size)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(p.br, body)
	return flags, body, err
}

// heard is one message from the broker.
type heard struct {
	kind    byte
	request uint64
	fields  map[byte][]byte
	payload []byte
}

func (h heard) text(tag byte) string { return string(h.fields[tag]) }

func (h heard) number(tag byte) uint64 {
	v, n := binary.Uvarint(h.fields[tag])
	if n != len(h.fields[tag]) {
		return 0
	}
	return v
}

func (h heard) String() string {
	s := fmt.Sprintf("kind %d for request %d", h.kind, h.request)
	if a := h.number(tagAnswer); a > 0 {
		s += fmt.Sprintf(", answer %d", a)
	}
	if r := h.text(tagReason); r != "" {
		s += ": " + r
	}
	return s
}

var errNotOurs = errors.New("the broker said what the protocol does not have")

// hear reads the next message, skipping ZMTP commands.
func (p *peer) hear() (heard, error) {
	head, payload, err := p.parts()
	if err != nil {
		return heard{}, err
	}
	return parse(head, payload)
}

// parts are those of the next message.
func (p *peer) parts() (head, payload []byte, err error) {
	flags := byte(4)
	for flags&4 != 0 {
		if flags, head, err = p.frame(); err != nil {
			return nil, nil, err
		}
	}
	if flags&1 == 0 {
		return nil, nil, fmt.Errorf("%w: a message of one part", errNotOurs)
	}
	_, payload, err = p.frame()
	return head, payload, err
}

func parse(b, payload []byte) (heard, error) {
	h := heard{fields: map[byte][]byte{}, payload: payload}
	if len(b) < 4 || b[0] != mark || b[1] != version {
		return h, fmt.Errorf("%w: a head that begins % x", errNotOurs, b[:min(len(b), 4)])
	}
	h.kind, b = b[2], b[3:]
	request, n := binary.Uvarint(b)
	if n <= 0 {
		return h, fmt.Errorf("%w: a head without its request", errNotOurs)
	}
	h.request, b = request, b[n:]
	for len(b) > 0 {
		tag := b[0]
		size, n := binary.Uvarint(b[1:])
		if n <= 0 || size > uint64(len(b)-1-n) {
			return h, fmt.Errorf("%w: field %d is cut short", errNotOurs, tag)
		}
		h.fields[tag], b = b[1+n:1+n+int(size)], b[1+n+int(size):]
	}
	return h, nil
}
