package evidence

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// folder is the untrusted folder of a run: nothing outside it is opened, no
// symbolic link is followed, and only regular files are read (opening a FIFO
// blocks until it has a writer, and a device may never end).
type folder string

// open opens a regular file by its slash-separated path in the folder.
func (dir folder) open(name string) (*os.File, fs.FileInfo, error) {
	root, err := dir.root()
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		info, err := root.Lstat(parent)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is %s, not a folder", parent, kindOf(info))
		}
		if err != nil {
			return nil, nil, err
		}
	}
	before, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if err := regular(before); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !os.SameFile(before, info) {
		err = fmt.Errorf("%s was replaced while it was opened", name)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// root opens the folder itself, which may be a symbolic link.
func (dir folder) root() (*os.Root, error) {
	info, err := os.Stat(string(dir))
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("it is %s, not a folder", kindOf(info))
	}
	if err != nil {
		return nil, err
	}
	return os.OpenRoot(string(dir))
}

// lock locks the folder for its recorder until the file is closed or the
// process exits. It fails while another recorder holds the lock.
func (dir folder) lock() (*os.File, error) {
	root, err := dir.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("a run is being recorded in it")
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// exists reports whether there is an entry of this name, even a dangling link.
func (dir folder) exists(name string) bool {
	_, err := os.Lstat(dir.path(name))
	return err == nil
}

// path returns the path of a file in the folder, for messages.
func (dir folder) path(name string) string { return path.Join(string(dir), name) }

// read returns a whole file of at most limit bytes.
func (dir folder) read(name string, limit int64) ([]byte, error) {
	f, info, err := dir.open(name)
	if err != nil {
		return nil, fmt.Errorf("evidence: cannot read %s: %w", dir.path(name), err)
	}
	defer f.Close()
	b, err := readBounded(f, info, limit)
	if err != nil {
		return nil, fmt.Errorf("evidence: cannot read %s: %w", dir.path(name), err)
	}
	return b, nil
}

// ReadRegular reads a file that a user has named, such as a scenario, a
// profile or a key. The name may be a symbolic link, but only to a regular
// file of at most limit bytes, so that no FIFO or device blocks.
func ReadRegular(name string, limit int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err == nil {
		err = regular(info)
	}
	if err != nil {
		return nil, naming(name, err)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil {
		err = regular(info) // it may have been replaced since the Stat
	}
	var b []byte
	if err == nil {
		b, err = readBounded(f, info, limit)
	}
	if err != nil {
		return nil, naming(name, err)
	}
	return b, nil
}

// naming adds the file's name to an error that lacks it.
func naming(name string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}

func readBounded(f io.Reader, info fs.FileInfo, limit int64) ([]byte, error) {
	if info.Size() > limit {
		return nil, fmt.Errorf("%d bytes exceed the limit of %d", info.Size(), limit)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it exceeds the limit of %d bytes", limit)
	}
	return b, err
}

// maxFileName leaves room for the suffixes appended to a name.
const maxFileName = 200

// FileName returns an error if name cannot name a file or folder. Names may
// come from a script, profile or manifest written by somebody else; everything
// named after such a word is checked here, so that it can neither choose where
// evidence is written nor hide it.
func FileName(name string) error {
	bad := func(r rune) bool { return r == '/' || r == '\\' || unicode.IsControl(r) }
	if name == "" || len(name) > maxFileName || name[0] == '.' || strings.ContainsFunc(name, bad) {
		return fmt.Errorf("%q cannot be the name of a file: leave out slashes and a leading dot, and use at most %d bytes", name, maxFileName)
	}
	return nil
}

func regular(info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return fmt.Errorf("it is %s; only regular files are read", kindOf(info))
}

func kindOf(info fs.FileInfo) string {
	switch mode := info.Mode(); {
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "a regular file"
}
