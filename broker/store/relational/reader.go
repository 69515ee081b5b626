package relational

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/custodymq/custody/broker/store"
)

const (
	head  = "r.ord, r.message_id, r.state, r.version, r.business_id, r.topic, r.competitor, r.routing_key, r.inserted_at, r.expires_at, r.attempts, r.last_consumer, r.reason, r.keep_until, r.size, r.content_sum, r.head_sum"
	whole = head + ", r.headers, r.payload"
)

func (s *Store) Load(ctx context.Context, settled int, fn func(store.Row) error) error {
	return s.read(ctx, func(conn *sql.Conn, part int64) error {
		// The newest markers, oldest first. Everything else comes in the table's
		// order.
		if settled > 0 {
			newest := fmt.Sprintf(`SELECT %s FROM custody_row AS r WHERE r.part = %d AND r.state IN (%d, %d) AND r.keep_until > %d ORDER BY r.keep_until DESC, r.ord DESC`,
				head, part, store.Processed, store.SettledMarker, time.Now().UnixNano())
			statement := "SELECT * FROM (" + newest + s.dialect.limit + ") AS r ORDER BY r.keep_until, r.ord"
			err := s.query(ctx, conn, statement, false, func(r store.Row) error {
				return fn(r.Marker(r.KeepUntil))
			}, settled)
			if err != nil {
				return err
			}
		}
		return s.query(ctx, conn, fmt.Sprintf("SELECT %s FROM custody_row AS r WHERE r.part = %d AND r.state IN (%d, %d) ORDER BY r.ord",
			head, part, store.Pending, store.Dead), false, fn)
	})
}

func (s *Store) Count(ctx context.Context, settled int) (n int, err error) {
	err = s.read(ctx, func(conn *sql.Conn, part int64) error {
		var finished int
		statement := fmt.Sprintf("SELECT COUNT(CASE WHEN state IN (%d, %d) THEN 1 END), COUNT(CASE WHEN state IN (%d, %d) AND keep_until > %d THEN 1 END) FROM custody_row WHERE part = %d",
			store.Pending, store.Dead, store.Processed, store.SettledMarker, time.Now().UnixNano(), part)
		err := conn.QueryRowContext(ctx, statement).Scan(&n, &finished)
		n += min(settled, finished)
		return err
	})
	return n, err
}

func (s *Store) Content(ctx context.Context, messageIDs []string, fn func(store.Row) error) error {
	return s.find(ctx, messageIDs, whole, fmt.Sprintf(" AND r.state IN (%d, %d)", store.Pending, store.Dead), func(rows *sql.Rows) error {
		r, err := s.scan(rows, true)
		if err != nil {
			return err
		}
		return fn(r)
	})
}

// find reads columns of the rows with these message IDs, in the order of the IDs.
func (s *Store) find(ctx context.Context, ids []string, columns, and string, fn func(*sql.Rows) error) error {
	return s.read(ctx, func(conn *sql.Conn, part int64) error {
		for len(ids) > 0 {
			some := ids[:min(len(ids), statementRows)]
			ids = ids[len(some):]
			asked := column{name: "id", texts: make([][]byte, len(some))}
			place := column{name: "place", ints: make([]int64, len(some))}
			for i, id := range some {
				asked.texts[i], place.ints[i] = []byte(id), int64(i)
			}
			v, args := s.dialect.values([]column{asked, place})
			statement := fmt.Sprintf("SELECT %s FROM %s JOIN custody_row AS r ON %s WHERE r.part = %d%s ORDER BY v.place", columns, v, theRow, part, and)
			rows, err := conn.QueryContext(ctx, s.dialect.bind(statement), args...)
			if err == nil {
				err = each(ctx, rows, fn)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Store) Rows(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
	return s.read(ctx, func(conn *sql.Conn, part int64) error {
		columns := head
		if selection.Content {
			columns = whole
		}
		statement := fmt.Sprintf("SELECT %s FROM custody_row AS r WHERE r.part = %d AND r.ord > ?", columns, part)
		args := []any{int64(min(selection.After, 1<<63-1))}
		if selection.MessageID != "" {
			statement += " AND r.message_id = ?"
			args = append(args, []byte(selection.MessageID))
		}
		if selection.State == store.Dead { // other states match few rows or lack an index
			statement += fmt.Sprintf(" AND r.state = %d", store.Dead)
		}
		return selection.Page(fn, func(give func(store.Row) error) error {
			return s.query(ctx, conn, statement+" ORDER BY r.ord", selection.Content, give, args...)
		})
	})
}

// read runs do on a connection of its own, separate from the writer's.
func (s *Store) read(ctx context.Context, do func(conn *sql.Conn, part int64) error) error {
	select {
	case <-s.closing:
		return s.wrap(store.ErrClosed)
	default:
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.wrap(fmt.Errorf("connect: %w", err))
	}
	defer conn.Close()
	return do(conn, s.part)
}

func (s *Store) query(ctx context.Context, conn *sql.Conn, statement string, content bool, fn func(store.Row) error, args ...any) error {
	rows, err := conn.QueryContext(ctx, s.dialect.bind(statement), args...)
	if err == nil {
		err = each(ctx, rows, func(rows *sql.Rows) error {
			r, err := s.scan(rows, content)
			if err != nil {
				return err
			}
			return fn(r)
		})
	}
	return err
}

func each(ctx context.Context, rows *sql.Rows, fn func(*sql.Rows) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := ctx.Err(); err != nil { // the driver may have buffered more rows
			return err
		}
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// scan reads a row and verifies it.
func (s *Store) scan(rows *sql.Rows, content bool) (store.Row, error) {
	var (
		r                                                 store.Row
		id, business, topic, group, key, consumer, why    []byte
		headers, payload                                  []byte
		state, version, inserted, size, contentIs, headIs int64
		expires, keep                                     sql.NullInt64
	)
	to := []any{&r.Order, &id, &state, &version, &business, &topic, &group, &key, &inserted, &expires, &r.Attempts, &consumer, &why, &keep, &size, &contentIs, &headIs}
	if content {
		to = append(to, &headers, &payload)
	}
	if err := rows.Scan(to...); err != nil {
		return r, err
	}
	r.State, r.Version, r.Size, r.Partition = store.State(state), uint8(version), int(size), s.options.Partition
	r.MessageID, r.BusinessID, r.Topic, r.Group, r.Key = string(id), string(business), string(topic), string(group), string(key)
	r.LastConsumer, r.Reason, r.InsertedAt = string(consumer), string(why), time.Unix(0, inserted)
	r.ExpiresAt, r.KeepUntil = timeOf(expires), timeOf(keep)
	if r.State == store.SettledMarker {
		return r, nil
	}
	sound := headIs == headSum(&r, size, contentIs)
	if content && sound {
		sound = contentIs == contentSum(r.MessageID, headers, payload)
		r.Payload = payload
		if sound && len(headers) > 0 && store.Readable(r.Version) {
			sound = json.Unmarshal(headers, &r.Headers) == nil
		}
	}
	if !sound {
		return store.Row{
			Order: r.Order, State: store.Damaged, MessageID: r.MessageID, BusinessID: r.BusinessID, Topic: r.Topic,
			Version: r.Version, InsertedAt: r.InsertedAt, Size: r.Size, Partition: r.Partition,
			Reason: "it fails its checksum (as " + r.State.String() + ")",
		}, nil
	}
	return store.Refuse(r), nil
}

func timeOf(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.Unix(0, n.Int64)
}

// The checksums cover what never changes while a row has content. What does
// change is left to the server, which has checksums for its pages.

// contentSum covers the message ID too, so that another row's content does not
// match.
func contentSum(messageID string, headers, payload []byte) int64 {
	return sum([]byte(messageID), headers, payload)
}

func headSum(r *store.Row, size, content int64) int64 {
	var numbers []byte
	for _, n := range []int64{int64(r.Version), r.InsertedAt.UnixNano(), size, content} {
		numbers = binary.LittleEndian.AppendUint64(numbers, uint64(n))
	}
	return sum([]byte(r.MessageID), []byte(r.BusinessID), []byte(r.Topic), []byte(r.Key), numbers)
}

func sum(parts ...[]byte) int64 {
	var digest xxhash.Digest
	digest.Reset()
	var length [8]byte
	for _, part := range parts {
		binary.LittleEndian.PutUint64(length[:], uint64(len(part)))
		_, _ = digest.Write(length[:]) // hash.Hash never returns an error
		_, _ = digest.Write(part)
	}
	return int64(digest.Sum64())
}
