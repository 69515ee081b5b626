package sqlite

import (
	"fmt"

	"github.com/custodymq/custody/broker/store"
)

// checkSpace refuses inserts that would use up the reserve. Whatever takes rows
// away may use it: a full store must still be able to empty itself.
func (s *Store) checkSpace(batch []store.Operation) error {
	var need uint64
	inserts := false
	for i := range batch {
		if batch[i].Kind == store.Insert {
			inserts = true
			need += uint64(len(batch[i].Row.Payload))
		}
	}
	if !inserts {
		return nil
	}
	free, err := freeSpace(s.options.Path)
	if err != nil {
		return s.wrap(fmt.Errorf("how much space is left: %w", err))
	}
	// Once for the log, and once more when it is copied into the file.
	if free < s.options.Reserve+2*need {
		return s.wrap(fmt.Errorf("%w: %d bytes free, %d kept in reserve, %d to be written; make room on the disk",
			store.ErrFull, free, s.options.Reserve, need))
	}
	return nil
}
