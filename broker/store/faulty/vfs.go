package faulty

import (
	"io"
	"strings"

	"github.com/custodymq/custody/broker/store/internal/passthrough"
	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/util/vfsutil"
	"github.com/ncruces/go-sqlite3/vfs"
)

// VFS is a SQLite file system layered over another. Arm injects a Hook. If the
// hook returns an error that is not SQLite's own, SQLite sees the I/O error of
// that operation, such as IOERR_FSYNC for a sync.
type VFS struct {
	point
	base vfs.VFS
	name string
}

var _ vfs.VFSFilename = (*VFS)(nil)

// New registers a VFS over the operating system's. name must be unique in this
// process until Close, and not "" or "os".
func New(name string) *VFS { return Over(vfs.Find(""), name) }

// Over is New over another VFS.
func Over(base vfs.VFS, name string) *VFS {
	v := &VFS{base: base, name: name}
	vfs.Register(name, v)
	return v
}

// Name returns the VFS name with which to open a database.
func (v *VFS) Name() string { return v.name }

// Close unregisters the VFS. Close the databases first.
func (v *VFS) Close() { vfs.Unregister(v.name) }

func (v *VFS) Open(name string, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	if name == "" {
		return v.OpenFilename(nil, flags)
	}
	return nil, flags, sqlite3.CANTOPEN // OpenFilename is called instead
}

func (v *VFS) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (file vfs.File, out vfs.OpenFlag, err error) {
	kind, out := fileOf(flags), flags
	err = v.around(Op{Layer: Files, Name: "open", File: kind}, func() (err error) {
		file, out, err = vfsutil.WrapOpenFilename(v.base, name, flags)
		return err
	})
	if err != nil {
		if file != nil {
			file.Close() // it was opened before After refused
		}
		return nil, out, err
	}
	return &struckFile{File: passthrough.File{File: file}, vfs: v, kind: kind}, out, nil
}

func (v *VFS) Delete(name string, syncDir bool) error {
	return v.around(Op{Layer: Files, Name: "delete", File: fileNamed(name)}, func() error {
		return v.base.Delete(name, syncDir)
	})
}

func (v *VFS) Access(name string, flags vfs.AccessFlag) (ok bool, err error) {
	err = v.around(Op{Layer: Files, Name: "access", File: fileNamed(name)}, func() (err error) {
		ok, err = v.base.Access(name, flags)
		return err
	})
	return ok && err == nil, err
}

// FullPathname is not intercepted: it touches no file.
func (v *VFS) FullPathname(name string) (string, error) { return v.base.FullPathname(name) }

func (v *VFS) around(op Op, do func() error) error {
	hook, armed := v.armed()
	if !armed {
		return do()
	}
	if err := hook.Before(op); err != nil {
		return err
	}
	return hook.After(op, do())
}

type struckFile struct {
	passthrough.File
	vfs  *VFS
	kind File
}

func (f *struckFile) op(name string, offset, size int64) Op {
	return Op{Layer: Files, Name: name, File: f.kind, Offset: offset, Size: size}
}

func (f *struckFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.vfs.around(f.op("read", off, int64(len(p))), func() (err error) {
		n, err = f.File.ReadAt(p, off)
		return err
	})
	return whole(n, len(p), err)
}

func (f *struckFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.vfs.around(f.op("write", off, int64(len(p))), func() (err error) {
		n, err = f.File.WriteAt(p, off)
		return err
	})
	return whole(n, len(p), err)
}

// whole returns length 0 for an operation that was performed but reported as
// failed: SQLite checks the length first and would otherwise take it for a
// success.
func whole(n, want int, err error) (int, error) {
	if err != nil && err != io.EOF && n == want {
		n = 0
	}
	return n, err
}

func (f *struckFile) Sync(flags vfs.SyncFlag) error {
	return f.vfs.around(f.op("sync", 0, 0), func() error { return f.File.Sync(flags) })
}

func (f *struckFile) Truncate(size int64) error {
	return f.vfs.around(f.op("truncate", 0, size), func() error { return f.File.Truncate(size) })
}

func (f *struckFile) Size() (size int64, err error) {
	err = f.vfs.around(f.op("size", 0, 0), func() (err error) {
		size, err = f.File.Size()
		return err
	})
	return size, err
}

func (f *struckFile) Lock(level vfs.LockLevel) error {
	return f.vfs.around(f.op("lock", 0, 0), func() error { return f.File.Lock(level) })
}

func fileOf(flags vfs.OpenFlag) File {
	switch {
	case flags&vfs.OPEN_MAIN_DB != 0:
		return Database
	case flags&vfs.OPEN_WAL != 0:
		return WAL
	case flags&(vfs.OPEN_MAIN_JOURNAL|vfs.OPEN_SUPER_JOURNAL) != 0:
		return Journal
	default:
		return Temporary
	}
}

// fileNamed tells the role of a file from its suffix.
func fileNamed(name string) File {
	switch {
	case strings.HasSuffix(name, "-wal"):
		return WAL
	case strings.HasSuffix(name, "-journal"):
		return Journal
	default:
		return Database
	}
}
