// Package statements holds what the links between a broker and its database
// server share, whatever the server's protocol: the kinds of statements, the
// messages in them, and replies matched by position.
package statements

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// Kinds of requests. A reply's kind is the request's with the suffix "-reply".
const (
	Begin    = "begin"
	Insert   = "insert"
	Update   = "update"
	Delete   = "delete"
	Mark     = "mark"
	Commit   = "commit"
	Rollback = "rollback"
	Query    = "query"
)

var kinds = []struct{ name, text string }{
	{Begin, "BEGIN or START TRANSACTION"},
	{Insert, "INSERT, with the messages that it stores"},
	{Update, "UPDATE, with the messages whose rows it changes"},
	{Delete, "DELETE, with the messages whose rows it removes"},
	{Mark, "a write of the partition's own row: whose it is, and its last transaction"},
	{Commit, "COMMIT, with the messages that its transaction inserts"},
	{Rollback, "ROLLBACK"},
	{Query, "any other statement"},
}

// Kinds returns the frame kinds of a database protocol that has all but some.
func Kinds(but ...string) (list []links.KindInfo) {
	for _, k := range kinds {
		if !slices.Contains(but, k.name) {
			list = append(list, links.KindInfo{Name: k.name, To: evidence.ToBroker, Text: k.text})
		}
	}
	for _, k := range list {
		list = append(list, links.KindInfo{Name: ReplyTo(k.Name), To: evidence.ToClient,
			Text: "the answer to " + k.Name + ", and the server's code if it refuses"})
	}
	return list
}

// ReplyTo is the kind of the reply to a request of this kind.
func ReplyTo(kind string) string {
	if kind == "" {
		return ""
	}
	return kind + "-reply"
}

// Legal refuses actions that would shift positions, so that a drop becomes a
// withhold, and actions that would make the server store or return something
// else.
func Legal(protocol, kind string, a links.Action) error {
	if a != links.Drop && a != links.Duplicate && a != links.Corrupt {
		return nil
	}
	return &links.ErrIllegal{Protocol: protocol, Kind: kind, Action: a,
		Why: "replies are matched by position: every later request would get its neighbour's reply"}
}

// partitionTable is the table of the store's partitions.
const partitionTable = "custody_partition"

// KindOf classifies a statement by its first words.
func KindOf(sql []byte) string {
	var words [3]string
	n := 0
	for word := range strings.FieldsSeq(string(sql[:min(len(sql), 200)])) {
		words[n] = strings.ToUpper(strings.Trim(word, ";"))
		if n++; n == len(words) {
			break
		}
	}
	switch words[0] {
	case "BEGIN":
		return Begin
	case "START":
		if words[1] == "TRANSACTION" {
			return Begin
		}
	case "COMMIT", "END":
		return Commit
	case "ROLLBACK", "ABORT":
		if words[1] != "TO" { // a savepoint
			return Rollback
		}
	case "INSERT", "UPDATE":
		if strings.EqualFold(words[1], partitionTable) || strings.EqualFold(words[2], partitionTable) {
			return Mark
		}
		return strings.ToLower(words[0])
	case "DELETE":
		return Delete
	}
	return Query
}

// Columns holds the indices of the columns that identify a message in a table
// of parameters; -1 means none.
type Columns struct{ ID, Business, Payload int }

// ColumnsOf finds the columns by name.
func ColumnsOf(names []string) Columns {
	id := slices.Index(names, "message_id")
	if id < 0 {
		id = slices.Index(names, "id")
	}
	return Columns{ID: id, Business: slices.Index(names, "business_id"), Payload: slices.Index(names, "payload")}
}

// MaxRows bounds the rows of one statement.
const MaxRows = 1 << 14

// Row is what a statement contains about one message.
type Row struct{ ID, Business, Payload []byte }

// Items returns the messages of a statement. An insert names all their IDs;
// other statements name the message ID alone, and the index has the rest from
// the insert.
func Items(ix *links.Index, kind string, rows []Row) (items []evidence.FrameItem) {
	for _, r := range rows {
		if kind != Insert {
			items = append(items, ix.Find(string(r.ID)))
			continue
		}
		item := evidence.FrameItem{BusinessID: string(r.Business), MessageID: string(r.ID)}
		if e, err := evidence.ParseEnvelope(r.Payload); err == nil {
			item.PublishID = e.PublishID
		}
		ix.Learn(item)
		items = append(items, item)
	}
	return items
}

// Request is a request that awaits its reply.
type Request struct {
	Kind  string // if empty, its reply is not recorded either
	Items []evidence.FrameItem
}

// Reply returns the frame of the request's reply.
func (r Request) Reply(status string, raw []byte) links.Frame {
	f := links.Frame{Kind: ReplyTo(r.Kind), Items: r.Items, Raw: raw}
	if f.Kind != "" {
		f.Status = status
	}
	return f
}

const (
	// maxPending bounds a connection's unanswered requests.
	maxPending = 1 << 12
	// Part is the size from which a long reply is forwarded in parts. All but
	// the last part pass unrecorded, so that replies are not buffered whole.
	Part = 64 << 10
)

// Exchange is the state shared by both directions of a connection. Safe for
// concurrent use.
type Exchange struct {
	mu       sync.Mutex
	asked    []Request // oldest first
	refused  error
	begun    bool                 // a transaction
	inserted []evidence.FrameItem // by it, the first MaxRows
}

// Ask stores a request, and returns it with the messages that it carries: for a
// COMMIT these are the ones that its transaction inserts. It is what stores them.
func (e *Exchange) Ask(r Request) (Request, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.asked) >= maxPending {
		return r, fmt.Errorf("more than %d requests without an answer", maxPending)
	}
	switch r.Kind {
	case Begin, Rollback:
		e.begun, e.inserted = r.Kind == Begin, nil
	case Insert:
		if e.begun {
			e.inserted = append(e.inserted, r.Items[:min(len(r.Items), MaxRows-len(e.inserted))]...)
		}
	case Commit:
		r.Items, e.begun, e.inserted = e.inserted, false, nil
	}
	e.asked = append(e.asked, r)
	return r, nil
}

// Waiting reports whether a request awaits its reply.
func (e *Exchange) Waiting() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.asked) > 0
}

// Answered removes the oldest request.
func (e *Exchange) Answered() Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.asked[0]
	e.asked = e.asked[1:]
	return r
}

// Refuse stops observing requests, and hence replies.
func (e *Exchange) Refuse(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused = err
}

// Observed returns an error once requests are no longer observed.
func (e *Exchange) Observed() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refused != nil {
		return fmt.Errorf("its requests are not observed: %w", e.refused)
	}
	return nil
}

// ErrUnasked: a reply arrived without a request.
var ErrUnasked = errors.New("a reply without a request")
