package sqlite

import (
	"context"
	"errors"
	"slices"

	"github.com/ncruces/go-sqlite3"
)

// connection is one of SQLite's, over files that are watched and can be closed
// without it.
type connection struct {
	*sqlite3.Conn
	witness *witness
}

// connect opens a connection as every connection of a store is set.
func (s *Store) connect(ctx context.Context) (*connection, error) {
	witness, err := newWitness(s.options.VFS)
	if err != nil {
		return nil, err
	}
	conn, err := sqlite3.OpenContext(ctx, witness.dsn(s.options.Path))
	if err != nil {
		witness.close()
		return nil, s.wrap(err)
	}
	c := &connection{conn, witness}
	err = errors.Join(conn.BusyTimeout(s.options.BusyTimeout), registerFunctions(conn))
	if err == nil {
		// The log is cut back to this size whenever it is begun anew.
		err = conn.Exec(`PRAGMA journal_size_limit=67108864`)
	}
	if err != nil {
		return nil, s.wrap(errors.Join(err, c.close()))
	}
	return c, nil
}

// close closes the connection with its statements: SQLite refuses to close one
// that has any left. An open transaction is rolled back.
func (c *connection) close() error {
	if c == nil {
		return nil
	}
	defer c.witness.close()
	return closeAll(c.Conn)
}

// throwAway gives up a connection that has panicked, and may do so again. Whatever
// it leaves open is closed, which frees its locks.
func (c *connection) throwAway() {
	if c == nil {
		return
	}
	defer func() {
		_ = recover()
		c.witness.close()
	}()
	_ = closeAll(c.Conn)
}

func closeAll(conn *sqlite3.Conn) error {
	var errs []error
	for _, stmt := range slices.Collect(conn.Stmts()) { // closing one changes the list
		errs = append(errs, stmt.Close())
	}
	return errors.Join(append(errs, conn.Close())...)
}
