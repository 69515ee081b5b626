package process_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/custodymq/custody/process"
)

// A volume that is full refuses a byte, and takes one when it was emptied. Nothing
// is left of it.
func TestAVolumeIsFilled(t *testing.T) {
	if err := process.CanMount(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	v, err := process.Mount(dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	file := filepath.Join(dir, "rows")
	write := func() error { return os.WriteFile(file, []byte("x"), 0o600) }
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	if err := v.Fill(); err != nil {
		t.Fatal(err)
	}
	if err := write(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write to a full volume: %v", err)
	}
	if err := errors.Join(v.Empty(), write(), v.Close(), v.Close()); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// A folder that a killed harness has left is removed with the volume in it.
func TestALeftVolumeIsRemoved(t *testing.T) {
	if err := process.CanMount(); err != nil {
		t.Skip(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	dir := filepath.Join(os.TempDir(), "custody-run-left")
	inner := filepath.Join(dir, "server")
	if err := os.MkdirAll(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	v, err := process.Mount(inner, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	left, err := process.Folders()
	if err != nil || len(left) != 1 || left[0].Name != dir {
		t.Fatalf("found %v, %v", left, err)
	}
	if err := left[0].Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
