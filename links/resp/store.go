package resp

import (
	"cmp"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links/internal/statements"
)

// The arguments of the script by which a store writes a batch: those that come
// first, and of each operation, which begins with its kind and the message ID.
// See broker/store/redisstore/write.lua.
const (
	scriptMark   = 10
	scriptWidth  = 7
	insertHead   = 3 // of an insert: a list of fields
	insertBody   = 5 // the payload behind the headers
	headBusiness = 1
)

// operations are the kinds of a store's operations, as frames.
var operations = map[string]string{
	"insert": statements.Insert, "attempt": statements.Update, "settle": statements.Update, "dead-letter": statements.Update,
	"redrive": statements.Update, "delete": statements.Delete, "discard": statements.Delete,
}

// understandStore classifies a request of a store. A script is BEGIN, what it
// does, and COMMIT in one: it is named for its inserts, if there are any.
func (c *client) understandStore(args [][]byte) (kind string, items []evidence.FrameItem, err error) {
	kind, rows := batch(argvOf(args))
	r := request{answer: statements.ReplyTo(kind), items: statements.Items(c.index, kind, rows)}
	return kind, r.items, c.dialogue.ask(r)
}

func batch(argv [][]byte) (kind string, rows []statements.Row) {
	for at := scriptMark; at+scriptWidth <= len(argv); at += scriptWidth {
		next := operations[string(argv[at])]
		if next == "" {
			return statements.Query, nil
		}
		if kind == "" || next == statements.Insert && kind != statements.Insert {
			kind, rows = next, nil
		}
		if next != kind || len(rows) == statements.MaxRows {
			continue
		}
		row := statements.Row{ID: argv[at+1]}
		if kind == statements.Insert {
			row.Business, row.Payload = field(argv[at+insertHead], headBusiness), behind(argv[at+insertBody])
		}
		rows = append(rows, row)
	}
	return cmp.Or(kind, statements.Query), rows
}

// argvOf are a script's arguments behind its keys; nil if this is none.
func argvOf(args [][]byte) [][]byte {
	verb := strings.ToUpper(argument(args, 0))
	keys, err := strconv.Atoi(argument(args, 2))
	if verb != "EVAL" && verb != "EVALSHA" || err != nil || keys < 0 || keys > len(args)-3 {
		return nil
	}
	return args[3+keys:]
}

// field is the n-th of a list, each behind its length; nil if it is not there.
func field(list []byte, n int) []byte {
	for range n {
		list = behind(list)
	}
	if rest := behind(list); rest != nil {
		return list[size : len(list)-len(rest)]
	}
	return nil
}

const size = 4 // bytes of a length

// behind is what follows a field behind its length.
func behind(list []byte) []byte {
	if len(list) < size {
		return nil
	}
	n := binary.BigEndian.Uint32(list)
	if uint64(n) > uint64(len(list)-size) {
		return nil
	}
	return list[size+int(n):]
}

// scriptStatus is what a script says: its first word, if it gives a list.
func scriptStatus(v value) string {
	if len(v.elems) > 0 && v.elems[0].kind == '$' {
		v = v.elems[0]
	}
	return status(v, v.kind == '$' && (v.null || string(v.text) == "ok") || v.kind == '*' || v.kind == ':' || v.kind == '+')
}
