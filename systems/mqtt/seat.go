package mqtt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/custodymq/custody/systems"
)

// seats are the client identifiers of a logical subscriber: the first, the
// second… A consumer takes the lowest that nobody sits on, and one that leaves
// or dies frees its own.
//
// MQTT redelivers to the client identifier that had the message, and to no
// other. So whoever comes next must take over the identifier of who has gone,
// as the members of a pool of workers with stable names do.
type seats struct {
	dir string // of lock files, which hold the subscription: consumers of other processes share it
	run string // begins every name of the run on the server
}

// seat is taken as long as its file is locked, which ends with its process at
// the latest.
type seat struct {
	clientID string
	file     *os.File
}

// maxSeats bounds the search for a free seat.
const maxSeats = 1 << 10

func (s seats) take(subscription, destination string) (*seat, error) {
	base := s.run + "-" + systems.SubscriberName(subscription, destination)
	for n := range maxSeats {
		id := base + "." + strconv.Itoa(n+1)
		f, err := os.OpenFile(filepath.Join(s.dir, id), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("mqtt: seat of a consumer: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			if _, err := f.WriteAt([]byte(subscription), 0); err != nil {
				f.Close()
				return nil, fmt.Errorf("mqtt: seat of a consumer: %w", err)
			}
			return &seat{clientID: id, file: f}, nil
		}
		f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("mqtt: lock the seat of a consumer: %w", err)
		}
	}
	return nil, fmt.Errorf("mqtt: %s has %d consumers already", subscription, maxSeats)
}

// taken are the client identifiers that were ever taken, and whose they are.
func (s seats) taken() (subscriptions map[string]string, err error) {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("mqtt: seats of the run: %w", err)
	}
	subscriptions = make(map[string]string, len(files))
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(s.dir, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("mqtt: seats of the run: %w", err)
		}
		subscriptions[f.Name()] = string(text)
	}
	return subscriptions, nil
}

// leave frees the seat. Doing so twice is allowed.
func (s *seat) leave() {
	// Closing is not enough: a process that is being started has the file open
	// too, for a moment. Neither can fail but for a file that is closed already.
	_ = syscall.Flock(int(s.file.Fd()), syscall.LOCK_UN)
	_ = s.file.Close()
}
