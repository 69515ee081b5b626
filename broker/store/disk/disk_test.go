package disk

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/custodymq/custody/broker/store/internal/passthrough"
)

// nowhere is a file that discards everything written.
type nowhere struct{ vfs.File }

func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nowhere) Truncate(int64) error                   { return nil }

// open opens a file on a disk of its own.
func open(t *testing.T) (*Disk, vfs.File) {
	t.Helper()
	d := New(t.Name())
	t.Cleanup(d.Close)
	return d, &file{File: passthrough.File{File: nowhere{}}, disk: d}
}

func write(t *testing.T, f vfs.File, data string, at int64) {
	t.Helper()
	if _, err := f.WriteAt([]byte(data), at); err != nil {
		t.Fatal(err)
	}
}

// TestCut checks that synced data stays, and that any part of the rest may stay
// or be lost.
func TestCut(t *testing.T) {
	d, f := open(t)
	write(t, f, "synced", 0)
	if err := f.Sync(0); err != nil {
		t.Fatal(err)
	}
	write(t, f, "SYNC", 0)
	write(t, f, "more", 6)
	if err := f.Truncate(8); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for seed := range uint64(500) {
		found[string(d.Written(rand.New(rand.NewPCG(seed, 0)), d.Operations())[""])] = true
	}
	for _, one := range []string{"synced", "SYNCed", "syncedmore", "SYNCedmore", "syncedmo", "SYNCedmo"} {
		if !found[one] {
			t.Errorf("never left as %q: %v", one, found)
		}
		delete(found, one)
	}
	for other := range found {
		if len(other) != 8 || other[4:6] != "ed" { // the file was only extended
			t.Errorf("left as %q", other)
		}
	}
	d.Off()
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, ErrOff) {
		t.Errorf("written without power: %v", err)
	}
	if err := f.Sync(0); !errors.Is(err, ErrOff) {
		t.Errorf("synced without power: %v", err)
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := d.On(rand.New(rand.NewPCG(1, 0)), path); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadFile(path)
	if err != nil || string(left[4:6]) != "ed" {
		t.Errorf("%q, %v", left, err)
	}
	for seed := range uint64(20) { // the files on disk are what the cut has left
		if again := d.Written(rand.New(rand.NewPCG(seed, 0)), d.Operations())[""]; string(again) != string(left) {
			t.Fatalf("%q, and then %q", left, again)
		}
	}
}

// TestTorn checks that writes are torn only at sector boundaries.
func TestTorn(t *testing.T) {
	d, f := open(t)
	data := make([]byte, 4*sector)
	for i := range data {
		data[i] = byte('1' + i/sector)
	}
	write(t, f, string(data), 0)
	torn := false
	for seed := range uint64(500) {
		left := d.Written(rand.New(rand.NewPCG(seed, 0)), d.Operations())[""]
		if len(left)%sector != 0 {
			t.Fatalf("%d bytes are left", len(left))
		}
		for i := range left {
			if left[i] != 0 && left[i] != data[i] || left[i] != left[i/sector*sector] {
				t.Fatalf("byte %d is %q", i, left[i])
			}
		}
		torn = torn || len(left) == 2*sector
	}
	if !torn {
		t.Error("no write was torn")
	}
}
