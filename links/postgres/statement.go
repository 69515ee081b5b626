package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/internal/statements"
)

// statement is what is kept of a prepared statement: the parameters that
// identify messages, each an array with an element per row; -1 means none.
type statement struct {
	kind    string
	columns statements.Columns // parameter numbers, from 0
}

// table matches the form in which the store passes rows: unnest($1::bytea[],
// $2::bigint[]) AS v(id, place).
var table = regexp.MustCompile(`unnest\(([^()]*)\) AS v\(([^()]*)\)`)

var parameter = regexp.MustCompile(`^\$([0-9]{1,5})::bytea\[\]$`)

func prepare(sql []byte) statement {
	s := statement{kind: statements.KindOf(sql), columns: statements.Columns{ID: -1, Business: -1, Payload: -1}}
	m := table.FindSubmatch(sql)
	if m == nil {
		return s
	}
	arrays, names := strings.Split(string(m[1]), ", "), strings.Split(string(m[2]), ", ")
	number := func(column int) int {
		if column < 0 || column >= len(arrays) {
			return -1
		}
		p := parameter.FindStringSubmatch(arrays[column])
		if p == nil {
			return -1
		}
		n, _ := strconv.Atoi(p[1]) // the pattern allows five digits at most
		return n - 1
	}
	c := statements.ColumnsOf(names)
	s.columns = statements.Columns{ID: number(c.ID), Business: number(c.Business), Payload: number(c.Payload)}
	return s
}

// writes lists the kinds whose messages are named.
var writes = map[string]bool{statements.Insert: true, statements.Update: true, statements.Delete: true}

// bind interprets a Bind of the statement, after the names. It ignores values
// in text form.
func (s statement) bind(ix *links.Index, b *reader) (r statements.Request, err error) {
	r.Kind = s.kind
	formats := b.take(2 * int(b.short()))
	binaryForm := func(n int) bool {
		if len(formats) == 2 { // one format for all
			n = 0
		}
		return 2*n+1 < len(formats) && formats[2*n+1] == 1
	}
	var ids, businesses, payloads [][]byte
	for n := range int(b.short()) {
		value := b.value()
		if b.bad {
			break
		}
		for column, to := range map[int]*[][]byte{s.columns.ID: &ids, s.columns.Business: &businesses, s.columns.Payload: &payloads} {
			if column != n || !writes[s.kind] || !binaryForm(n) {
				continue
			}
			if *to, err = elements(value); err != nil {
				return r, err
			}
		}
	}
	if b.bad {
		return r, errors.New("a malformed Bind")
	}
	rows := make([]statements.Row, len(ids))
	for i, id := range ids {
		rows[i].ID = id
		if i < len(businesses) {
			rows[i].Business = businesses[i]
		}
		if i < len(payloads) {
			rows[i].Payload = payloads[i]
		}
	}
	r.Items = statements.Items(ix, s.kind, rows)
	return r, nil
}

// elements decodes a one-dimensional array in binary form
// (array_send in src/backend/utils/adt/arrayfuncs.c).
func elements(value []byte) (list [][]byte, err error) {
	b := reader{rest: value}
	dimensions := b.long()
	b.long() // has-NULLs flag
	b.long() // element type
	if dimensions == 0 && !b.bad {
		return nil, nil
	}
	n := b.long()
	b.long() // lower bound
	if b.bad || dimensions != 1 {
		return nil, errors.New("a malformed array")
	}
	if n > statements.MaxRows {
		return nil, fmt.Errorf("an array announces %d elements, more than %d", n, statements.MaxRows)
	}
	for range n {
		element := b.value()
		if b.bad {
			return nil, errors.New("a malformed array")
		}
		list = append(list, element)
	}
	return list, nil
}

// reader reads a message's fields. After a truncated field, bad is set and
// every later field is zero.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.rest) {
		r.bad, r.rest = true, nil
		return nil
	}
	field := r.rest[:n:n]
	r.rest = r.rest[n:]
	return field
}

func (r *reader) short() uint16 {
	if field := r.take(2); field != nil {
		return binary.BigEndian.Uint16(field)
	}
	return 0
}

func (r *reader) long() uint32 {
	if field := r.take(4); field != nil {
		return binary.BigEndian.Uint32(field)
	}
	return 0
}

// value reads a length-prefixed value; length -1 is NULL.
func (r *reader) value() []byte {
	n := r.long()
	if n == 1<<32-1 {
		return nil
	}
	if n > links.MaxFrame {
		r.bad = true
	}
	return r.take(int(n))
}

func (r *reader) text() []byte {
	text, rest, ok := bytes.Cut(r.rest, []byte{0})
	if !ok {
		r.bad, r.rest = true, nil
		return nil
	}
	r.rest = rest
	return text
}

func (r *reader) name() string {
	text := r.text()
	if len(text) > maxName {
		r.bad = true
		return ""
	}
	return string(text)
}
