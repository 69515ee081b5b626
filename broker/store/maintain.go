package store

import (
	"context"
	"fmt"
	"time"
)

// Compactor is an optional ability of a Store: give the space of deleted rows back
// to whoever can use it. It changes no row, of no partition. The error says why it
// was not done, such as that a neighbour would have to wait.
type Compactor interface {
	Compact(ctx context.Context) error
}

// Maintained is what Maintain found and did in one partition.
type Maintained struct {
	Partition    string         `json:"partition"`
	Before       map[string]int `json:"before"` // rows by state
	After        map[string]int `json:"after"`
	Expired      int            `json:"expired"` // pending rows that were ended
	Swept        int            `json:"swept"`   // IDs of settled rows, over their window
	Compacted    bool           `json:"compacted"`
	NotCompacted string         `json:"notCompacted,omitempty"` // why
}

// Of one write, and of all: far beyond what a store can hold.
const (
	purgeAtOnce  = 512
	sweepsAtMost = 1 << 20
)

// Maintain does at once what a broker does over time: it ends the expired rows,
// whose IDs are kept until keepUntil, and deletes the IDs of settled rows whose
// window is over. It touches the partition that s
// was opened for and no other, and no broker runs on it: s is its owner.
func Maintain(ctx context.Context, s Store, now, keepUntil time.Time) (m Maintained, err error) {
	m.Partition = s.Partition().String()
	var lapsed int
	if m.Before, lapsed, err = census(ctx, s, now); err != nil {
		return m, err
	}
	due := true
	for n := 0; due; n++ {
		if n == sweepsAtMost {
			return m, fmt.Errorf("store: the expired rows of %s do not become fewer", m.Partition)
		}
		ids, err := s.Expired(ctx, now, keepUntil, purgeAtOnce)
		if err != nil {
			return m, err
		}
		m.Expired += len(ids)
		if due = len(ids) == purgeAtOnce; !due && lapsed > 0 { // a sweep takes a part of them
			before := lapsed
			if _, lapsed, err = census(ctx, s, now); err != nil {
				return m, err
			}
			due = lapsed > 0 && lapsed < before
		}
	}
	compactor, can := s.(Compactor)
	if !can {
		m.NotCompacted = "this store needs none"
	} else if err := compactor.Compact(ctx); err != nil {
		m.NotCompacted = err.Error()
	} else {
		m.Compacted = true
	}
	if m.After, _, err = census(ctx, s, now); err != nil {
		return m, err
	}
	for state := range m.Before { // what has expired stays, in another state
		m.Swept += m.Before[state]
	}
	for state := range m.After {
		m.Swept -= m.After[state]
	}
	return m, nil
}

// census counts rows by state, and the markers whose window is over.
func census(ctx context.Context, s Store, now time.Time) (states map[string]int, lapsed int, err error) {
	states = map[string]int{}
	err = s.Rows(ctx, Selection{}, func(r Row) error {
		states[r.State.String()]++
		if r.State == SettledMarker && !r.KeepUntil.After(now) {
			lapsed++
		}
		return nil
	})
	return states, lapsed, err
}
