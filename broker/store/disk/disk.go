// Package disk simulates the disk below SQLite's files: what was synced stays,
// and what was only written a power cut may keep, lose or tear.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/util/vfsutil"
	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/custodymq/custody/broker/store/internal/passthrough"
)

// Disk is a VFS over the operating system's for one database, which it sees from
// the first byte. It records every write, truncation and sync of the database,
// its log and its journal; nothing is really synced, which takes time and proves
// nothing.
type Disk struct {
	name string
	base vfs.VFS

	mu     sync.Mutex
	before Image // as it was before the first operation
	ops    []operation
	off    bool
}

// Image is the content of the files, by their ending: "", "-wal" or "-journal".
type Image map[string][]byte

type operation struct {
	file          string
	sync, removal bool
	length        int64 // of a truncation; otherwise -1
	offset        int64
	data          []byte
}

var _ vfs.VFSFilename = (*Disk)(nil)

// ErrOff is the result of every operation while the power is off.
var ErrOff = errors.New("disk: the power is off")

// New registers a disk under a name that is unique in this process. Close takes
// the name away again.
func New(name string) *Disk {
	d := &Disk{name: name, base: vfs.Find("")}
	vfs.Register(name, d)
	return d
}

// Name is what to open the database with.
func (d *Disk) Name() string { return d.name }

// Close unregisters the disk. Close the database first.
func (d *Disk) Close() { vfs.Unregister(d.name) }

// Operations counts what was recorded: a moment for Written.
func (d *Disk) Operations() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ops)
}

// Syncs counts the syncs since the power came on.
func (d *Disk) Syncs() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, op := range d.ops {
		if op.sync {
			n++
		}
	}
	return n
}

// Off cuts the power: nothing is read or written from now on, so that a database
// which is then closed leaves no trace of that.
func (d *Disk) Off() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = true
}

// On brings the power back, with files of that path as the cut may have left
// them. They must be closed.
func (d *Disk) On(random *rand.Rand, path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.written(random, len(d.ops))
	for ending, data := range left {
		if err := os.WriteFile(path+ending, data, 0o600); err != nil {
			return fmt.Errorf("disk: %w", err)
		}
	}
	if err := os.Remove(path + "-shm"); err != nil && !errors.Is(err, fs.ErrNotExist) { // it was memory
		return fmt.Errorf("disk: %w", err)
	}
	d.before, d.ops, d.off = left, nil, false
	return nil
}

// Written are the files as a cut at that moment may have left them: what was
// synced is there; of the rest, nothing, all, or any part, torn in sectors.
func (d *Disk) Written(random *rand.Rand, moment int) Image {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.written(random, moment)
}

const sector = 512 // bytes that are written whole or not at all

func (d *Disk) written(random *rand.Rand, moment int) Image {
	synced, latest := map[string]int{}, 0
	for i, op := range d.ops[:moment] {
		if op.sync {
			synced[op.file], latest = i+1, i+1
		}
	}
	files := Image{}
	for ending, data := range d.before {
		files[ending] = slices.Clone(data)
	}
	keeps := random.IntN(3) // of what was not synced: none, half, all
	for i, op := range d.ops[:moment] {
		unsynced := i >= synced[op.file]
		if op.removal { // file systems keep what they do to folders in order with every sync
			unsynced = i >= latest
		}
		if op.sync || unsynced && random.IntN(2) >= keeps {
			continue
		}
		if unsynced && random.IntN(3) == 0 {
			op = op.torn(random)
		}
		files[op.file] = op.apply(files[op.file])
	}
	return files
}

// torn is the operation of which the first or the last sectors were written.
func (op operation) torn(random *rand.Rand) operation {
	cut := min(random.IntN(len(op.data)/sector+1)*sector, len(op.data))
	if random.IntN(2) == 0 {
		op.data = op.data[:cut]
	} else {
		op.data, op.offset = op.data[cut:], op.offset+int64(cut)
	}
	return op
}

func (op operation) apply(file []byte) []byte {
	if op.length >= 0 {
		return append(file[:min(op.length, int64(len(file)))], make([]byte, max(0, op.length-int64(len(file))))...)
	}
	if grow := op.offset + int64(len(op.data)) - int64(len(file)); grow > 0 && len(op.data) > 0 {
		file = append(file, make([]byte, grow)...)
	}
	copy(file[min(op.offset, int64(len(file))):], op.data)
	return file
}

// add records an operation, unless the power is off.
func (d *Disk) add(op operation) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return ErrOff
	}
	d.ops = append(d.ops, op)
	return nil
}

func (d *Disk) powered() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return ErrOff
	}
	return nil
}

func (d *Disk) Open(name string, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	if name == "" {
		return d.OpenFilename(nil, flags)
	}
	return nil, flags, sqlite3.CANTOPEN // OpenFilename is called instead
}

func (d *Disk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	if err := d.powered(); err != nil {
		return nil, flags, err
	}
	opened, out, err := vfsutil.WrapOpenFilename(d.base, name, flags)
	if err != nil {
		return nil, out, err
	}
	for ending, kind := range endings {
		if flags&kind != 0 {
			return &file{passthrough.File{File: opened}, d, ending}, out, nil
		}
	}
	return opened, out, nil
}

var endings = map[string]vfs.OpenFlag{"": vfs.OPEN_MAIN_DB, "-wal": vfs.OPEN_WAL, "-journal": vfs.OPEN_MAIN_JOURNAL}

func (d *Disk) Delete(name string, _ bool) error {
	if err := d.powered(); err != nil {
		return err
	}
	for ending := range endings {
		if ending == "" || !strings.HasSuffix(name, ending) {
			continue
		}
		if err := d.add(operation{file: ending, removal: true}); err != nil { // to length 0, which means the same to SQLite
			return err
		}
	}
	return d.base.Delete(name, false)
}

func (d *Disk) Access(name string, flags vfs.AccessFlag) (bool, error) {
	if err := d.powered(); err != nil {
		return false, err
	}
	return d.base.Access(name, flags)
}

func (d *Disk) FullPathname(name string) (string, error) { return d.base.FullPathname(name) }

// file is the database or its log.
type file struct {
	passthrough.File
	disk *Disk
	name string
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if err := f.disk.powered(); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	// From now on it may be there.
	if err := f.disk.add(operation{file: f.name, length: -1, offset: off, data: slices.Clone(p)}); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *file) Truncate(size int64) error {
	if err := f.disk.add(operation{file: f.name, length: size}); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *file) Sync(vfs.SyncFlag) error {
	return f.disk.add(operation{file: f.name, length: -1, sync: true}) // now it is
}
