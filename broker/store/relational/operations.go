package relational

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// change is an operation on existing rows in the state from, as SQL.
type change struct {
	from store.State
	set  string // empty: delete the rows
	with []func(rows []*store.Row) column
	mark bool // turns rows into settled markers
}

// Columns that a change takes from the operation's row. Their names in v differ
// from those of the table's columns, which MySQL could not tell apart.
var (
	newAttempts  = intsOf("new_attempts", func(r *store.Row) int64 { return int64(r.Attempts) })
	newGroup     = textsOf("new_competitor", func(r *store.Row) string { return r.Group })
	newConsumer  = textsOf("new_consumer", func(r *store.Row) string { return r.LastConsumer })
	newReason    = textsOf("new_reason", func(r *store.Row) string { return r.Reason })
	newKeepUntil = timesOf("new_keep_until", func(r *store.Row) time.Time { return r.KeepUntil })
	newExpiresAt = timesOf("new_expires_at", func(r *store.Row) time.Time { return r.ExpiresAt })
	nothing      = textsOf("nothing", func(*store.Row) string { return "" })

	toMarker = fmt.Sprintf(`state = %d, keep_until = v.new_keep_until, topic = v.nothing, competitor = v.nothing, routing_key = v.nothing,
		expires_at = NULL, attempts = 0, last_consumer = v.nothing, reason = v.new_reason, size = 0, content_sum = 0, head_sum = 0,
		headers = v.nothing, payload = v.nothing`, store.SettledMarker)

	attempt = change{from: store.Pending, set: "attempts = v.new_attempts, competitor = v.new_competitor, last_consumer = v.new_consumer",
		with: []func([]*store.Row) column{newAttempts, newGroup, newConsumer}}
	settle = change{from: store.Pending, set: fmt.Sprintf("state = %d, keep_until = v.new_keep_until, reason = v.new_reason", store.Processed),
		with: []func([]*store.Row) column{newKeepUntil, newReason}}
	leaveMarker = change{from: store.Pending, set: toMarker, with: []func([]*store.Row) column{newKeepUntil, newReason, nothing}, mark: true}
	remove      = change{from: store.Pending}
	bury        = change{from: store.Pending, set: fmt.Sprintf("state = %d, reason = v.new_reason, last_consumer = v.new_consumer", store.Dead),
		with: []func([]*store.Row) column{newReason, newConsumer}}
	redrive = change{from: store.Dead, set: fmt.Sprintf("state = %d, attempts = 0, reason = v.nothing, expires_at = v.new_expires_at", store.Pending),
		with: []func([]*store.Row) column{nothing, newExpiresAt}}
	discard       = change{from: store.Dead}
	discardMarker = change{from: store.Dead, set: toMarker, with: []func([]*store.Row) column{newKeepUntil, newReason, nothing}, mark: true}
)

// changeOf returns the change that an operation makes; nil for an insert.
func (s *Store) changeOf(op *store.Operation) *change {
	forget := op.Row.KeepUntil.IsZero()
	switch {
	case op.Kind == store.Attempt:
		return &attempt
	case op.Kind == store.Settle, op.Kind == store.Delete && s.options.KeepHistory:
		return &settle
	case op.Kind == store.Delete && forget:
		return &remove
	case op.Kind == store.Delete:
		return &leaveMarker
	case op.Kind == store.DeadLetter:
		return &bury
	case op.Kind == store.Redrive:
		return &redrive
	case op.Kind == store.Discard && forget:
		return &discard
	case op.Kind == store.Discard:
		return &discardMarker
	}
	return nil
}

// apply runs a batch in few statements. Operations on different messages may be
// reordered; those on the same message run in order, in successive rounds.
func (t *transaction) apply(batch []store.Operation) error {
	type round struct {
		kinds  []*change // in order of first use
		rows   map[*change][]*store.Row
		orders []int64 // assigned to the inserts
	}
	var rounds []*round
	seen := make(map[string]int, len(batch))
	for i := range batch {
		op := &batch[i]
		n := seen[op.Row.MessageID]
		seen[op.Row.MessageID]++
		if n == len(rounds) {
			rounds = append(rounds, &round{rows: map[*change][]*store.Row{}})
		}
		r, c := rounds[n], t.w.store.changeOf(op)
		if r.rows[c] == nil {
			r.kinds = append(r.kinds, c)
		}
		r.rows[c] = append(r.rows[c], &op.Row)
		if c == nil {
			t.mark.order++
			r.orders = append(r.orders, t.mark.order)
		}
	}
	for _, r := range rounds {
		for _, c := range r.kinds {
			var err error
			if c == nil {
				err = t.insert(r.rows[nil], r.orders)
			} else {
				err = t.alter(c, r.rows[c])
			}
			if err != nil {
				return err
			}
		}
	}
	if surplus := t.mark.settled - int64(t.w.store.options.MaxSettled); surplus > 0 {
		return t.sweep("", min(surplus, sweepAtOnce))
	}
	return nil
}

const theRow = "r.message_id = v.id"

// where restricts a change to this partition, to rows in the state in which it
// begins, and to payload versions that this build can read.
func (t *transaction) where(from store.State) string {
	return fmt.Sprintf("r.part = %d AND r.state = %d AND r.version BETWEEN %d AND %d", t.w.partition, from, wire.OldestVersion, wire.Version)
}

func (t *transaction) alter(c *change, rows []*store.Row) error {
	for len(rows) > 0 {
		some := rows[:min(len(rows), statementRows)]
		rows = rows[len(some):]
		columns := []column{textsOf("id", func(r *store.Row) string { return r.MessageID })(some)}
		for _, with := range c.with {
			columns = append(columns, with(some))
		}
		v, args := t.w.store.dialect.values(columns)
		statement := t.w.store.dialect.remove(v, theRow, t.where(c.from))
		if c.set != "" {
			statement = t.w.store.dialect.update(c.set, v, theRow, t.where(c.from))
		}
		n, err := t.exec(statement, args...)
		if err != nil {
			return err
		}
		if c.mark {
			t.mark.settled += n
		}
	}
	return nil
}

func (t *transaction) insert(rows []*store.Row, orders []int64) error {
	for len(rows) > 0 {
		n, size := 0, 0
		for n < len(rows) && n < statementRows && (n == 0 || size+len(rows[n].Payload) <= statementSize) {
			size += len(rows[n].Payload)
			n++
		}
		if err := t.insertSome(rows[:n], orders[:n]); err != nil {
			return err
		}
		rows, orders = rows[n:], orders[n:]
	}
	return nil
}

func (t *transaction) insertSome(rows []*store.Row, orders []int64) error {
	statement, args, err := t.insertion(rows, orders)
	if err != nil {
		return err
	}
	if _, err = t.exec(statement, args...); err != nil && t.w.store.dialect.duplicate(err) {
		err = fmt.Errorf("%w: %w", errDuplicate, err)
	}
	return err
}

func (t *transaction) insertion(rows []*store.Row, orders []int64) (statement string, args []any, err error) {
	headers := make([][]byte, len(rows))
	contents, heads, sizes := make([]int64, len(rows)), make([]int64, len(rows)), make([]int64, len(rows))
	for i, r := range rows {
		headers[i] = []byte{}
		if len(r.Headers) > 0 {
			text, err := json.Marshal(r.Headers)
			if err != nil {
				return "", nil, fmt.Errorf("headers of %s: %w", r.MessageID, err)
			}
			headers[i] = text
		}
		sizes[i] = int64(len(headers[i]) + len(r.Payload))
		contents[i] = contentSum(r.MessageID, headers[i], r.Payload)
		heads[i] = headSum(r, sizes[i], contents[i])
	}
	columns := []column{
		{name: "ord", ints: orders},
		textsOf("message_id", func(r *store.Row) string { return r.MessageID })(rows),
		intsOf("version", func(r *store.Row) int64 { return int64(r.Version) })(rows),
		textsOf("business_id", func(r *store.Row) string { return r.BusinessID })(rows),
		textsOf("topic", func(r *store.Row) string { return r.Topic })(rows),
		textsOf("competitor", func(r *store.Row) string { return r.Group })(rows),
		textsOf("routing_key", func(r *store.Row) string { return r.Key })(rows),
		intsOf("inserted_at", func(r *store.Row) int64 { return r.InsertedAt.UnixNano() })(rows),
		timesOf("expires_at", func(r *store.Row) time.Time { return r.ExpiresAt })(rows),
		intsOf("attempts", func(r *store.Row) int64 { return int64(r.Attempts) })(rows),
		textsOf("last_consumer", func(r *store.Row) string { return r.LastConsumer })(rows),
		textsOf("reason", func(r *store.Row) string { return r.Reason })(rows),
		{name: "size", ints: sizes}, {name: "content_sum", ints: contents}, {name: "head_sum", ints: heads},
		{name: "headers", texts: headers},
		textsOf("payload", func(r *store.Row) string { return string(r.Payload) })(rows),
	}
	v, args := t.w.store.dialect.values(columns)
	list := names(columns)
	return fmt.Sprintf("INSERT INTO custody_row (part, state, %s) SELECT %d, %d, %s FROM %s", list, t.w.partition, store.Pending, list, v), args, nil
}

// expire ends pending rows whose deadline has passed, and sweeps markers whose
// window is over.
func (t *transaction) expire(now, keepUntil time.Time, limit int) (ids []string, err error) {
	if err := t.sweep(fmt.Sprintf(" AND keep_until <= %d", now.UnixNano()), sweepAtOnce); err != nil {
		return nil, err
	}
	if limit <= 0 {
		return nil, nil
	}
	// Skip damaged rows: the deadline itself may be damaged.
	var due []store.Operation
	statement := fmt.Sprintf("SELECT %s FROM custody_row AS r WHERE %s AND r.expires_at <= %d ORDER BY r.expires_at, r.ord", head, t.where(store.Pending), now.UnixNano())
	err = t.w.store.query(t.ctx, t.w.conn, statement+t.w.store.dialect.limit, false, func(r store.Row) error {
		if r.State == store.Pending {
			due = append(due, store.Expiry(r.MessageID, keepUntil))
		}
		return nil
	}, limit)
	if err != nil || len(due) == 0 {
		return nil, err
	}
	for _, op := range due {
		ids = append(ids, op.Row.MessageID)
	}
	return ids, t.apply(due)
}

// sweep deletes at most n markers, those with the earliest deadline first.
func (t *transaction) sweep(which string, n int64) error {
	statement := fmt.Sprintf("SELECT ord FROM custody_row WHERE part = %d AND state = %d%s ORDER BY keep_until, ord", t.w.partition, store.SettledMarker, which)
	rows, err := t.w.conn.QueryContext(t.ctx, t.w.store.dialect.bind(statement+t.w.store.dialect.limit), n)
	if err != nil {
		return err
	}
	var orders []int64
	for rows.Next() {
		var ord int64
		if err := rows.Scan(&ord); err != nil {
			_ = rows.Close()
			return err
		}
		orders = append(orders, ord)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for len(orders) > 0 {
		some := orders[:min(len(orders), statementRows)]
		orders = orders[len(some):]
		v, args := t.w.store.dialect.values([]column{{name: "marker", ints: some}})
		n, err := t.exec(t.w.store.dialect.remove(v, "r.ord = v.marker", fmt.Sprintf("r.part = %d AND r.state = %d", t.w.partition, store.SettledMarker)), args...)
		if err != nil {
			return err
		}
		t.mark.settled -= n
	}
	return nil
}

func textsOf(name string, of func(*store.Row) string) func([]*store.Row) column {
	return func(rows []*store.Row) column {
		c := column{name: name, texts: make([][]byte, len(rows))}
		for i, r := range rows {
			c.texts[i] = []byte(of(r))
		}
		return c
	}
}

func intsOf(name string, of func(*store.Row) int64) func([]*store.Row) column {
	return func(rows []*store.Row) column {
		c := column{name: name, ints: make([]int64, len(rows))}
		for i, r := range rows {
			c.ints[i] = of(r)
		}
		return c
	}
}

// timesOf maps the zero time to NULL.
func timesOf(name string, of func(*store.Row) time.Time) func([]*store.Row) column {
	return func(rows []*store.Row) column {
		c := column{name: name, orNull: make([]*int64, len(rows))}
		for i, r := range rows {
			if at := of(r); !at.IsZero() {
				n := at.UnixNano()
				c.orNull[i] = &n
			}
		}
		return c
	}
}
