package relational

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/custodymq/custody/broker/store"
)

// Postgres is the dialect of PostgreSQL, through pgx. The DSN is a URL or a list
// of keywords and values:
// https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING
var Postgres = Dialect{
	name: "postgres",
	open: func(dsn string) (*sql.DB, error) {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, errors.New("the DSN is no connection string of PostgreSQL, such as postgres://user@host/database") // pgx's error quotes the DSN, password included
		}
		config.RuntimeParams["application_name"] = "custody"
		return stdlib.OpenDB(*config), nil
	},
	placeholder: numbered("$"),
	limit:       " LIMIT ?",
	forUpdate:   " FOR UPDATE",
	// Arrays give one statement, and so one plan, for any number of rows.
	values: func(columns []column) (string, []any) {
		places := make([]string, len(columns))
		args := make([]any, len(columns))
		for i, c := range columns {
			switch {
			case c.texts != nil:
				places[i], args[i] = "?::bytea[]", c.texts
			case c.ints != nil:
				places[i], args[i] = "?::bigint[]", c.ints
			default:
				places[i], args[i] = "?::bigint[]", c.orNull
			}
		}
		return fmt.Sprintf("unnest(%s) AS v(%s)", strings.Join(places, ", "), names(columns)), args
	},
	update: func(set, v, on, where string) string {
		return "UPDATE custody_row AS r SET " + set + " FROM " + v + " WHERE " + on + " AND " + where
	},
	remove: func(v, on, where string) string {
		return "DELETE FROM custody_row AS r USING " + v + " WHERE " + on + " AND " + where
	},
	lock: func(ctx context.Context, conn *sql.Conn, name string) (taken bool, err error) {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // hash.Hash never returns an error
		err = conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", int64(h.Sum64())).Scan(&taken)
		return taken, err
	},
	// https://www.postgresql.org/docs/current/runtime-config-wal.html
	prepare: func(ctx context.Context, conn *sql.Conn, flush store.Flush) error {
		if flush == store.FlushPeriodic {
			_, err := conn.ExecContext(ctx, "SET synchronous_commit = off")
			return err
		}
		fsync, err := setting(ctx, conn, "SHOW fsync")
		if err != nil {
			return err
		}
		if fsync != "on" {
			return fmt.Errorf("the server runs with fsync = %s, and loses what it has confirmed when power fails: switch it on, or ask for the flush policy periodic", fsync)
		}
		commit, err := setting(ctx, conn, "SHOW synchronous_commit")
		if err == nil && commit == "off" {
			_, err = conn.ExecContext(ctx, "SET synchronous_commit = on")
		}
		return err
	},
	guard: [2]string{"SELECT pg_advisory_lock(5071237)", "SELECT pg_advisory_unlock(5071237)"},
	schema: []string{`
CREATE TABLE custody_partition (
	id               BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	connection_name  BYTEA NOT NULL,
	storage_identity BYTEA NOT NULL,
	owner            TEXT NOT NULL DEFAULT '',
	writer           BIGINT NOT NULL DEFAULT 0,
	batch            BIGINT NOT NULL DEFAULT 0,
	fence            BIGINT NOT NULL DEFAULT 0,
	last_ord         BIGINT NOT NULL DEFAULT 0,
	settled          BIGINT NOT NULL DEFAULT 0,
	UNIQUE (connection_name, storage_identity)
);
CREATE TABLE custody_row (
	part          BIGINT NOT NULL REFERENCES custody_partition (id),
	ord           BIGINT NOT NULL,
	message_id    BYTEA NOT NULL,
	state         SMALLINT NOT NULL,
	version       SMALLINT NOT NULL,
	business_id   BYTEA NOT NULL,
	topic         BYTEA NOT NULL,
	competitor    BYTEA NOT NULL,
	routing_key   BYTEA NOT NULL,
	inserted_at   BIGINT NOT NULL,
	expires_at    BIGINT,
	attempts      BIGINT NOT NULL,
	last_consumer BYTEA NOT NULL,
	reason        BYTEA NOT NULL,
	keep_until    BIGINT,
	size          BIGINT NOT NULL,
	content_sum   BIGINT NOT NULL,
	head_sum      BIGINT NOT NULL,
	headers       BYTEA NOT NULL,
	payload       BYTEA NOT NULL,
	PRIMARY KEY (part, ord),
	UNIQUE (part, message_id)
);
CREATE INDEX custody_expiry ON custody_row (part, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX custody_settled ON custody_row (part, keep_until) WHERE keep_until IS NOT NULL;
CREATE INDEX custody_dead ON custody_row (part, ord) WHERE state = 4`},
	begin:     "BEGIN",
	database:  "current_schema()",
	duplicate: func(err error) bool { return postgresCode(err) == "23505" },
	full:      func(err error) bool { return postgresCode(err) == "53100" },
	answered:  func(err error) bool { return postgresCode(err) != "" && !strings.HasPrefix(postgresCode(err), "57P") }, // 57P: it is going down
}

// postgresCode returns the server's error code:
// https://www.postgresql.org/docs/current/errcodes-appendix.html
func postgresCode(err error) string {
	if said := (*pgconn.PgError)(nil); errors.As(err, &said) {
		return said.Code
	}
	return ""
}
