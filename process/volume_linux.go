package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Volume is a file system of its own, in memory and of bounded size.
type Volume struct{ dir string }

// capSysAdmin is the number of the capability to mount.
const capSysAdmin = 21

// CanMount is why this process cannot mount a volume, or nil.
func CanMount() error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("process: mount a volume: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		mask, found := strings.CutPrefix(line, "CapEff:")
		if !found {
			continue
		}
		if bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil && bits&(1<<capSysAdmin) != 0 {
			return nil
		}
	}
	return errors.New("process: a file system of its own takes root, with the capability to mount (CAP_SYS_ADMIN)")
}

// Mount makes a volume at a folder, which must be there and empty. The caller
// unmounts it.
func Mount(dir string, size int64) (*Volume, error) {
	if err := CanMount(); err != nil {
		return nil, err
	}
	if err := syscall.Mount("custody", dir, "tmpfs", syscall.MS_NODEV|syscall.MS_NOSUID, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		return nil, fmt.Errorf("process: mount a file system of %d bytes: %w", size, err)
	}
	return &Volume{dir}, nil
}

// Close unmounts the volume, and all in it is gone. A nil Volume is none.
func (v *Volume) Close() error {
	if v == nil {
		return nil
	}
	if err := syscall.Unmount(v.dir, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) { // closed already
		return fmt.Errorf("process: unmount %s: %w", v.dir, err)
	}
	return nil
}

// filler is a file that takes all space.
const filler = "custody-filler"

// Fill takes every byte that is left, and returns once the file system has
// refused one.
func (v *Volume) Fill() error {
	f, err := os.OpenFile(filepath.Join(v.dir, filler), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("process: fill a volume: %w", err)
	}
	defer f.Close()
	for piece := bytes.Repeat([]byte{'x'}, 1<<20); ; {
		_, err := f.Write(piece)
		switch {
		case err == nil:
		case !errors.Is(err, syscall.ENOSPC):
			return fmt.Errorf("process: fill a volume: %w", err)
		case len(piece) == 1:
			return nil
		default:
			piece = piece[:1] // what is left of a page
		}
	}
}

// Empty gives back what Fill has taken.
func (v *Volume) Empty() error {
	if err := os.Remove(filepath.Join(v.dir, filler)); err != nil {
		return fmt.Errorf("process: empty a volume: %w", err)
	}
	return nil
}

// unmountAll unmounts the volumes that a killed harness has left in a folder.
func unmountAll(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("process: volumes in %s: %w", dir, err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			err = errors.Join(err, (&Volume{fields[1]}).Close())
		}
	}
	return err
}
