package sqlite

import (
	"encoding/binary"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/custodymq/custody/broker/store/internal/passthrough"
	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/util/vfsutil"
	"github.com/ncruces/go-sqlite3/vfs"
)

// witness is a VFS that observes whether a transaction can be in the WAL.
//
// SQLite writes most of a transaction inside COMMIT, so an error of COMMIT alone
// says little: it may be the first write, refused by a full disk, or the final
// sync. But a transaction takes effect, now or in any recovery, only with its
// commit frame: a frame whose header holds the size of the database
// (https://sqlite.org/fileformat2.html#the_write_ahead_log). SQLite writes a
// frame's 24-byte header first and its page afterwards. Until the header of a
// commit frame is written, the transaction is proven absent.
type witness struct {
	base vfs.VFS
	name string
	// committing is set once the header of a commit frame was written since the
	// last reset.
	committing atomic.Bool

	mu   sync.Mutex
	open []vfs.File // files opened, some of them closed since
}

var _ vfs.VFSFilename = (*witness)(nil)

var witnesses atomic.Uint64

// newWitness registers a witness over the VFS of that name.
func newWitness(base string) (*witness, error) {
	below := vfs.Find(base)
	if below == nil {
		return nil, fmt.Errorf("sqlite: no VFS is registered as %q", base)
	}
	w := &witness{base: below, name: fmt.Sprintf("custody-witness-%d", witnesses.Add(1))}
	vfs.Register(w.name, w)
	return w, nil
}

// close closes what the connection left open, which releases its locks. Closing a
// file twice is harmless.
func (w *witness) close() {
	vfs.Unregister(w.name)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, file := range w.open {
		// If SQLite could not close the WAL index, it stays mapped and the
		// mapping holds the locks, which must be released explicitly.
		if index, ok := vfsutil.WrapSharedMemory(file).(interface{ Fd() uintptr }); ok {
			unlockAll(index.Fd())
		}
		_ = file.Close()
	}
	w.open = nil
}

func (w *witness) reset() { w.committing.Store(false) }

// dsn returns a URI that opens the file at this absolute path through the
// witness.
func (w *witness) dsn(path string) string {
	return (&url.URL{Scheme: "file", Path: path, RawQuery: "vfs=" + w.name}).String()
}

func (w *witness) Open(name string, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	if name == "" {
		return w.OpenFilename(nil, flags)
	}
	return nil, flags, sqlite3.CANTOPEN // OpenFilename is called instead
}

func (w *witness) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	file, out, err := vfsutil.WrapOpenFilename(w.base, name, flags)
	if err != nil {
		return nil, out, err
	}
	if flags&(vfs.OPEN_MAIN_DB|vfs.OPEN_WAL) != 0 { // there may be many others
		w.mu.Lock()
		w.open = append(w.open, file)
		w.mu.Unlock()
	}
	if flags&vfs.OPEN_WAL != 0 {
		return &log{File: passthrough.File{File: file}, witness: w}, out, nil
	}
	return file, out, nil
}

func (w *witness) Delete(name string, syncDir bool) error { return w.base.Delete(name, syncDir) }

func (w *witness) Access(name string, flags vfs.AccessFlag) (bool, error) {
	return w.base.Access(name, flags)
}

func (w *witness) FullPathname(name string) (string, error) { return w.base.FullPathname(name) }

// log is the WAL file.
type log struct {
	passthrough.File
	witness *witness
}

const (
	logHeader   = 32 // size of the WAL's header
	frameHeader = 24
)

func (l *log) WriteAt(p []byte, off int64) (int, error) {
	n, err := l.File.WriteAt(p, off)
	if off >= logHeader && len(p) == frameHeader && binary.BigEndian.Uint32(p[4:]) != 0 && err == nil {
		l.witness.committing.Store(true)
	}
	return n, err
}
