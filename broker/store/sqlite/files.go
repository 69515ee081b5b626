package sqlite

import (
	"errors"
	"fmt"
	"os"

	"github.com/custodymq/custody/broker/store"
)

// files identifies the database, its WAL and the WAL index as they were opened.
// If a path later leads elsewhere, nobody would find what is written to the open
// file.
type files []openFile

type openFile struct {
	path string
	info os.FileInfo
}

var endings = []string{"", "-wal", "-shm"}

// createPrivate creates the database file readable by its owner only, before
// SQLite creates it with the umask's permissions.
func createPrivate(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, os.ErrExist):
		return nil
	case err != nil:
		return err
	}
	return file.Close()
}

// watch records the identity of the open files and restricts their permissions to
// the owner: SQLite creates the WAL with the umask's permissions.
func watch(path string) (files, error) {
	database, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var open files
	for _, ending := range endings {
		info, err := os.Stat(path + ending)
		if errors.Is(err, os.ErrNotExist) && ending != "" {
			continue // a VFS that stores it elsewhere
		}
		if err == nil && info.Mode().Perm() != database.Mode().Perm() {
			err = os.Chmod(path+ending, database.Mode().Perm())
		}
		if err != nil {
			return nil, err
		}
		open = append(open, openFile{path + ending, info})
	}
	return open, nil
}

// moved returns an error that names a file no longer where it was opened.
func (f files) moved() error {
	for _, open := range f {
		info, err := os.Stat(open.path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("%w: %s is gone; restart the broker with the files in their place", store.ErrMoved, open.path)
		case err == nil && !os.SameFile(info, open.info):
			return fmt.Errorf("%w: %s is another file now; restart the broker with the right one", store.ErrMoved, open.path)
		}
	}
	return nil // any other error does not show that the file was moved
}
