package mysql

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/internal/statements"
)

// items returns the messages of a statement that writes. The store passes rows
// as a table of values: (SELECT 7 AS ord, _binary'a' AS message_id UNION ALL
// SELECT 8, _binary'b') AS v. A statement in any other form names none.
func items(ix *links.Index, kind string, sql []byte) ([]evidence.FrameItem, error) {
	if kind != statements.Insert && kind != statements.Update && kind != statements.Delete {
		return nil, nil
	}
	_, table, found := bytes.Cut(sql, []byte("(SELECT "))
	if !found {
		return nil, nil
	}
	p := &parser{rest: table}
	rows, ok := p.rows()
	if !ok {
		return nil, nil
	}
	if len(rows) > statements.MaxRows {
		return nil, fmt.Errorf("a statement of more than %d rows", statements.MaxRows)
	}
	return statements.Items(ix, kind, rows), nil
}

type parser struct {
	rest  []byte
	names []string
}

// maxNames bounds the columns of a table of values.
const maxNames = 64

// rows parses the table after its first SELECT, up to the maximum number of
// rows.
func (p *parser) rows() (rows []statements.Row, ok bool) {
	first, ok := p.row(true)
	columns := statements.ColumnsOf(p.names)
	for values := first; ok; values, ok = p.row(false) {
		at := func(column int) []byte {
			if column < 0 || column >= len(values) {
				return nil
			}
			return values[column]
		}
		if columns.ID < 0 {
			return nil, false
		}
		rows = append(rows, statements.Row{ID: at(columns.ID), Business: at(columns.Business), Payload: at(columns.Payload)})
		if len(rows) > statements.MaxRows || p.skip(") AS v") {
			return rows, true
		}
		if !p.skip(" UNION ALL SELECT ") {
			return nil, false
		}
	}
	return nil, false
}

// row parses the values of one row; the first row has the columns' names.
func (p *parser) row(named bool) (values [][]byte, ok bool) {
	for len(values) < maxNames {
		v, ok := p.value()
		if !ok {
			return nil, false
		}
		values = append(values, v)
		if named {
			if !p.skip(" AS ") {
				return nil, false
			}
			p.names = append(p.names, string(p.word()))
		}
		if !p.skip(", ") {
			return values, named || len(values) == len(p.names)
		}
	}
	return nil, false
}

func (p *parser) skip(text string) bool {
	rest, found := bytes.CutPrefix(p.rest, []byte(text))
	if found {
		p.rest = rest
	}
	return found
}

// word consumes a name or a number.
func (p *parser) word() []byte {
	end := bytes.IndexAny(p.rest[:min(len(p.rest), maxWord)], " ,)")
	if end < 0 {
		return nil
	}
	word := p.rest[:end]
	p.rest = p.rest[end:]
	return word
}

const (
	maxWord = 64 // bytes of a name or number
	// kept bounds the bytes kept of a string; an ID and the head of a payload
	// are shorter.
	kept = 1 << 10
)

// value consumes a literal: a string, a number or NULL. It returns the
// beginning of a string.
func (p *parser) value() (text []byte, ok bool) {
	p.skip("_binary")
	if !p.skip("'") {
		return nil, len(p.word()) > 0
	}
	text = []byte{}
	for i := 0; i < len(p.rest); i++ {
		c := p.rest[i]
		switch c {
		case '\'':
			if i+1 == len(p.rest) || p.rest[i+1] != '\'' { // a doubled quote is an escaped one
				p.rest = p.rest[i+1:]
				return text, true
			}
			i++
		case '\\':
			if i++; i == len(p.rest) {
				return nil, false
			}
			c = p.rest[i]
			if k := strings.IndexByte(escaped, c); k >= 0 {
				c = plain[k]
			}
		}
		if len(text) < kept {
			text = append(text, c)
		}
	}
	return nil, false
}

// Escape sequences after a backslash; any other character stands for itself
// (https://dev.mysql.com/doc/refman/8.4/en/string-literals.html).
const escaped, plain = "0bnrtZ", "\x00\b\n\r\t\x1a"
