package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/ncruces/go-sqlite3"
)

// Report is the result of Check.
type Report struct {
	Path       string            `json:"path"`
	Structure  []string          `json:"structure,omitempty"` // faults in SQLite's own structure
	Partitions []PartitionReport `json:"partitions"`
	Damaged    []DamagedRow      `json:"damaged,omitempty"` // at most maxNamed of them
	Unnamed    int               `json:"unnamed,omitempty"` // damaged rows not listed in Damaged
}

// PartitionReport counts one partition's rows.
type PartitionReport struct {
	Partition string `json:"partition"`
	Owner     string `json:"owner,omitempty"` // the last owner
	Pending   int64  `json:"pending"`
	Dead      int64  `json:"dead"`
	Processed int64  `json:"processed"`
	Settled   int64  `json:"settled"` // settled markers
	Refused   int64  `json:"refused"` // of a payload version that this build cannot read
	Damaged   int64  `json:"damaged"`
	Missing   int64  `json:"missing"` // counted as pending or dead, but found neither sound nor damaged
	Lost      int64  `json:"lost"`    // missing transactions
	Bytes     int64  `json:"bytes"`   // payloads and headers
}

// DamagedRow identifies a damaged row as far as it can be read.
type DamagedRow struct {
	Partition string `json:"partition"`
	MessageID string `json:"messageId,omitempty"`
	Order     uint64 `json:"order"`
	Reason    string `json:"reason"`
}

// Sound reports that nothing is damaged or missing.
func (r Report) Sound() bool {
	for _, p := range r.Partitions {
		if p.Damaged+p.Missing+p.Lost > 0 {
			return false
		}
	}
	return len(r.Structure)+len(r.Damaged) == 0
}

const (
	maxNamed     = 1000
	maxStructure = 100
)

// Check verifies a whole file: SQLite's structure, and the checksums of every row
// and its content. It is read-only, and a broker may be running on the file.
// progress is called for each row with the number done and the total. An error
// means that the file could not be checked, not that it is damaged.
func Check(ctx context.Context, path string, progress func(done, all int64)) (report Report, err error) {
	report.Path = path
	defer func() {
		if v := recover(); v != nil {
			report.Structure = append(report.Structure, fmt.Sprintf("reading it makes SQLite panic: %v", v))
		}
	}()
	if path, err = filepath.Abs(path); err != nil {
		return report, err
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return report, fmt.Errorf("%s is no file that can be read: %w", path, cmp.Or(err, errors.New("not a regular file")))
	}
	how := "mode=ro"
	if _, err := os.Stat(path + "-wal"); errors.Is(err, os.ErrNotExist) {
		how += "&immutable=1" // not in use: do not create a WAL either
	}
	conn, err := sqlite3.OpenFlags((&url.URL{Scheme: "file", Path: path, RawQuery: how}).String(), sqlite3.OPEN_READONLY|sqlite3.OPEN_URI)
	if err != nil {
		return report, fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, closeAll(conn)) }()
	if err := conn.BusyTimeout(5 * time.Second); err != nil {
		return report, err
	}
	conn.SetInterrupt(ctx)
	c := checking{conn: conn, report: &report, progress: progress, partitions: map[int64]*PartitionReport{}}
	if err := c.run(ctx, path); err != nil && !c.broken(err) {
		return report, fmt.Errorf("check %s: %w", path, err)
	}
	return report, nil
}

type checking struct {
	conn       *sqlite3.Conn
	report     *Report
	progress   func(done, all int64)
	partitions map[int64]*PartitionReport
	counted    map[int64]int64
	done, all  int64
	last       int64 // order of the last row read
}

// broken reports whether err means that the file is damaged, and records it.
func (c *checking) broken(err error) bool {
	if !errors.Is(err, sqlite3.CORRUPT) && !errors.Is(err, sqlite3.NOTADB) {
		return false
	}
	c.report.Structure = append(c.report.Structure, err.Error())
	return true
}

func (c *checking) run(ctx context.Context, path string) error {
	found, application, version, err := readSchema(c.conn)
	if err != nil {
		return err
	}
	if err := ours(application, version); err != nil {
		return err
	}
	if version < schemaVersion {
		return fmt.Errorf("schema version %d has no checksums: start this build's broker on it once, which migrates it", version)
	}
	if err := altered(found, schema, version); err != nil {
		c.report.Structure = append(c.report.Structure, err.Error())
	}
	// Read one snapshot: a broker may be writing.
	if err := c.conn.Exec(`BEGIN`); err != nil {
		return err
	}
	defer func() { _ = c.conn.Exec(`ROLLBACK`) }()
	if err := c.structure(); err != nil && !c.broken(err) {
		return err
	}
	if err := c.readPartitions(path); err != nil && !c.broken(err) {
		return err
	}
	if err := c.rows(); err != nil && !c.broken(err) {
		return err
	}
	for id, p := range c.partitions {
		p.Missing = max(0, c.counted[id]-p.Pending-p.Dead-p.Refused-p.Damaged)
		c.report.Partitions = append(c.report.Partitions, *p)
	}
	slices.SortFunc(c.report.Partitions, func(a, b PartitionReport) int { return strings.Compare(a.Partition, b.Partition) })
	return ctx.Err()
}

func (c *checking) structure() error {
	return query(c.conn, fmt.Sprintf(`PRAGMA integrity_check(%d)`, maxStructure), func(stmt *sqlite3.Stmt) {
		if text := stmt.ColumnText(0); text != "ok" {
			c.report.Structure = append(c.report.Structure, strings.TrimSpace(strings.TrimPrefix(text, "*** in database main ***")))
		}
	})
}

func (c *checking) readPartitions(path string) error {
	c.counted = map[int64]int64{}
	err := query(c.conn, `SELECT id, connection, identity, batch, live, lost FROM custody_partition`, func(stmt *sqlite3.Stmt) {
		p := store.Partition{Connection: stmt.ColumnText(1), Identity: stmt.ColumnText(2)}
		report := &PartitionReport{Partition: p.String(), Lost: stmt.ColumnInt64(5)}
		if file, err := os.Open(ownerPath(path, p)); err == nil {
			batch, who, err := readOwner(file)
			file.Close()
			if err == nil {
				report.Owner = who
				if running(path, p) == nil { // a running broker's record may be ahead of this snapshot
					report.Lost += max(0, batch-stmt.ColumnInt64(3))
				}
			}
		}
		id := stmt.ColumnInt64(0)
		c.partitions[id], c.counted[id] = report, stmt.ColumnInt64(4)
	})
	if err != nil {
		return err
	}
	return query(c.conn, `SELECT count(*) FROM custody_row`, func(stmt *sqlite3.Stmt) { c.all = stmt.ColumnInt64(0) })
}

// running returns an error that names the partition's current owner, or nil if it
// has none.
func running(path string, p store.Partition) error {
	file, err := os.Open(ownerPath(path, p))
	if err != nil {
		return nil
	}
	defer file.Close()
	if free, err := lock(file); err != nil || free { // the lock is released with the file
		return nil
	}
	return taken(file, p)
}

// rows scans the table and, if the scan breaks off, continues by the index.
func (c *checking) rows() error {
	walk := withContent + `WHERE ord>?1 ORDER BY ord`
	err := c.each(walk, 0)
	if err == nil || !c.broken(err) {
		return err
	}
	var index []int64
	err = query(c.conn, `SELECT ord FROM custody_row INDEXED BY sqlite_autoindex_custody_row_1`, func(stmt *sqlite3.Stmt) {
		index = append(index, stmt.ColumnInt64(0))
	})
	if err != nil {
		return err
	}
	slices.Sort(index)
	at, _ := slices.BinarySearch(index, c.last+1)
	for _, ord := range index[at:] {
		err := c.each(withContent+`WHERE ord=?1`, ord)
		switch {
		case errors.Is(err, sqlite3.CORRUPT):
			c.damage(nil, DamagedRow{Order: uint64(ord), Reason: "it cannot be read: " + err.Error()})
		case err != nil:
			return err
		}
	}
	return nil
}

func (c *checking) each(sql string, parameter int64) error {
	stmt, _, err := c.conn.Prepare(sql)
	if err != nil {
		return err
	}
	return bind(stmt).int(parameter).run(c.row)
}

func (c *checking) row(stmt *sqlite3.Stmt) {
	row, sound := scanRow(stmt)
	c.last = int64(row.Order)
	c.done++
	c.progress(c.done, c.all)
	p := c.partitions[stmt.ColumnInt64(int(partitionField)+1)]
	if !sound || p == nil {
		c.damage(p, DamagedRow{MessageID: row.MessageID, Order: row.Order, Reason: damaged(row, store.Partition{}).Reason})
		return
	}
	p.Bytes += int64(row.Size)
	count, known := map[store.State]*int64{
		store.Pending: &p.Pending, store.Dead: &p.Dead, store.Processed: &p.Processed,
		store.SettledMarker: &p.Settled, store.RefusedVersion: &p.Refused,
	}[store.Refuse(row).State]
	if known {
		*count++
	}
}

func (c *checking) damage(p *PartitionReport, row DamagedRow) {
	if p != nil {
		p.Damaged++
		row.Partition = p.Partition
	}
	if len(c.report.Damaged) == maxNamed {
		c.report.Unnamed++
		return
	}
	c.report.Damaged = append(c.report.Damaged, row)
}
