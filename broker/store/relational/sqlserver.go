package relational

import (
	"context"
	"database/sql"
	"errors"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/custodymq/custody/broker/store"
)

// SQLServer is the dialect of Microsoft SQL Server. The DSN is a URL:
// https://github.com/microsoft/go-mssqldb#the-connection-string-can-be-specified-in-one-of-three-formats
var SQLServer = Dialect{
	name: "sqlserver",
	open: func(dsn string) (*sql.DB, error) {
		connector, err := mssql.NewConnector(dsn)
		if err != nil {
			return nil, errors.New("the DSN is none of SQL Server, such as sqlserver://user:password@host?database=name") // the driver's error may quote the DSN
		}
		return sql.OpenDB(connector), nil
	},
	placeholder: numbered("@p"),
	limit:       " OFFSET 0 ROWS FETCH NEXT ? ROWS ONLY",
	hint:        " WITH (UPDLOCK, ROWLOCK)",
	values:      unionAll,
	update: func(set, v, on, where string) string {
		return "UPDATE r SET " + set + " FROM " + v + " JOIN custody_row AS r ON " + on + " WHERE " + where
	},
	remove: func(v, on, where string) string {
		return "DELETE r FROM " + v + " JOIN custody_row AS r ON " + on + " WHERE " + where
	},
	lock: func(ctx context.Context, conn *sql.Conn, name string) (bool, error) {
		var status int
		err := conn.QueryRowContext(ctx, `DECLARE @status INT;
			EXEC @status = sp_getapplock @Resource = @p1, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 0;
			SELECT @status`, name).Scan(&status)
		return status >= 0 && err == nil, err
	},
	// https://learn.microsoft.com/sql/relational-databases/logs/control-transaction-durability
	prepare: func(ctx context.Context, conn *sql.Conn, flush store.Flush) error {
		if flush == store.FlushPeriodic {
			return errors.New("SQL Server has delayed durability as a property of the database, which its administrator sets: the flush policy periodic is not offered")
		}
		durability, err := setting(ctx, conn, "SELECT delayed_durability_desc FROM sys.databases WHERE name = DB_NAME()")
		if err == nil && durability == "FORCED" {
			err = errors.New("the database has DELAYED_DURABILITY = FORCED, and loses what it has confirmed when power fails: set it to ALLOWED or DISABLED")
		}
		if err == nil {
			_, err = conn.ExecContext(ctx, "SET XACT_ABORT ON")
		}
		return err
	},
	guard: [2]string{
		"EXEC sp_getapplock @Resource = 'custody schema', @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 30000",
		"EXEC sp_releaseapplock @Resource = 'custody schema', @LockOwner = 'Session'",
	},
	schema: []string{`
CREATE TABLE custody_partition (
	id               BIGINT IDENTITY PRIMARY KEY,
	connection_name  VARBINARY(512) NOT NULL,
	storage_identity VARBINARY(512) NOT NULL,
	owner            NVARCHAR(1024) NOT NULL DEFAULT '',
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
	reason        VARBINARY(8000) NOT NULL,
	keep_until    BIGINT,
	size          BIGINT NOT NULL,
	content_sum   BIGINT NOT NULL,
	head_sum      BIGINT NOT NULL,
	headers       VARBINARY(MAX) NOT NULL,
	payload       VARBINARY(MAX) NOT NULL,
	PRIMARY KEY (part, ord),
	UNIQUE (part, message_id)
);
CREATE INDEX custody_expiry ON custody_row (part, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX custody_settled ON custody_row (part, keep_until) WHERE keep_until IS NOT NULL;
CREATE INDEX custody_dead ON custody_row (part, ord) WHERE state = 4`},
	begin:     "BEGIN TRANSACTION",
	database:  "SCHEMA_NAME()",
	duplicate: func(err error) bool { n := sqlserverCode(err); return n == 2601 || n == 2627 },
	full:      func(err error) bool { n := sqlserverCode(err); return n == 1105 || n == 9002 },
	answered:  func(error) bool { return false },
}

func sqlserverCode(err error) int32 {
	if said := (mssql.Error{}); errors.As(err, &said) {
		return said.Number
	}
	return 0
}
