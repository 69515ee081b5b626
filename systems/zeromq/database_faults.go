package zeromq

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	client "github.com/redis/go-redis/v9"
)

func (*serverKind) strikes() []string { return []string{"exhaust", "read-only"} }

func (d *served) faults() map[string]serverFault {
	return map[string]serverFault{"exhaust": d.exhaust, "read-only": d.readOnly, "fill": filling(d.volume, d.revive)}
}

// revive starts a server that has ended.
func (s *databaseServer) revive(ctx context.Context) error {
	if s.Running() {
		return nil
	}
	return s.Restart(ctx)
}

const (
	strikeEvery = 20 * time.Millisecond
	// refusedFor is how long a server refuses: what the broker has just lost comes
	// free a little later.
	refusedFor = 15 // times, strikeEvery
)

// do runs statements as the operator, each by itself.
func (s *databaseServer) do(ctx context.Context, statements ...string) error {
	return s.with(s.kind.admin, func(db *sql.DB) error {
		for _, statement := range statements {
			if _, err := db.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("zeromq: %s: %w", statement, err)
			}
		}
		return nil
	})
}

// exhaust takes connections until the server refuses, again and again.
func (d *served) exhaust(ctx context.Context) (func(context.Context) error, error) {
	db, err := d.kind.dialect.Connect(d.kind.dsn(d.kind.operator, d.address, d.password, d.kind.admin))
	if err != nil {
		return nil, err
	}
	var taken []*sql.Conn
	heal := func(context.Context) error {
		var errs []error
		for _, conn := range taken {
			errs = append(errs, conn.Close())
		}
		return errors.Join(append(errs, db.Close())...)
	}
	err = takeAll(ctx, func(err error) bool { return strings.Contains(err.Error(), d.kind.crowded) }, func() error {
		conn, err := db.Conn(ctx)
		if err == nil {
			taken = append(taken, conn)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, heal(ctx))
	}
	return heal, nil
}

// takeAll connects until that was refused often enough.
func takeAll(ctx context.Context, refusal func(error) bool, connect func() error) error {
	tick := time.NewTicker(strikeEvery)
	defer tick.Stop()
	for taken, refused := 0, 0; refused < refusedFor; {
		err := connect()
		switch {
		case err == nil:
			refused = 0
			if taken++; taken > 2*maxConnections {
				return fmt.Errorf("zeromq: the server gives more than %d connections", 2*maxConnections)
			}
			continue
		case !refusal(err):
			return fmt.Errorf("zeromq: take every connection of the server: %w", err)
		}
		refused++
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// readOnly makes the server take no writes of the broker's user, and sees it
// refuse one.
func (d *served) readOnly(ctx context.Context) (func(context.Context) error, error) {
	d.changed.Store(true)
	heal := func(ctx context.Context) error { return d.do(ctx, d.kind.readOnly[1]...) }
	if err := d.do(ctx, d.kind.readOnly[0]...); err != nil {
		return nil, err
	}
	return heal, d.refuses(ctx)
}

// refuses waits until a write is refused.
func (d *served) refuses(ctx context.Context) error {
	db, err := d.kind.dialect.Connect(d.dsn())
	if err != nil {
		return err
	}
	defer db.Close()
	tick := time.NewTicker(strikeEvery)
	defer tick.Stop()
	for {
		_, err := db.ExecContext(ctx, "CREATE TABLE custody_written (n INT)")
		if err != nil && ctx.Err() == nil {
			return nil
		}
		if err == nil {
			_, err = db.ExecContext(ctx, "DROP TABLE custody_written")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("zeromq: the server still takes writes: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

func (redis) strikes() []string { return []string{"exhaust", "read-only"} }

func (d *redisDatabase) faults() map[string]serverFault {
	return map[string]serverFault{"exhaust": d.exhaust, "read-only": d.readOnly, "fill": filling(d.volume, d.revive)}
}

// revive starts a server that has ended: it does so itself if its log cannot be
// written.
func (s *redisServer) revive(ctx context.Context) error {
	if s.Running() {
		return nil
	}
	return s.Restart(ctx)
}

// redisCrowded: the server closes what it refuses, and its client may see no more
// than that.
func redisCrowded(err error) bool {
	return strings.Contains(err.Error(), "max number of clients") || errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

func (d *redisDatabase) exhaust(ctx context.Context) (func(context.Context) error, error) {
	var taken []*client.Client
	heal := func(context.Context) error {
		var errs []error
		for _, c := range taken {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}
	err := takeAll(ctx, redisCrowded, func() error {
		c, err := d.client()
		if err != nil {
			return err
		}
		taken = append(taken, c) // each has one connection, kept in its pool
		return c.Ping(ctx).Err()
	})
	if err != nil {
		return nil, errors.Join(err, heal(ctx))
	}
	return heal, nil
}

// readOnly makes the server a replica of one that is not there.
func (d *redisDatabase) readOnly(ctx context.Context) (func(context.Context) error, error) {
	d.changed.Store(true)
	follow := func(ctx context.Context, host, port string) error {
		return d.with(func(c *client.Client) error { return c.ReplicaOf(ctx, host, port).Err() })
	}
	heal := func(ctx context.Context) error { return follow(ctx, "NO", "ONE") }
	if err := follow(ctx, "127.0.0.1", "1"); err != nil {
		return nil, err
	}
	err := d.with(func(c *client.Client) error { return c.Set(ctx, "custody:written", "1", 0).Err() })
	if err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
		return heal, fmt.Errorf("zeromq: the server still takes writes: %w", err)
	}
	return heal, nil
}
