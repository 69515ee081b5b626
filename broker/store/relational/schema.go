package relational

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// Schema returns the SQL script that creates the tables, for an administrator to
// run.
func Schema(d Dialect) string {
	var b strings.Builder
	for i, text := range d.schema {
		fmt.Fprintf(&b, "-- version %d\n", i+1)
		for _, statement := range append(statements(text), d.note(i+1)...) {
			b.WriteString(statement + ";\n\n")
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Version returns the schema version that this build creates and requires.
func (d Dialect) Version() int { return len(d.schema) }

// note returns the statements that record a version; the first one creates their
// table.
func (d Dialect) note(version int) []string {
	insert := fmt.Sprintf("INSERT INTO custody_schema (version) VALUES (%d)", version)
	if version > 1 {
		return []string{insert}
	}
	return []string{"CREATE TABLE custody_schema (version INTEGER NOT NULL PRIMARY KEY)", insert}
}

func statements(text string) []string {
	list := strings.Split(strings.TrimSpace(text), ";\n")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// Migrate creates the tables, or upgrades them to this build's version. It
// returns the version found before, 0 if there was none. Concurrent migrations
// wait for each other.
func Migrate(ctx context.Context, d Dialect, dsn string) (from int, err error) {
	db, err := d.open(dsn)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.ExecContext(ctx, d.guard[0]); err != nil {
		return 0, fmt.Errorf("wait for another migration: %w", err)
	}
	defer func() {
		_, unlocked := conn.ExecContext(context.WithoutCancel(ctx), d.guard[1])
		err = errors.Join(err, unlocked)
	}()
	if from, err = d.version(ctx, conn); err != nil {
		return 0, err
	}
	for version := from + 1; version <= d.Version(); version++ {
		if err := d.upgrade(ctx, conn, version); err != nil {
			return from, fmt.Errorf("schema version %d: %w", version, err)
		}
	}
	return from, nil
}

// upgrade runs one transaction if the server has transactional DDL; in MySQL,
// each statement can be repeated instead.
func (d Dialect) upgrade(ctx context.Context, conn *sql.Conn, version int) error {
	list := append([]string{d.begin}, append(statements(d.schema[version-1]), append(d.note(version), "COMMIT")...)...)
	for _, statement := range list {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			_, undone := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
			return errors.Join(err, undone)
		}
	}
	return nil
}

// version returns the version of the existing schema, 0 if there is none.
func (d Dialect) version(ctx context.Context, conn *sql.Conn) (version int, err error) {
	var there int
	const find = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'custody_schema' AND table_schema = "
	if err := conn.QueryRowContext(ctx, find+d.database).Scan(&there); err != nil {
		return 0, fmt.Errorf("look for the tables: %w", err)
	}
	if there == 0 {
		return 0, nil
	}
	if err := conn.QueryRowContext(ctx, "SELECT COALESCE(MAX(version), 0) FROM custody_schema").Scan(&version); err != nil {
		return 0, fmt.Errorf("read the schema's version: %w", err)
	}
	return version, nil
}

// known refuses tables that are missing or of another version.
func (d Dialect) known(ctx context.Context, conn *sql.Conn) error {
	version, err := d.version(ctx, conn)
	switch {
	case err != nil:
		return err
	case version == 0:
		return errors.New("the database has no tables of Custody's: make them with custody broker migrate")
	case version < d.Version():
		return fmt.Errorf("the tables are of version %d, and this build needs %d: custody broker migrate", version, d.Version())
	case version > d.Version():
		return fmt.Errorf("the tables are of version %d, and this build knows up to %d: use a newer one", version, d.Version())
	}
	return nil
}
