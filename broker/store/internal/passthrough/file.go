// Package passthrough is the common part of all VFS wrappers: a file that
// forwards every call to the file below, including the optional interfaces.
package passthrough

import (
	"github.com/ncruces/go-sqlite3/util/vfsutil"
	"github.com/ncruces/go-sqlite3/vfs"
)

// File forwards everything to the file it wraps. Embed it and override.
//
// It does not forward memory mapping, because reads of a mapped file would bypass
// the wrapper, nor batch-atomic writes, which WAL does not use.
type File struct{ vfs.File }

var (
	_ vfs.FileUnwrap             = File{}
	_ vfs.FileSharedMemory       = File{}
	_ vfs.FileLockState          = File{}
	_ vfs.FilePersistWAL         = File{}
	_ vfs.FilePowersafeOverwrite = File{}
	_ vfs.FileSizeHint           = File{}
	_ vfs.FileHasMoved           = File{}
	_ vfs.FilePragma             = File{}
)

func (f File) Unwrap() vfs.File { return f.File }

// SharedMemory must be forwarded, because WAL needs it. Its methods are private
// to SQLite's binding, so a wrapper can neither observe nor strike the shared
// memory.
func (f File) SharedMemory() vfs.SharedMemory { return vfsutil.WrapSharedMemory(f.File) }

func (f File) LockState() vfs.LockLevel        { return vfsutil.WrapLockState(f.File) }
func (f File) PersistWAL() bool                { return vfsutil.WrapPersistWAL(f.File) }
func (f File) SetPersistWAL(keep bool)         { vfsutil.WrapSetPersistWAL(f.File, keep) }
func (f File) PowersafeOverwrite() bool        { return vfsutil.WrapPowersafeOverwrite(f.File) }
func (f File) SetPowersafeOverwrite(psow bool) { vfsutil.WrapSetPowersafeOverwrite(f.File, psow) }
func (f File) SizeHint(size int64) error       { return vfsutil.WrapSizeHint(f.File, size) }
func (f File) HasMoved() (bool, error)         { return vfsutil.WrapHasMoved(f.File) }

func (f File) Pragma(name, value string) (string, error) {
	return vfsutil.WrapPragma(f.File, name, value)
}

func (f File) DeviceCharacteristics() vfs.DeviceCharacteristic {
	return f.File.DeviceCharacteristics() &^ vfs.IOCAP_BATCH_ATOMIC
}
