package resp

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/custodymq/custody/links"
)

// value is one RESP value, of version 2 or 3 (https://redis.io/docs/latest/develop/reference/protocol-spec/).
type value struct {
	kind  byte    // the byte that begins it, such as '$' or '*'
	text  []byte  // of what is no aggregate; shares the buffer's memory
	elems []value // of an aggregate; keys and values of a map in turn
	null  bool
}

const (
	// maxLine bounds a line that is no bulk string: errors are the long ones.
	maxLine = 64 << 10
	// maxDepth is the deepest nesting that is read; a delivery needs five.
	maxDepth = 16
	// maxValues bounds the values of one frame. Each costs memory of ours many
	// times the four bytes that it takes on the wire.
	maxValues = 1 << 17
)

// errShort asks for more bytes.
var errShort = errors.New("resp: incomplete")

// parse reads the value that begins buf; n is 0 while it is incomplete.
func parse(buf []byte) (v value, n int, err error) {
	p := parser{buf: buf}
	v, err = p.value(0)
	if errors.Is(err, errShort) {
		return value{}, 0, nil
	}
	if err != nil {
		return value{}, 0, fmt.Errorf("resp: %w", err)
	}
	return v, p.at, nil
}

type parser struct {
	buf    []byte
	at     int
	values int
}

func (p *parser) value(depth int) (v value, err error) {
	if depth > maxDepth {
		return v, fmt.Errorf("values nested more than %d deep", maxDepth)
	}
	if p.values++; p.values > maxValues {
		return v, fmt.Errorf("more than %d values in one frame", maxValues)
	}
	if p.at >= len(p.buf) {
		return v, errShort
	}
	v.kind = p.buf[p.at]
	shape, known := shapes[v.kind]
	if !known {
		return v, fmt.Errorf("no value begins with %q", v.kind)
	}
	line, err := p.line()
	if err != nil || shape == scalar {
		v.text, v.null = line, v.kind == '_'
		return v, err
	}
	length, err := announced(v.kind, line)
	switch {
	case err != nil:
		return v, err
	case length < 0:
		v.null = true
		return v, nil
	case shape == bulk:
		v.text, err = p.bulk(length)
		return v, err
	}
	if shape == pairs {
		length *= 2
	}
	if length > maxValues {
		return v, fmt.Errorf("%d values announced, more than %d", length, maxValues)
	}
	for range length {
		element, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.elems = append(v.elems, element)
	}
	if v.kind == '|' { // attributes stand before the value that they are about
		return p.value(depth + 1)
	}
	return v, nil
}

// shape says what follows the line that begins a value.
type shape uint8

const (
	scalar shape = iota // nothing
	bulk                // as many bytes as the line says, and a line's end
	list                // as many values
	pairs               // twice as many
)

var shapes = map[byte]shape{
	'+': scalar, '-': scalar, ':': scalar, '_': scalar, ',': scalar, '#': scalar, '(': scalar,
	'$': bulk, '!': bulk, '=': bulk,
	'*': list, '~': list, '>': list,
	'%': pairs, '|': pairs,
}

// line gives what stands between the first byte and the line's end.
func (p *parser) line() ([]byte, error) {
	rest := p.buf[p.at:]
	end := bytes.Index(rest[:min(len(rest), maxLine)], crlf)
	switch {
	case end >= 0:
		p.at += end + len(crlf)
		return rest[1:end:end], nil
	case len(rest) >= maxLine:
		return nil, fmt.Errorf("a line of more than %d bytes", maxLine)
	}
	return nil, errShort
}

var crlf = []byte("\r\n")

// announced reads a length; -1 is RESP2's null.
func announced(kind byte, line []byte) (int, error) {
	n, err := strconv.ParseInt(string(line), 10, 32)
	switch {
	case err != nil || n < -1:
		return 0, fmt.Errorf("%q announces a length of %.20q", kind, line)
	case n > links.MaxFrame:
		return 0, fmt.Errorf("%q announces %d, more than %d bytes", kind, n, links.MaxFrame)
	}
	return int(n), nil
}

func (p *parser) bulk(length int) ([]byte, error) {
	end := p.at + length
	if end > links.MaxFrame {
		return nil, fmt.Errorf("a frame of more than %d bytes", links.MaxFrame)
	}
	if end+len(crlf) > len(p.buf) {
		return nil, errShort
	}
	text := p.buf[p.at:end:end]
	p.at = end + len(crlf)
	if !bytes.Equal(p.buf[end:p.at], crlf) {
		return nil, fmt.Errorf("a string is longer than the %d bytes that it announces", length)
	}
	return text, nil
}
