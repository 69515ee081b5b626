package relational

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"slices"

	driver "github.com/go-sql-driver/mysql"

	"github.com/custodymq/custody/broker/store"
)

// MySQL is the dialect of MySQL and MariaDB. The DSN is the driver's:
// https://github.com/go-sql-driver/mysql#dsn-data-source-name
var MySQL = Dialect{
	name: "mysql",
	open: func(dsn string) (*sql.DB, error) {
		config, err := driver.ParseDSN(dsn)
		if err != nil {
			return nil, errors.New("the DSN is none of MySQL, such as user:password@tcp(host:3306)/database") // the driver's error may quote the DSN
		}
		config.InterpolateParams = true            // one round trip instead of three
		config.Logger = log.New(io.Discard, "", 0) // what it logs is also returned as an error
		connector, err := driver.NewConnector(config)
		if err != nil {
			return nil, fmt.Errorf("the DSN: %w", err)
		}
		return sql.OpenDB(connector), nil
	},
	limit:     " LIMIT ?",
	forUpdate: " FOR UPDATE",
	values:    unionAll,
	// Join from the few parameter rows, each of which finds its row by an index.
	update: func(set, v, on, where string) string {
		return "UPDATE " + v + " STRAIGHT_JOIN custody_row AS r ON " + on + " SET " + set + " WHERE " + where
	},
	remove: func(v, on, where string) string {
		return "DELETE r FROM " + v + " STRAIGHT_JOIN custody_row AS r ON " + on + " WHERE " + where
	},
	lock: func(ctx context.Context, conn *sql.Conn, name string) (bool, error) {
		var taken sql.NullInt64 // NULL: the session was killed while waiting
		err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(SHA1(CONCAT(DATABASE(), ?)), 0)", name).Scan(&taken)
		return taken.Int64 == 1, err
	},
	// https://dev.mysql.com/doc/refman/8.4/en/innodb-parameters.html#sysvar_innodb_flush_log_at_trx_commit
	prepare: func(ctx context.Context, conn *sql.Conn, flush store.Flush) error {
		// A lock that is waited for ends the statement, not only the wait.
		if _, err := conn.ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
			return err
		}
		if flush == store.FlushPeriodic {
			return nil
		}
		level, err := setting(ctx, conn, "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit")
		if err == nil && level != "1" {
			err = fmt.Errorf("the server runs with innodb_flush_log_at_trx_commit = %s, and loses what it has confirmed when power fails: set it to 1, or ask for the flush policy periodic", level)
		}
		return err
	},
	guard: [2]string{"SELECT GET_LOCK(SHA1(CONCAT(DATABASE(), 'custody schema')), 30)", "SELECT RELEASE_LOCK(SHA1(CONCAT(DATABASE(), 'custody schema')))"},
	schema: []string{`
CREATE TABLE IF NOT EXISTS custody_partition (
	id               BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
	connection_name  VARBINARY(512) NOT NULL,
	storage_identity VARBINARY(512) NOT NULL,
	owner            VARCHAR(1024) NOT NULL DEFAULT '',
	writer           BIGINT NOT NULL DEFAULT 0,
	batch            BIGINT NOT NULL DEFAULT 0,
	fence            BIGINT NOT NULL DEFAULT 0,
	last_ord         BIGINT NOT NULL DEFAULT 0,
	settled          BIGINT NOT NULL DEFAULT 0,
	UNIQUE (connection_name, storage_identity)
) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS custody_row (
	part          BIGINT NOT NULL REFERENCES custody_partition (id),
	ord           BIGINT NOT NULL,
	message_id    VARBINARY(512) NOT NULL,
	state         SMALLINT NOT NULL,
	version       SMALLINT NOT NULL,
	business_id   VARBINARY(512) NOT NULL,
	topic         VARBINARY(512) NOT NULL,
	competitor    VARBINARY(512) NOT NULL,
	routing_key   VARBINARY(512) NOT NULL,
	inserted_at   BIGINT NOT NULL,
	expires_at    BIGINT,
	attempts      BIGINT NOT NULL,
	last_consumer VARBINARY(512) NOT NULL,
	reason        BLOB NOT NULL,
	keep_until    BIGINT,
	size          BIGINT NOT NULL,
	content_sum   BIGINT NOT NULL,
	head_sum      BIGINT NOT NULL,
	headers       LONGBLOB NOT NULL,
	payload       LONGBLOB NOT NULL,
	PRIMARY KEY (part, ord),
	UNIQUE (part, message_id),
	INDEX custody_expiry (part, expires_at),
	INDEX custody_settled (part, keep_until),
	INDEX custody_dead (part, state, ord)
) ENGINE=InnoDB`},
	begin:     "START TRANSACTION",
	database:  "DATABASE()",
	duplicate: func(err error) bool { return mysqlCode(err) == 1062 },
	full:      func(err error) bool { return slices.Contains([]uint16{1021, 1114, 3}, mysqlCode(err)) },
	// The server may report an error of a COMMIT after it was written.
	answered: func(error) bool { return false },
}

// mysqlCode returns the server's error code:
// https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html
func mysqlCode(err error) uint16 {
	if said := (*driver.MySQLError)(nil); errors.As(err, &said) {
		return said.Number
	}
	return 0
}
