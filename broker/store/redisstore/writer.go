package redisstore

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// writer is the writing connection, with what is known of its last write. Whoever
// received it from Store.writer has exclusive use of it.
type writer struct {
	store   *Store
	token   string   // identifies this store's scripts among those of other writers
	session *session // nil after it was thrown away
	claimed bool
	mark    mark
	fences  int64 // the last fence requested; the server may have it, though the mark is behind

	doubt   *doubt
	absent  bool  // the last write is proven not stored
	untold  error // why the outcome of the last write cannot be determined
	stopped error // every further write is refused
}

// mark is what the partition's key records of its last batch, besides the
// writer's token. The fence is not part of a batch: a late script that was
// certified absent finds the fence moved and changes nothing.
type mark struct{ batch, order, fence int64 }

// doubt is a batch that may be stored, in which case this is the mark.
type doubt struct {
	after mark
	past  bool // a later call wrote nothing
}

//go:embed common.lua
var common string

//go:embed claim.lua
var claimText string

//go:embed certify.lua
var certifyText string

//go:embed write.lua
var writeText string

//go:embed read.lua
var readText string

var (
	claimScript   = redis.NewScript(common + claimText)
	certifyScript = redis.NewScript(common + certifyText)
	writeScript   = redis.NewScript(common + writeText)
	readScript    = redis.NewScript(common + readText)
)

// layout is the version of the key layout. Any other is refused.
const layout = "1"

func newToken() string { return rand.Text() }

// patience is how long a connection that has just ended may still be listed.
const patience = 500 * time.Millisecond

// open connects and claims the partition.
func (w *writer) open(ctx context.Context) (err error) {
	x, err := w.store.connect(ctx)
	if err != nil {
		return w.store.wrap(err)
	}
	w.session = x
	defer func() {
		if err != nil {
			w.drop()
			err = w.store.wrap(err)
		}
	}()
	run, err := x.prepare(ctx, w.store.options.Sync, w.store.demands)
	if err != nil {
		return err
	}
	var client int64
	if err := x.do(ctx, func() (err error) { client, err = x.ClientID(ctx).Result(); return err }); err != nil {
		return fmt.Errorf("CLIENT ID: %w", err)
	}
	if w.claimed { // a new connection of the same store: the mark is unchanged
		return w.claim(ctx, w.token, client, run)
	}
	for began := time.Now(); ; {
		before, who, err := w.holder(ctx, run)
		if err != nil {
			return err
		}
		if who == "" {
			if err := w.claim(ctx, before, client, run); !errors.Is(err, errTaken) {
				return err
			}
		} else if time.Since(began) > patience {
			return fmt.Errorf("partition %v is owned by %s: stop it, or give this broker another name or storage identity", w.store.options.Partition, who)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(patience / 20):
		}
	}
}

// holder returns the token of the partition's last owner, and its name if its
// connection still exists.
func (w *writer) holder(ctx context.Context, run string) (token, who string, err error) {
	x := w.session
	var found []any
	err = x.do(ctx, func() (err error) {
		found, err = x.HMGet(ctx, w.store.keys[partitionKey], "writer", "owner", "client", "run").Result()
		return err
	})
	if err != nil {
		return "", "", fmt.Errorf("look for the owner: %w", err)
	}
	token, who = text(found[0]), text(found[1])
	if token == "" || text(found[3]) != run { // no connection outlives the server's run
		return token, "", nil
	}
	var listed string
	err = x.do(ctx, func() (err error) {
		listed, err = x.Do(ctx, "CLIENT", "LIST", "ID", text(found[2])).Text()
		return err
	})
	if err != nil {
		return "", "", fmt.Errorf("CLIENT LIST, which tells whether the owner is there: %w", err)
	}
	if listed == "" {
		who = ""
	}
	return token, who, nil
}

// errTaken reports that another writer claimed the partition first.
var errTaken = errors.New("taken")

func (w *writer) claim(ctx context.Context, before string, client int64, run string) error {
	p := w.store.options.Partition
	reply, err := w.session.write(ctx, claimScript, w.store.demands.replicas, claimPatience, w.store.keys, layout, w.token, before, p.Connection, p.Identity, owner(p), client, run)
	if err != nil {
		return fmt.Errorf("take the partition: %w", err)
	}
	switch text(reply[0]) {
	case "layout":
		return fmt.Errorf("the partition's keys have layout %s, and this build knows %s: use one that fits", text(reply[1]), layout)
	case "foreign":
		return fmt.Errorf("key %s is a %s, and none of this partition's: remove it", text(reply[1]), text(reply[2]))
	case "taken":
		if w.claimed {
			return w.fenced(text(reply[1]), text(reply[2]))
		}
		return errTaken
	}
	now, err := numbers(reply[1:])
	if err != nil {
		return err
	}
	if !w.claimed {
		w.mark, w.claimed = mark{batch: now[0], fence: now[1], order: now[2]}, true
		w.fences = w.mark.fence
	}
	return nil
}

// release gives the partition up, so that the next owner need not check this
// connection.
func (w *writer) release() {
	if x := w.session; x != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
		defer cancel()
		p := w.store.options.Partition
		_, _ = x.script(ctx, claimScript, w.store.keys, layout, w.token, w.token, p.Connection, p.Identity, owner(p), 0, "") // on failure the next owner sees that the connection is gone
		w.drop()
	}
}

// drop closes the connection.
func (w *writer) drop() {
	if w.session != nil {
		w.session.drop()
		w.session = nil
	}
}

func (w *writer) usable(ctx context.Context) error {
	if w.stopped != nil {
		return w.stopped
	}
	if w.session == nil {
		return w.open(ctx)
	}
	return nil
}

// transact runs one batch and determines, where possible, whether it is stored.
func (w *writer) transact(ctx context.Context, fill func(*batchArgs) error) error {
	err := w.attempt(ctx, fill)
	if errors.Is(err, errSpent) && ctx.Err() == nil { // the server had closed the idle connection
		err = w.attempt(ctx, fill)
	}
	return err
}

func (w *writer) attempt(ctx context.Context, fill func(*batchArgs) error) error {
	err := w.usable(ctx)
	if err == nil && (w.doubt != nil || w.mark.fence != w.fences) {
		err = w.certify(ctx)
	}
	if err != nil {
		return w.notWritten(err)
	}
	b := &batchArgs{w: w, mark: w.mark}
	if err := fill(b); err != nil {
		return w.notWritten(err)
	}
	b.mark.batch++
	o := w.store.options
	args := append([]any{w.token, w.mark.batch, w.mark.fence, b.mark.batch, b.mark.order,
		int(wire.OldestVersion), int(wire.Version), o.MaxSettled, b.sweepTo, sweepAtOnce}, b.args...)
	reply, err := w.session.write(ctx, writeScript, w.store.demands.replicas, replicaPatience, w.store.keys, args...)
	w.untold = nil
	before := w.mark
	switch {
	case err == nil:
		return w.read(reply, b.mark)
	case errors.Is(err, errUnreplicated):
		if failed := w.read(reply, b.mark); failed != nil || w.mark == before {
			return failed // nothing of it was written, so that nothing had to be acknowledged
		}
		w.mark = before
		w.doubt = &doubt{after: b.mark}
		return &store.Failure{Err: w.store.wrap(err)}
	case errors.Is(err, errSpent) || refused(err):
		return w.notWritten(err)
	case answered(err):
		// Redis does not roll back a failed script.
		w.stopped = fmt.Errorf("a script failed, and may have written a part: restart the broker, and look for damaged rows: %w", err)
		w.absent, w.untold = false, w.stopped
		return &store.Failure{Err: w.store.wrap(w.stopped)}
	}
	w.drop()
	w.absent, w.doubt = false, &doubt{after: b.mark}
	return &store.Failure{Err: w.store.wrap(err)}
}

// read interprets the script's reply.
func (w *writer) read(reply []any, after mark) error {
	switch text(reply[0]) {
	case "exists":
		return w.notWritten(&store.ExistsError{MessageID: text(reply[1])})
	case "fenced":
		return w.notWritten(w.fenced(text(reply[1]), text(reply[2])))
	}
	w.absent = false
	if text(reply[1]) == strconv.FormatInt(after.batch, 10) { // otherwise the batch changed nothing
		w.mark = after
	}
	return nil
}

func (w *writer) notWritten(err error) error {
	w.none()
	if errors.Is(err, errSpent) {
		w.drop()
	}
	if full(err) {
		err = fmt.Errorf("%w: %w", store.ErrFull, err)
	}
	return &store.Failure{NotWritten: true, Err: w.store.wrap(err)}
}

// none records a call that wrote nothing. Doubt about an earlier call remains.
func (w *writer) none() {
	w.absent, w.untold = true, nil
	if w.doubt != nil {
		w.doubt.past = true
	}
}

// fenced stops the writer because the mark is not what it wrote last.
func (w *writer) fenced(token, batch string) error {
	why := "two brokers share a connection's name and a storage identity; stop one, and restart the other"
	if token == w.token || token == "" {
		why = fmt.Sprintf("its mark is %q, and was %d: the server has lost what it had confirmed, or was replaced by another; restart the broker", batch, w.mark.batch)
	}
	w.stopped = fmt.Errorf("%w: partition %v: %s", store.ErrFenced, w.store.options.Partition, why)
	return w.stopped
}

// certify moves the fence with a write of its own and reads the mark. Redis runs
// scripts one at a time: the doubtful one has run, or it runs later and the fence
// stops it. The AOF is written in order, so this write makes everything before it
// durable.
func (w *writer) certify(ctx context.Context) error {
	err := w.move(ctx)
	if errors.Is(err, errSpent) && ctx.Err() == nil {
		w.drop()
		err = w.move(ctx)
	}
	return err
}

func (w *writer) move(ctx context.Context) error {
	if err := w.usable(ctx); err != nil {
		return err
	}
	w.fences++
	fence := w.fences
	reply, err := w.session.write(ctx, certifyScript, w.store.demands.replicas, replicaPatience, w.store.keys, w.token, fence)
	if err != nil {
		if !errors.Is(err, errUnreplicated) {
			w.drop()
		}
		return err
	}
	d := w.doubt
	now := w.mark
	switch text(reply[0]) {
	case "fenced":
		w.doubt, w.untold = nil, w.fenced(text(reply[1]), text(reply[2]))
		return nil
	case "ok":
		if now.batch, err = number(reply[1]); err != nil {
			return err
		}
	default:
		return fmt.Errorf("the fence %d came late", fence)
	}
	w.doubt = nil
	switch {
	case now.batch == w.mark.batch: // the doubtful batch, if any, is absent
		w.absent = w.absent || d != nil
		w.mark.fence = fence
	case d != nil && now.batch == d.after.batch:
		w.absent, w.mark = d.past, d.after
		w.mark.fence = fence
	default:
		w.untold = w.fenced(w.token, strconv.FormatInt(now.batch, 10))
	}
	return nil
}

// batchArgs builds the arguments of the writing script.
type batchArgs struct {
	w       *writer
	mark    mark // if the batch is stored
	args    []any
	sweepTo string
}

// width is the number of script arguments per operation.
const width = 7

func (b *batchArgs) add(kind store.OperationKind, id string, values ...any) {
	b.args = append(b.args, kind.String(), id)
	b.args = append(b.args, values...)
	for range width - 2 - len(values) {
		b.args = append(b.args, "")
	}
}

func (b *batchArgs) apply(batch []store.Operation) error {
	b.args = make([]any, 0, width*len(batch))
	for i := range batch {
		op, r := &batch[i], &batch[i].Row
		switch op.Kind {
		case store.Insert:
			b.mark.order++
			values, err := encode(r, b.mark.order)
			if err != nil {
				return err
			}
			b.add(op.Kind, r.MessageID, values...)
		case store.Attempt:
			b.add(op.Kind, r.MessageID, r.Attempts, r.Group, r.LastConsumer)
		case store.DeadLetter:
			b.add(op.Kind, r.MessageID, r.Reason, r.LastConsumer)
		case store.Redrive:
			b.add(op.Kind, r.MessageID, moment(r.ExpiresAt))
		case store.Settle, store.Delete, store.Discard:
			kind := op.Kind
			if kind == store.Delete && b.w.store.options.KeepHistory {
				kind = store.Settle
			}
			b.add(kind, r.MessageID, moment(r.KeepUntil), r.Reason)
		}
	}
	return nil
}

// expire ends pending rows whose deadline has passed, and sweeps markers whose
// window is over. No one else can write between its reads and the script, because
// the script would then find another mark.
func (b *batchArgs) expire(ctx context.Context, now, keepUntil time.Time, limit int) (ids []string, err error) {
	bound := "(" + moment(now.Add(1))
	b.sweepTo = bound
	x, keys := b.w.session, b.w.store.keys
	for from := "-"; len(ids) < limit; {
		var members []string
		err := x.do(ctx, func() (err error) {
			members, err = x.ZRangeArgs(ctx, redis.ZRangeArgs{Key: keys[expiryKey], Start: from, Stop: bound, ByLex: true, Count: pageRows}).Result()
			return err
		})
		if err != nil {
			return nil, err
		}
		// Skip damaged rows: the deadline itself may be damaged.
		_, err = x.page(ctx, keys, "orders", false, ordersOf(members), func(r raw) error {
			row := r.decode(b.w.store.options.Partition)
			if row.State == store.Pending && store.Readable(row.Version) && !row.ExpiresAt.After(now) && len(ids) < limit {
				ids = append(ids, row.MessageID)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(members) < pageRows {
			break
		}
		from = "(" + members[len(members)-1]
	}
	ends := make([]store.Operation, len(ids))
	for i, id := range ids {
		ends[i] = store.Expiry(id, keepUntil)
	}
	return ids, b.apply(ends)
}
