package simulated

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/disk"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems/zeromq"
	"github.com/custodymq/custody/tasks"
)

// onDisk stores rows in the broker's real store, on a simulated disk.
type onDisk struct {
	in     *instance
	folder string
	path   string
	disk   *disk.Disk
	files  *faulty.VFS // layered over disk
	random *rand.Rand
	opened []*sqlite.Store // by the broker's current process
	cut    bool            // the power is cut
	holds  chan held       // file operations that wait
	closed bool
}

// held is a file operation that waits in a goroutine of the store, where there is
// no virtual time.
type held struct {
	fault  *storeFault
	atMost time.Duration
	resume chan<- error
}

var disks atomic.Uint64

// never is longer than any simulation: the store's ticker runs in real time.
const never = 24 * time.Hour

func newDisk(in *instance, seed uint64) (*onDisk, error) {
	folder, err := process.Folder()
	if err != nil {
		return nil, err
	}
	number := disks.Add(1)
	d := &onDisk{in: in, folder: folder, path: filepath.Join(folder, "broker.db"), disk: disk.New(fmt.Sprintf("simulated-disk-%d", number)),
		random: rand.New(rand.NewPCG(seed, 0x6469736b)), holds: make(chan held)}
	d.files = faulty.Over(vfs.Find(d.disk.Name()), fmt.Sprintf("simulated-files-%d", number))
	return d, nil
}

func (d *onDisk) open(p store.Partition) (store.Store, error) {
	s, err := sqlite.Open(background, sqlite.Options{Path: d.path, Partition: p, VFS: d.files.Name(), KeepHistory: d.in.system.Broker().KeepHistory,
		Sync: d.in.system.Flush, FlushInterval: never, Reserve: 1, Now: d.in.wall})
	if err != nil {
		return nil, d.hide(err)
	}
	d.opened = append(d.opened, s)
	return &beside{Store: s, disk: d}, nil
}

func (d *onDisk) read(own store.Partition, now time.Time) (evidence.Snapshot, time.Time, error) {
	return zeromq.ReadRows(background, d.path, own.String(), now)
}

func (d *onDisk) end(orderly bool) {
	if d.cut = !orderly; d.cut {
		d.disk.Off()
	}
}

// left closes what the process had open. If the process was killed, none of this
// reaches the disk.
func (d *onDisk) left() (err error) {
	for _, s := range d.opened {
		err = errors.Join(err, s.Close())
	}
	d.opened = nil
	if !d.cut {
		return d.hide(err)
	}
	d.cut = false
	return d.hide(d.disk.On(d.random, d.path)) // errors of closing without power are meaningless
}

func (d *onDisk) close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	err := d.left()
	d.files.Close()
	d.disk.Close()
	return errors.Join(err, os.RemoveAll(d.folder))
}

// hide removes the folder's random name from an error's text, to keep runs
// reproducible.
func (d *onDisk) hide(err error) error {
	if err == nil {
		return nil
	}
	return &hidden{err, strings.ReplaceAll(err.Error(), d.folder, "disk")}
}

type hidden struct {
	error
	text string
}

func (h *hidden) Error() string { return h.text }
func (h *hidden) Unwrap() error { return h.error }

// beside runs a store's calls outside the simulation, which stands still
// meanwhile. Only operations held by a file fault wait in virtual time.
type beside struct {
	*sqlite.Store
	disk             *onDisk
	writing, reading bool
	looking          bool
}

var _ store.Certifier = (*beside)(nil)

func (b *beside) Apply(ctx context.Context, batch []store.Operation) error {
	return b.disk.run(&b.writing, func() error { return b.Store.Apply(ctx, batch) })
}

func (b *beside) Expired(ctx context.Context, now, keepUntil time.Time, limit int) (ids []string, err error) {
	err = b.disk.run(&b.writing, func() (err error) {
		ids, err = b.Store.Expired(ctx, now, keepUntil, limit)
		return err
	})
	return ids, err
}

func (b *beside) Reestablish(ctx context.Context) (absent bool, err error) {
	err = b.disk.run(&b.writing, func() (err error) {
		absent, err = b.Store.Reestablish(ctx)
		return err
	})
	return absent, err
}

func (b *beside) Load(ctx context.Context, settled int, fn func(store.Row) error) error {
	return b.disk.run(&b.reading, func() error { return b.Store.Load(ctx, settled, fn) })
}

func (b *beside) Content(ctx context.Context, messageIDs []string, fn func(store.Row) error) error {
	return b.disk.run(&b.reading, func() error { return b.Store.Content(ctx, messageIDs, fn) })
}

func (b *beside) Rows(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
	return b.disk.run(&b.looking, func() error { return b.Store.Rows(ctx, selection, fn) })
}

// run makes a call of the store. If another call of its kind is in progress, it
// first waits, in virtual time.
func (d *onDisk) run(busy *bool, call func() error) error {
	_ = d.in.Wait(background, func() bool { return !*busy })
	*busy = true
	defer func() { *busy = false }()
	done := make(chan struct{})
	var err error
	tasks.Go(func() {
		defer close(done)
		err = call()
	})
	for {
		select {
		case <-done:
			return d.hide(err)
		case h := <-d.holds:
			d.hold(h, done)
		}
	}
}

// hold makes an operation wait. If the process is killed meanwhile, the operation
// fails, so that the call returns.
func (d *onDisk) hold(h held, done <-chan struct{}) {
	resumed := false
	defer func() {
		if resumed {
			return
		}
		h.resume <- disk.ErrOff
		for {
			select {
			case <-done:
				return
			case h := <-d.holds:
				h.resume <- disk.ErrOff
			}
		}
	}()
	d.in.hold(h.fault, h.atMost)
	resumed = true
	h.resume <- nil
}

// wait is called on the store's goroutine.
func (d *onDisk) wait(f *storeFault, atMost time.Duration) error {
	resume := make(chan error)
	d.holds <- held{f, atMost, resume}
	return <-resume
}
