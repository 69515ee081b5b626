package sqlite

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/custodymq/custody/broker/store"
)

// owner is the file beside the database that names the partition's owner. It
// stays locked while the store is open, so that the kernel releases a dead
// process's partition.
//
// It also holds the number of the partition's last transaction, written after
// each commit but never synced, which costs only a write to the page cache. At
// the next start it reveals transactions missing from the database: the WAL was
// deleted, its end was damaged, or an old copy was restored. After a power cut it
// may lag behind, and then reveals fewer than are missing.
type owner struct {
	file *os.File
	made bool // created by this store
}

const (
	ownerFormat = "batch %20d\nowner %s\nprocess %d\nsince %s\n"
	maxOwner    = 4096 // bytes of the file
)

// own locks the partition. The error names the current owner, if there is one.
func own(path string, p store.Partition) (*owner, error) {
	name := ownerPath(path, p)
	for range 100 { // bounded: something keeps removing the file
		_, before := os.Stat(name)
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the partition's lock (its folder must be there, and writable): %w", err)
		}
		locked, err := lock(file)
		if err == nil && !locked {
			err = taken(file, p)
		}
		if err != nil {
			file.Close()
			return nil, err
		}
		if isOpenAt(file, name) {
			return &owner{file: file, made: errors.Is(before, os.ErrNotExist)}, nil
		}
		file.Close() // the file was removed between opening and locking it
	}
	return nil, fmt.Errorf("the partition's lock %s is removed as often as it is made", name)
}

func ownerPath(path string, p store.Partition) string {
	sum := sha256.Sum256([]byte(p.Connection + "\x00" + p.Identity))
	return fmt.Sprintf("%s-%x.lock", path, sum[:6])
}

func isOpenAt(file *os.File, name string) bool {
	open, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(name)
	return err == nil && os.SameFile(open, there)
}

// taken returns the refusal, which names the partition's owner.
func taken(file *os.File, p store.Partition) error {
	_, who, err := readOwner(file)
	if err != nil || who == "" {
		who = "another process, which has not said its name"
	}
	return fmt.Errorf("partition %v is owned by %s: stop it, or give this broker another name or storage identity", p, who)
}

// readOwner returns the number of the last transaction, 0 if the file is empty,
// and the owner's name, process and start time.
func readOwner(file io.ReaderAt) (batch int64, who string, err error) {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, maxOwner))
	if err != nil || len(text) == 0 {
		return 0, "", err
	}
	var number, name, process, since string
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(bytes.TrimRight(line, "\n"), []byte(" "))
		for k, v := range map[string]*string{"batch": &number, "owner": &name, "process": &process, "since": &since} {
			if string(key) == k {
				*v = string(bytes.TrimSpace(value))
			}
		}
	}
	if _, err := fmt.Sscan(number, &batch); err != nil {
		return 0, "", fmt.Errorf("%q is no number of a transaction", number)
	}
	return batch, fmt.Sprintf("broker %s (process %s, since %s)", name, process, since), nil
}

// claim writes the owner's name.
func (o *owner) claim(p store.Partition, batch int64) error {
	text := fmt.Sprintf(ownerFormat, batch, p.Connection, os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	_, err := o.file.WriteAt([]byte(text), 0)
	return errors.Join(err, o.file.Truncate(int64(len(text))))
}

// record stores the number of a committed transaction.
func (o *owner) record(batch int64) {
	// If this fails, only the evidence of a later loss is missing.
	_, _ = fmt.Fprintf(io.NewOffsetWriter(o.file, 0), "batch %20d", batch)
}

// abandon removes the file if it was created for a store that failed to open.
func (o *owner) abandon() {
	if o.made {
		_ = os.Remove(o.file.Name()) // a leftover empty lock file is harmless
	}
	o.file.Close()
}

func (o *owner) close() error {
	unlock(o.file)
	return o.file.Close()
}
