package resp

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/custodymq/custody/links"
)

// value is a RESP value, of version 2 or 3
// (https://redis.io/docs/latest/develop/reference/protocol-spec/).
type value struct {
	kind  byte    // first byte, such as '$' or '*'
	text  []byte  // of a scalar; aliases the buffer
	elems []value // of an aggregate; keys and values of a map alternate
	null  bool
}

const (
	// maxLine bounds a line outside bulk strings; errors are the longest.
	maxLine = 64 << 10
	// maxDepth bounds the nesting; a delivery needs five.
	maxDepth = 16
	// maxValues bounds the values of a frame: each takes four bytes on the wire
	// and many times that in memory.
	maxValues = 1 << 17
)

// errShort: more bytes are needed.
var errShort = errors.New("resp: incomplete")

// parse parses the value at the start of buf; n is 0 if it is incomplete.
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
	length, err := parseLength(v.kind, line)
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
	if v.kind == '|' { // attributes precede the value they annotate
		return p.value(depth + 1)
	}
	return v, nil
}

// shape is what follows the first line of a value.
type shape uint8

const (
	scalar shape = iota // nothing
	bulk                // that many bytes and a line end
	list                // that many values
	pairs               // twice as many values
)

var shapes = map[byte]shape{
	'+': scalar, '-': scalar, ':': scalar, '_': scalar, ',': scalar, '#': scalar, '(': scalar,
	'$': bulk, '!': bulk, '=': bulk,
	'*': list, '~': list, '>': list,
	'%': pairs, '|': pairs,
}

// line returns the bytes between the first byte and the line end.
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

// parseLength parses a length; -1 is RESP2's null.
func parseLength(kind byte, line []byte) (int, error) {
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
