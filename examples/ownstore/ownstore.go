// Package ownstore is a store of one's own for the reference broker: a file of
// bbolt's for each partition. It shows what the contract store.Store asks for;
// its test runs the suite that Custody's own backends pass.
package ownstore

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/custodymq/custody/broker/store"
)

// Store is a store.Store. bbolt runs one writing transaction at a time, syncs it
// before it returns, and lets readers see the state before it: the whole of
// "durable, all or nothing, never waiting for a write". Its lock on the file makes
// sure that a partition has one owner.
//
// What became of a COMMIT that failed it cannot tell, and so it is no
// store.Certifier: the broker answers such publishes with Unknown.
type Store struct {
	options Options
	db      *bbolt.DB
}

var (
	_ store.Store   = (*Store)(nil)
	_ store.Durable = (*Store)(nil)
)

// Options of a Store. Folder and Partition are needed.
type Options struct {
	Folder      string
	Partition   store.Partition
	KeepHistory bool // Delete marks the row processed instead
	MaxSettled  int  // IDs of settled rows that are kept; 0 is 1,048,576
}

// The buckets, by what their keys are.
var (
	headBucket    = []byte("heads")    // order: the row without its content
	contentBucket = []byte("contents") // order: headers and payload, which Load does not read
	idBucket      = []byte("ids")      // message ID; the value is the order
	expiryBucket  = []byte("expiry")   // deadline and order of pending rows
	settledBucket = []byte("settled")  // until when it is kept, and order, of settled rows; its sequence counts the markers
)

// lockWait is how long another owner of the partition may take to go.
const lockWait = time.Second

// Open opens the partition's file, or makes it.
func Open(o Options) (*Store, error) {
	if o.MaxSettled <= 0 {
		o.MaxSettled = 1 << 20
	}
	// Any name is a file's name in hexadecimal, and no two names are one.
	path := filepath.Join(o.Folder, fmt.Sprintf("%x.%x.bolt", o.Partition.Connection, o.Partition.Identity))
	// A writer that lets the file grow beyond its mapping would wait for readers.
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, InitialMmapSize: 1 << 30})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("ownstore: partition %v is owned by another broker: stop it", o.Partition)
	}
	if err != nil {
		return nil, fmt.Errorf("ownstore: %w", err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{headBucket, contentBucket, idBucket, expiryBucket, settledBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ownstore: %w", err), db.Close())
	}
	return &Store{o, db}, nil
}

func (s *Store) Partition() store.Partition { return s.options.Partition }

func (s *Store) Flush() store.Flush { return store.FlushEveryCommit }

func (s *Store) Close() error { return s.db.Close() }

// Apply is one transaction.
func (s *Store) Apply(ctx context.Context, batch []store.Operation) error {
	if err := store.Check(batch); err != nil {
		return err
	}
	return s.write(ctx, func(tx *transaction) error {
		for _, op := range batch {
			if err := tx.apply(op); err != nil {
				return fmt.Errorf("%v of %s: %w", op.Kind, op.Row.MessageID, err)
			}
		}
		return tx.sweepSurplus()
	})
}

func (s *Store) Expired(ctx context.Context, now, keepUntil time.Time, limit int) (ids []string, err error) {
	err = s.write(ctx, func(tx *transaction) (err error) {
		ids, err = tx.expire(now, keepUntil, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// write says of each failure whether anything of it may be stored: before COMMIT
// nothing is, for the transaction is rolled back.
func (s *Store) write(ctx context.Context, do func(*transaction) error) error {
	err := ctx.Err()
	if err == nil {
		var began *bbolt.Tx
		if began, err = s.db.Begin(true); err == nil {
			defer began.Rollback() // does nothing after COMMIT
			if err = do(&transaction{began, s.options}); err == nil {
				if err = began.Commit(); err == nil {
					return nil
				}
				return &store.Failure{Err: s.wrap(err)}
			}
		}
	}
	return &store.Failure{NotWritten: true, Err: s.wrap(err)}
}

func (s *Store) wrap(err error) error {
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		err = store.ErrClosed
	}
	return fmt.Errorf("ownstore of %v: %w", s.options.Partition, err)
}

// Load reads the newest settled IDs by their index, then the rows in order.
func (s *Store) Load(ctx context.Context, settled int, fn func(store.Row) error) error {
	return s.read(func(tx *transaction) error {
		now, cursor := stamp(time.Now(), 0), tx.bucket(settledBucket).Cursor()
		key, _ := cursor.Last()
		var newest [][]byte
		for ; key != nil && len(newest) < settled && string(key) > string(now); key, _ = cursor.Prev() {
			newest = append(newest, key)
		}
		for i := len(newest) - 1; i >= 0; i-- {
			row, err := tx.head(newest[i][8:])
			if err == nil {
				err = fn(row.Marker(row.KeepUntil))
			}
			if err != nil {
				return err
			}
		}
		return tx.each(ctx, 0, func(row store.Row) error {
			if row.State == store.Processed || row.State == store.SettledMarker {
				return nil
			}
			return fn(row)
		})
	})
}

func (s *Store) Content(_ context.Context, messageIDs []string, fn func(store.Row) error) error {
	return s.read(func(tx *transaction) error {
		for _, id := range messageIDs {
			order := tx.bucket(idBucket).Get([]byte(id))
			if order == nil {
				continue
			}
			row, err := tx.whole(order)
			if err == nil && (row.State == store.Pending || row.State == store.Dead || row.State == store.Damaged) {
				err = fn(row)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Store) Rows(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
	return s.read(func(tx *transaction) error {
		return selection.Page(func(row store.Row) (err error) {
			if selection.Content {
				row, err = tx.whole(orderKey(row.Order))
			}
			if err != nil {
				return err
			}
			return fn(row)
		}, func(give func(store.Row) error) error { return tx.each(ctx, selection.After, give) })
	})
}

func (s *Store) read(do func(*transaction) error) error {
	tx, err := s.db.Begin(false)
	if err != nil {
		return s.wrap(err)
	}
	defer tx.Rollback()
	return do(&transaction{tx, s.options})
}

// transaction reads rows, and changes them with their indexes.
type transaction struct {
	*bbolt.Tx
	options Options
}

// content of a row, apart from its head.
type content struct {
	Headers map[string]string
	Payload []byte
}

func (tx *transaction) bucket(name []byte) *bbolt.Bucket { return tx.Tx.Bucket(name) }

func (tx *transaction) apply(op store.Operation) error {
	order := tx.bucket(idBucket).Get([]byte(op.Row.MessageID))
	if op.Kind == store.Insert {
		if order != nil {
			return &store.ExistsError{MessageID: op.Row.MessageID}
		}
		return tx.insert(op.Change(nil, false))
	}
	if order == nil {
		return nil
	}
	before, err := tx.head(order)
	if err != nil {
		return err
	}
	after := op.Change(&before, tx.options.KeepHistory)
	if after == &before {
		return nil
	}
	return tx.put(&before, after)
}

func (tx *transaction) insert(row *store.Row) error {
	order, err := tx.bucket(headBucket).NextSequence()
	if err != nil {
		return err
	}
	kept := content{row.Headers, row.Payload}
	for name, value := range row.Headers {
		row.Size += len(name) + len(value)
	}
	row.Order, row.Partition, row.Size = order, tx.options.Partition, row.Size+len(row.Payload)
	row.Headers, row.Payload = nil, nil
	return errors.Join(save(tx.bucket(contentBucket), orderKey(order), kept), tx.put(nil, row))
}

// put exchanges a row for another, or for none, and keeps the indexes to it.
func (tx *transaction) put(before, after *store.Row) error {
	var errs []error
	if before != nil {
		if index, key := indexOf(before); index != nil {
			errs = append(errs, tx.bucket(index).Delete(key))
		}
	}
	settled := tx.bucket(settledBucket)
	if was, is := isMarker(before), isMarker(after); was && !is {
		errs = append(errs, settled.SetSequence(settled.Sequence()-1))
	} else if is && !was {
		errs = append(errs, settled.SetSequence(settled.Sequence()+1))
	}
	switch {
	case after == nil || isMarker(after):
		errs = append(errs, tx.bucket(contentBucket).Delete(orderKey(before.Order)))
	case before == nil:
		errs = append(errs, tx.bucket(idBucket).Put([]byte(after.MessageID), orderKey(after.Order)))
	}
	if after == nil {
		return errors.Join(append(errs, tx.bucket(headBucket).Delete(orderKey(before.Order)), tx.bucket(idBucket).Delete([]byte(before.MessageID)))...)
	}
	if index, key := indexOf(after); index != nil {
		errs = append(errs, tx.bucket(index).Put(key, nil))
	}
	return errors.Join(append(errs, save(tx.bucket(headBucket), orderKey(after.Order), after))...)
}

func isMarker(row *store.Row) bool { return row != nil && row.State == store.SettledMarker }

// indexOf gives the index that a row is in, and its key there.
func indexOf(row *store.Row) (bucket, key []byte) {
	switch {
	case row.State == store.Pending && !row.ExpiresAt.IsZero():
		return expiryBucket, stamp(row.ExpiresAt, row.Order)
	case (row.State == store.Processed || row.State == store.SettledMarker) && !row.KeepUntil.IsZero():
		return settledBucket, stamp(row.KeepUntil, row.Order)
	}
	return nil, nil
}

func (tx *transaction) expire(now, keepUntil time.Time, limit int) (ids []string, err error) {
	var over []store.Row
	err = tx.until(settledBucket, now, func(row store.Row) bool {
		if row.State == store.SettledMarker {
			over = append(over, row)
		}
		return true
	})
	if err = errors.Join(err, tx.remove(over)); err != nil {
		return nil, err
	}
	err = tx.until(expiryBucket, now, func(row store.Row) bool {
		if len(ids) < limit && row.State == store.Pending {
			ids = append(ids, row.MessageID)
		}
		return len(ids) < limit
	})
	for _, id := range ids {
		if err == nil {
			err = tx.apply(store.Expiry(id, keepUntil))
		}
	}
	if err != nil {
		return nil, err
	}
	return ids, tx.sweepSurplus()
}

// until gives the rows of an index whose time has come, while more is wanted.
func (tx *transaction) until(index []byte, now time.Time, more func(store.Row) bool) error {
	last, cursor := stamp(now, ^uint64(0)), tx.bucket(index).Cursor()
	for key, _ := cursor.First(); key != nil && string(key) <= string(last); key, _ = cursor.Next() {
		row, err := tx.head(key[8:])
		if err != nil {
			return err
		}
		if !more(row) {
			break
		}
	}
	return nil
}

// sweepSurplus removes the markers above the limit, those first whose time ends first.
func (tx *transaction) sweepSurplus() error {
	surplus := int(tx.bucket(settledBucket).Sequence()) - tx.options.MaxSettled
	if surplus <= 0 {
		return nil
	}
	var oldest []store.Row
	err := tx.until(settledBucket, time.Unix(1<<33, 0), func(row store.Row) bool {
		if row.State == store.SettledMarker {
			oldest = append(oldest, row)
		}
		return len(oldest) < surplus
	})
	return errors.Join(err, tx.remove(oldest))
}

func (tx *transaction) remove(rows []store.Row) (err error) {
	for i := range rows {
		err = errors.Join(err, tx.put(&rows[i], nil))
	}
	return err
}

// each gives the rows behind one, in order, without content.
func (tx *transaction) each(ctx context.Context, after uint64, fn func(store.Row) error) error {
	cursor := tx.bucket(headBucket).Cursor()
	for key, value := cursor.Seek(orderKey(after + 1)); key != nil; key, value = cursor.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(decode(key, value)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (tx *transaction) head(order []byte) (store.Row, error) {
	value := tx.bucket(headBucket).Get(order)
	if value == nil {
		return store.Row{}, fmt.Errorf("an index leads to row %x, which is missing", order)
	}
	return decode(order, value), nil
}

// whole is a row with its content, where it has one that may be shown.
func (tx *transaction) whole(order []byte) (store.Row, error) {
	row, err := tx.head(order)
	if err != nil || row.State == store.Damaged || row.State == store.RefusedVersion || row.State == store.SettledMarker {
		return row, err
	}
	var c content
	if err := load(tx.bucket(contentBucket).Get(order), &c); err != nil {
		return damaged(row, err), nil
	}
	row.Headers, row.Payload = c.Headers, c.Payload
	return row, nil
}

// decode gives a row as it may be seen: one that fails its checksum is named,
// never served.
func decode(order, value []byte) store.Row {
	var row store.Row
	if err := load(value, &row); err != nil {
		row.Order = binary.BigEndian.Uint64(order)
		return damaged(row, err)
	}
	return store.Refuse(row)
}

func damaged(row store.Row, err error) store.Row {
	return store.Row{Order: row.Order, State: store.Damaged, MessageID: row.MessageID, BusinessID: row.BusinessID, Topic: row.Topic,
		Reason: err.Error(), Partition: row.Partition}
}

// save writes a value behind its checksum, and load reads it.
func save(b *bbolt.Bucket, key []byte, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return b.Put(key, append(binary.BigEndian.AppendUint64(nil, xxhash.Sum64(text)), text...))
}

func load(value []byte, into any) error {
	if len(value) < 8 {
		return errors.New("it is missing, or cut off")
	}
	err := json.Unmarshal(value[8:], into) // what can be read of a damaged one is wanted too
	if sum := xxhash.Sum64(value[8:]); sum != binary.BigEndian.Uint64(value) {
		return errors.New("its checksum does not fit")
	}
	return err
}

func orderKey(order uint64) []byte { return binary.BigEndian.AppendUint64(nil, order) }

// stamp is the key of a time and an order, sorted as they are. The sign's bit keeps
// the years before 1970 first.
func stamp(at time.Time, order uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano())^1<<63), order)
}
