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

// seats are the client identifiers of a logical subscriber, numbered from 1. A
// consumer takes the lowest free one and frees it when it leaves or dies.
//
// MQTT redelivers only to the client identifier that held the message. A
// successor must therefore reuse the identifier of a consumer that is gone,
// like a worker pool with stable names.
type seats struct {
	dir string // of lock files that hold the subscription, shared between processes
	run string // prefix of all names of the run on the server
}

// seat is held as long as its file is locked, at most until its process ends.
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

// taken are all client identifiers ever used, with their subscriptions.
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

// leave frees the seat. It may be called twice.
func (s *seat) leave() {
	// Closing is not enough: a child being forked shares the file for a moment.
	// Both calls fail only if the file is closed already.
	_ = syscall.Flock(int(s.file.Fd()), syscall.LOCK_UN)
	_ = s.file.Close()
}
