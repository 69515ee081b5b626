package sqlite

import (
	"context"
	"errors"
	"slices"

	"github.com/ncruces/go-sqlite3"
)

// connection is a SQLite connection whose files are tracked by a witness, so that
// they can be closed without SQLite.
type connection struct {
	*sqlite3.Conn
	witness *witness
}

// connect opens a connection with the settings common to all of a store's
// connections.
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
		// The WAL is truncated to this size whenever it is reset.
		err = conn.Exec(`PRAGMA journal_size_limit=67108864`)
	}
	if err != nil {
		return nil, s.wrap(errors.Join(err, c.close()))
	}
	return c, nil
}

// close closes the connection and its statements, because SQLite refuses to close
// a connection with open statements. An open transaction is rolled back.
func (c *connection) close() error {
	if c == nil {
		return nil
	}
	defer c.witness.close()
	return closeAll(c.Conn)
}

// throwAway abandons a connection that has panicked and may panic again. It
// closes whatever the connection left open, which releases its locks.
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
	for _, stmt := range slices.Collect(conn.Stmts()) { // closing a statement changes the list
		errs = append(errs, stmt.Close())
	}
	return errors.Join(append(errs, conn.Close())...)
}
