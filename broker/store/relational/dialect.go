package relational

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/custodymq/custody/broker/store"
)

// Dialect holds what differs between database servers. Statements use ? for a
// parameter.
type Dialect struct {
	name        string
	open        func(dsn string) (*sql.DB, error)
	placeholder func(n int) string // of the n-th parameter, from 1
	begin       string             // begins a transaction
	database    string             // where the connection's tables are, as information_schema has it
	limit       string             // the end of a SELECT ... ORDER BY, with a parameter
	forUpdate   string             // the end of a SELECT that locks what it reads
	hint        string             // behind the table's name of such a SELECT

	// values returns a table v of parameter rows.
	values func(columns []column) (sql string, args []any)
	// update and remove change the rows r that join the table v on the given
	// condition.
	update func(set, v, on, where string) string
	remove func(v, on, where string) string

	// lock tries to take the server's lock of this name, which is held until the
	// connection ends.
	lock func(ctx context.Context, conn *sql.Conn, name string) (taken bool, err error)
	// prepare sets up each of the writer's connections before any other use. It
	// refuses a server that does not honour the flush policy.
	prepare func(ctx context.Context, conn *sql.Conn, flush store.Flush) error
	schema  []string  // statements that create the tables, by version
	guard   [2]string // statements that take and release the migration lock

	duplicate func(error) bool // a unique index refused it
	full      func(error) bool // no space is left
	// answered reports that the server itself refused the statement, so that a
	// COMMIT failing with this error did not take effect.
	answered func(error) bool
}

// Dialects returns all dialects by driver name, as used in a connection.
func Dialects() map[string]Dialect {
	return map[string]Dialect{"postgres": Postgres, "mysql": MySQL, "sqlserver": SQLServer}
}

// Connect opens a database for purposes other than a Store.
func (d Dialect) Connect(dsn string) (*sql.DB, error) { return d.open(dsn) }

// column of a table of parameters. Exactly one slice is set, and all columns have
// the same length.
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

// bind replaces ? by the dialect's placeholders.
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

// unionAll returns a table of parameters as a UNION ALL of its rows.
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

// setting reads one value of the server's configuration.
func setting(ctx context.Context, conn *sql.Conn, query string) (value string, err error) {
	if err := conn.QueryRowContext(ctx, query).Scan(&value); err != nil {
		return "", fmt.Errorf("%s: %w", query, err)
	}
	return value, nil
}
