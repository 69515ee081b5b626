package zeromq

import (
	"context"
	"errors"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// ownMemory is the kind of database that is in the broker's own memory.
type ownMemory struct{}

func (ownMemory) title() string                                       { return "memory" }
func (ownMemory) installed() error                                    { return nil }
func (ownMemory) version() (program, of string)                       { return "", "" }
func (ownMemory) strikes() []string                                   { return nil }
func (ownMemory) lacks() map[systems.Need]string                      { return nil }
func (ownMemory) open(context.Context, systems.Env) (database, error) { return ofProcess{}, nil }

// ofProcess is a database in the memory of a broker's process: it is read there,
// past the broker, and ends with it.
type ofProcess struct{}

var errOfProcess = errors.New("zeromq: the rows are in the broker's memory, out of reach")

func (ofProcess) connection() (driver, dsn string)                        { return "memory", "" }
func (ofProcess) spare() (driver, dsn string)                             { return "memory", "" }
func (ofProcess) wire() links.Protocol                                    { return nil }
func (ofProcess) faults() map[string]serverFault                          { return nil }
func (ofProcess) rows(context.Context, func(store.Row) error) error       { return errOfProcess }
func (ofProcess) plant(context.Context, store.Partition, store.Row) error { return errOfProcess }

func (ofProcess) damage(context.Context, string) error { return errOfProcess }
func (ofProcess) release(context.Context) error        { return nil }

// rowsMethod of the broker's process gives its rows as they are at a time.
const rowsMethod = "rows"

// snapshot asks the process for its rows. One that has ended has none.
func (ofProcess) snapshot(ctx context.Context, child *process.Child, own string, now time.Time) (evidence.Snapshot, error) {
	s := evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact, Partition: own}
	err := child.Call(ctx, rowsMethod, now, &s.Rows)
	if errors.Is(err, process.ErrExited) {
		err = nil
	}
	s.Count = len(s.Rows)
	return s, err
}
