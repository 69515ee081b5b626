package relational

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/custodymq/custody/broker/store"
)

// Dialect is what the servers have each for itself. Statements are written with
// ? for a parameter.
type Dialect struct {
	name        string
	open        func(dsn string) (*sql.DB, error)
	placeholder func(n int) string // of the n-th parameter, from 1
	begin       string             // begins a transaction
	sync        string             // in a transaction, has its COMMIT synced under every flush policy
	database    string             // where the connection's tables are, as information_schema has it
	limit       string             // the end of a SELECT ... ORDER BY, with a parameter
	forUpdate   string             // the end of a SELECT that locks what it reads
	hint        string             // behind the table's name of such a SELECT

	// values makes a table v of rows that are parameters.
	values func(columns []column) (sql string, args []any)
	// update and remove change the rows r that v leads to by the given columns.
	update func(set, v, on, where string) string
	remove func(v, on, where string) string

	// lock takes the server's lock of this name for the connection's life, if
	// nobody has it.
	lock func(ctx context.Context, conn *sql.Conn, name string) (taken bool, err error)
	// prepare is run on each connection of the writer, before anything else. It
	// refuses a server that does not keep to the flush policy.
	prepare func(ctx context.Context, conn *sql.Conn, flush store.Flush) error
	schema  []string  // statements that make the tables, version by version
	guard   [2]string // taking and giving back the lock under which a schema is made

	duplicate func(error) bool // a unique index refused it
	full      func(error) bool // no space is left
	// answered: the server itself has refused the statement, so that a COMMIT
	// which fails so has not taken place.
	answered func(error) bool
}

// Dialects are all, by the name that a connection has as its driver.
func Dialects() map[string]Dialect {
	return map[string]Dialect{"postgres": Postgres, "mysql": MySQL, "sqlserver": SQLServer}
}

// Connect opens a database for other purposes than a Store's.
func (d Dialect) Connect(dsn string) (*sql.DB, error) { return d.open(dsn) }

// column of a table of parameters: all of one type and one length.
type column struct {
	name   string
	texts  [][]byte
	ints   []int64
	orNull []*int64
}

func (c column) len() int { return max(len(c.texts), len(c.ints), len(c.orNull)) }

func (c column) at(i int) any {
	switch {
	case c.texts != nil:
		return c.texts[i]
	case c.ints != nil:
		return c.ints[i]
	case c.orNull[i] == nil:
		return nil
	}
	return *c.orNull[i]
}

func names(columns []column) string {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = c.name
	}
	return strings.Join(list, ", ")
}

// bind writes a statement with the dialect's placeholders.
func (d Dialect) bind(statement string) string {
	if d.placeholder == nil {
		return statement
	}
	var b strings.Builder
	n := 0
	for _, r := range statement {
		if r != '?' {
			b.WriteRune(r)
			continue
		}
		n++
		b.WriteString(d.placeholder(n))
	}
	return b.String()
}

// unionAll is a table of parameters, row by row.
func unionAll(columns []column) (string, []any) {
	var b strings.Builder
	args := make([]any, 0, len(columns)*columns[0].len())
	b.WriteString("(")
	for i := range columns[0].len() {
		if i > 0 {
			b.WriteString(" UNION ALL ")
		}
		b.WriteString("SELECT ")
		for k, c := range columns {
			if k > 0 {
				b.WriteString(", ")
			}
			b.WriteString("?")
			if i == 0 {
				b.WriteString(" AS " + c.name)
			}
			args = append(args, c.at(i))
		}
	}
	b.WriteString(") AS v")
	return b.String(), args
}

func numbered(prefix string) func(int) string {
	return func(n int) string { return prefix + strconv.Itoa(n) }
}

// setting reads one value of the server's.
func setting(ctx context.Context, conn *sql.Conn, query string) (value string, err error) {
	if err := conn.QueryRowContext(ctx, query).Scan(&value); err != nil {
		return "", fmt.Errorf("%s: %w", query, err)
	}
	return value, nil
}
