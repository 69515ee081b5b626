package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
)

func (s *Store) Load(ctx context.Context, settled int, fn func(store.Row) error) error {
	return s.reading(ctx, func(x *session) error {
		orders, err := s.newest(ctx, x, settled)
		if err != nil {
			return err
		}
		err = x.named(ctx, s.keys, "orders", false, orders, func(v raw) error {
			r := v.decode(s.options.Partition)
			if r.State == store.Processed || r.State == store.SettledMarker {
				r = r.Marker(r.KeepUntil)
			}
			return fn(r)
		})
		if err != nil {
			return err
		}
		return x.after(ctx, s.keys, 0, 0, false, []store.State{store.Pending, store.Dead}, func(v raw) error {
			return fn(store.Refuse(v.decode(s.options.Partition)))
		})
	})
}

// newest returns the orders of the settled rows that are kept longest, at most
// limit, in ascending order of their deadline.
func (s *Store) newest(ctx context.Context, x *session, limit int) (orders []string, err error) {
	now := "[" + moment(s.options.Now().Add(1))
	var members []string
	for _, key := range []string{s.keys[keepKey], s.keys[historyKey]} {
		top := "+"
		for n := 0; n < limit; {
			var page []string
			err := x.do(ctx, func() (err error) {
				page, err = x.ZRangeArgs(ctx, redis.ZRangeArgs{Key: key, Start: top, Stop: now, ByLex: true, Rev: true, Count: int64(min(pageRows, limit-n))}).Result()
				return err
			})
			if err != nil {
				return nil, err
			}
			if len(page) == 0 {
				break
			}
			members = append(members, page...)
			n += len(page)
			top = "(" + page[len(page)-1]
		}
	}
	slices.Sort(members)
	return ordersOf(members[max(0, len(members)-max(0, limit)):]), nil
}

// ordersOf strips the time from sorted-set members.
func ordersOf(members []string) []string {
	orders := make([]string, len(members))
	for i, m := range members {
		orders[i] = m[min(len(m), momentLength):]
	}
	return orders
}

func (s *Store) Count(ctx context.Context, settled int) (n int, err error) {
	err = s.reading(ctx, func(x *session) error {
		now := "[" + moment(s.options.Now().Add(1))
		pipe := x.Pipeline()
		live := []*redis.IntCmd{pipe.ZCard(ctx, s.keys[pendingKey]), pipe.ZCard(ctx, s.keys[deadKey])}
		finished := []*redis.IntCmd{pipe.ZLexCount(ctx, s.keys[keepKey], now, "+"), pipe.ZLexCount(ctx, s.keys[historyKey], now, "+")}
		if err := x.do(ctx, func() error { _, err := pipe.Exec(ctx); return err }); err != nil {
			return err
		}
		n = int(live[0].Val()+live[1].Val()) + min(settled, int(finished[0].Val()+finished[1].Val()))
		return nil
	})
	return n, err
}

func (s *Store) Content(ctx context.Context, messageIDs []string, fn func(store.Row) error) error {
	return s.reading(ctx, func(x *session) error {
		return x.named(ctx, s.keys, "ids", true, messageIDs, func(v raw) error {
			r := store.Refuse(v.decode(s.options.Partition))
			if r.State == store.Processed || r.State == store.SettledMarker {
				return nil
			}
			return fn(r)
		})
	})
}

func (s *Store) Rows(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
	states := allStates
	if selection.State == store.Pending || selection.State == store.Processed || selection.State == store.SettledMarker || selection.State == store.Dead {
		states = []store.State{selection.State}
	}
	return selection.Page(fn, func(give func(store.Row) error) error {
		take := func(v raw) error { return give(store.Refuse(v.decode(s.options.Partition))) }
		return s.reading(ctx, func(x *session) error {
			if selection.MessageID != "" {
				return x.named(ctx, s.keys, "ids", selection.Content, []string{selection.MessageID}, take)
			}
			return x.after(ctx, s.keys, selection.After, selection.Limit, selection.Content, states, take)
		})
	})
}

var (
	allStates = []store.State{store.Pending, store.Processed, store.SettledMarker, store.Dead}
)

// reading runs do on a read connection, separate from the writer's.
func (s *Store) reading(ctx context.Context, do func(*session) error) error {
	select {
	case <-s.closing:
		return s.wrap(store.ErrClosed)
	default:
	}
	var x *session
	select {
	case x = <-s.readers:
	case <-ctx.Done():
		return s.wrap(ctx.Err())
	case <-s.closing:
		return s.wrap(store.ErrClosed)
	}
	defer func() { s.readers <- x }()
	if x != nil && x.do(ctx, func() error { return x.Ping(ctx).Err() }) != nil { // the connection was lost while idle
		x.drop()
		x = nil
	}
	if x == nil {
		var err error
		if x, err = s.connect(ctx); err != nil {
			x = nil
			return s.wrap(err)
		}
	}
	err := do(x)
	if err != nil { // a reply may be pending on the connection
		x.drop()
		x = nil
	}
	return err
}

// after calls fn for the rows in these states after an order, page by page. Each
// page is a consistent snapshot.
func (x *session) after(ctx context.Context, keys []string, order uint64, limit int, content bool, states []store.State, fn func(raw) error) error {
	last := orderText(int64(min(order, planted+1<<50)))
	for {
		size := pageRows
		if limit > 0 {
			size = min(size, limit)
		}
		args := []string{last, strconv.Itoa(size)}
		for _, state := range states {
			args = append(args, strconv.Itoa(int(state)))
		}
		before := last
		_, err := x.page(ctx, keys, "after", content, args, func(v raw) error {
			last = v.order
			return fn(v)
		})
		if err != nil || last == before {
			return err
		}
	}
}

// named calls fn for the rows with these orders or message IDs, page by page.
func (x *session) named(ctx context.Context, keys []string, how string, content bool, names []string, fn func(raw) error) error {
	for len(names) > 0 {
		done, err := x.page(ctx, keys, how, content, names[:min(len(names), pageRows)], fn)
		if err != nil {
			return err
		}
		names = names[done:]
	}
	return nil
}

// page runs the reading script and returns how many of the named rows it
// processed.
func (x *session) page(ctx context.Context, keys []string, how string, content bool, names []string, fn func(raw) error) (done int, err error) {
	with := ""
	if content {
		with = "content"
	}
	args := []any{how, with, pageSize}
	for _, name := range names {
		args = append(args, name)
	}
	reply, err := x.script(ctx, readScript, keys, args...)
	if err != nil {
		return 0, err
	}
	n, _ := reply[0].(int64)
	for row := range slices.Chunk(reply[1:], 4) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := fn(raw{text(row[0]), text(row[1]), text(row[2]), text(row[3]), content}); err != nil {
			return 0, err
		}
	}
	return int(n), nil
}

// All calls fn for every row of every partition in the server's database, with
// content, as stored: no payload version is refused. It reads past the broker, to
// collect evidence.
func All(ctx context.Context, dsn string, fn func(store.Row) error) error {
	server, _, err := parse(dsn)
	if err != nil {
		return err
	}
	s := &Store{server: *server}
	x, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer x.drop()
	var found []string
	for cursor := uint64(0); ; {
		var page []string
		err := x.do(ctx, func() (err error) {
			page, cursor, err = x.Scan(ctx, cursor, "custody:{*}:"+keyNames[partitionKey], pageRows).Result()
			return err
		})
		if err != nil {
			return err
		}
		found = append(found, page...)
		if cursor == 0 {
			break
		}
	}
	slices.Sort(found) // SCAN may return a key more than once
	for _, key := range slices.Compact(found) {
		var names []any
		err := x.do(ctx, func() (err error) { names, err = x.HMGet(ctx, key, "connection", "identity").Result(); return err })
		if err != nil {
			return err
		}
		p := store.Partition{Connection: text(names[0]), Identity: text(names[1])}
		keys := keysOf(p)
		if keys[partitionKey] != key {
			return errors.New("redisstore: key " + strings.ToValidUTF8(key, "?") + " is not of the partition that it names")
		}
		err = x.after(ctx, keys, 0, 0, true, allStates, func(v raw) error { return fn(v.decode(p)) })
		if err != nil {
			return err
		}
	}
	return nil
}
