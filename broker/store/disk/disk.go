// Package disk simulates the disk below SQLite's files: a power cut preserves
// what was synced, and may keep, lose or tear what was only written.
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

// Disk is a VFS for one database, layered over the operating system's. It records
// every write, truncation and sync of the database, its WAL and its journal from
// the first byte on. Syncs do not reach the real disk: they would take time and
// prove nothing.
type Disk struct {
	name string
	base vfs.VFS

	mu     sync.Mutex
	before Image // the files before the first operation
	ops    []operation
	off    bool
}

// Image is the content of the files, by suffix: "", "-wal" or "-journal".
type Image map[string][]byte

type operation struct {
	file          string
	sync, removal bool
	length        int64 // of a truncation; -1 for other operations
	offset        int64
	data          []byte
}

var _ vfs.VFSFilename = (*Disk)(nil)

// ErrOff is the error of every operation while the power is off.
var ErrOff = errors.New("disk: the power is off")

// New registers a disk as a VFS. name must be unique in this process until Close.
func New(name string) *Disk {
	d := &Disk{name: name, base: vfs.Find("")}
	vfs.Register(name, d)
	return d
}

// Name returns the VFS name with which to open the database.
func (d *Disk) Name() string { return d.name }

// Close unregisters the disk. Close the database first.
func (d *Disk) Close() { vfs.Unregister(d.name) }

// Operations returns how many operations were recorded. It serves as the moment
// for Written.
func (d *Disk) Operations() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ops)
}

// Syncs returns the number of syncs since the power last came on.
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

// Off cuts the power: every later operation fails with ErrOff, so that closing
// the database leaves no trace on the disk.
func (d *Disk) Off() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = true
}

// On restores the power and writes the files at path as the cut may have left
// them. The files must be closed.
func (d *Disk) On(random *rand.Rand, path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.written(random, len(d.ops))
	for ending, data := range left {
		if err := os.WriteFile(path+ending, data, 0o600); err != nil {
			return fmt.Errorf("disk: %w", err)
		}
	}
	if err := os.Remove(path + "-shm"); err != nil && !errors.Is(err, fs.ErrNotExist) { // the shared-memory index does not survive
		return fmt.Errorf("disk: %w", err)
	}
	d.before, d.ops, d.off = left, nil, false
	return nil
}

// Written returns the files as a power cut at that moment may have left them:
// everything synced, and of the rest nothing, everything or any part, torn at
// sector boundaries.
func (d *Disk) Written(random *rand.Rand, moment int) Image {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.written(random, moment)
}

const sector = 512 // unit that is written atomically

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
	keeps := random.IntN(3) // how much of the unsynced is kept: none, half, all
	for i, op := range d.ops[:moment] {
		unsynced := i >= synced[op.file]
		if op.removal { // metadata journalling persists earlier directory changes with every sync
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

// torn returns the operation with only its leading or trailing sectors written.
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

// add records an operation. It fails while the power is off.
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
		if err := d.add(operation{file: ending, removal: true}); err != nil { // recorded as a truncation to 0, which SQLite treats alike
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

// file is the database, its WAL or its journal.
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
	// Record before writing: from here on the data may reach the disk.
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
	return f.disk.add(operation{file: f.name, length: -1, sync: true}) // persists the file's earlier writes
}
