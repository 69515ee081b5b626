package zeromq

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// standbyName is the actor of a standby: of its link to the server, of its events,
// and the name of its log.
const standbyName = "standby"

// GapDefect is seeded where the servers are set up, not in the broker: a commit no
// longer waits for the standby, which is said to be synchronous, so that it is
// promoted with a gap.
const GapDefect = "standby-promoted-with-a-gap"

// pair is PostgreSQL with a standby
// (https://www.postgresql.org/docs/current/warm-standby.html).
type pair struct {
	*serverKind
	synchronous bool
}

func (p pair) title() string {
	if p.synchronous {
		return p.name + ", with a synchronous standby"
	}
	return p.name + ", with an asynchronous standby"
}

// followed is a run's database in a server with a standby.
type followed struct {
	*served
	standby *databaseServer
}

var _ systems.Replicated = (*followed)(nil)

func (p pair) open(ctx context.Context, env systems.Env) (_ database, err error) {
	env.Servers = nil // the standby follows over a link of this run's
	first, err := p.serverKind.open(ctx, env)
	if err != nil {
		return nil, err
	}
	d := &followed{served: first.(*served)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("zeromq: standby: %w", err), d.release(context.WithoutCancel(ctx)))
		}
	}()
	link := d.address
	if env.Link != nil {
		if link, err = env.Link(ctx, standbyName, d.address, nil); err != nil {
			return nil, err
		}
	}
	if d.standby, err = d.follow(ctx, env, link); err != nil {
		return nil, err
	}
	state := "async"
	if p.synchronous && env.Defect != GapDefect {
		state = "sync"
		if err := d.do(ctx, "ALTER SYSTEM SET synchronous_standby_names = '"+standbyName+"'", reload); err != nil {
			return nil, err
		}
	}
	return d, d.await(ctx, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = '"+state+"')")
}

// follow makes a copy of the server, and starts it as its standby.
func (d *followed) follow(ctx context.Context, env systems.Env, link string) (_ *databaseServer, err error) {
	log, err := env.ServerLog(Name, standbyName)
	if err != nil {
		return nil, err
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	s := &databaseServer{kind: d.kind, address: port.Address, port: port.Number(), password: d.password}
	defer func() {
		if err != nil {
			err = errors.Join(err, log.Close(), port.Close(), os.RemoveAll(s.folder))
		}
	}()
	if s.folder, err = process.Folder(); err != nil {
		return nil, err
	}
	s.dir = filepath.Join(s.folder, "server")
	bin, err := d.kind.bin()
	if err == nil {
		err = s.makeFolder(false)
	}
	if err == nil {
		err = s.once(ctx, []string{filepath.Join(bin, "pg_basebackup"), "-d", d.kind.dsn(brokerUser, d.address, "", ""), "-D", s.data(), "-X", "stream", "--checkpoint=fast", "--no-sync"},
			"PGPASSWORD="+d.password)
	}
	if err == nil {
		upstream := d.kind.dsn(brokerUser, link, d.password, "") + "&application_name=" + standbyName
		err = s.write(map[string]string{"postgresql.auto.conf": "primary_conninfo = '" + upstream + "'\n", "standby.signal": ""})
	}
	if err != nil {
		return nil, err
	}
	s.Server = process.NewServer(standbyName, env.Sink, log, s.launch, port)
	return s, s.Restart(ctx)
}

func (s *databaseServer) data() string { return filepath.Join(s.dir, "data") }

// write puts files of the server's user in the data folder.
func (s *databaseServer) write(files map[string]string) error {
	_, uid, gid, err := s.kind.as(nil)
	for name, text := range files {
		path := filepath.Join(s.data(), name)
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600), os.Chown(path, uid, gid))
	}
	return err
}

// await waits until a query says yes.
func (s *databaseServer) await(ctx context.Context, query string) error {
	tick := time.NewTicker(strikeEvery)
	defer tick.Stop()
	return s.with(s.kind.admin, func(db *sql.DB) error {
		for {
			var yes bool
			if err := db.QueryRowContext(ctx, query).Scan(&yes); err != nil {
				return fmt.Errorf("zeromq: %s: %w", query, err)
			}
			if yes {
				return nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("zeromq: %s: %w", query, context.Cause(ctx))
			}
		}
	})
}

// FailOver starts what the standby has on the server's address, and promotes it.
func (d *followed) FailOver(ctx context.Context) error {
	if err := d.Kill(ctx); err != nil {
		return err
	}
	if err := d.standby.Shutdown(ctx); err != nil {
		return err
	}
	if err := d.standby.write(map[string]string{"postgresql.auto.conf": ""}); err != nil { // it follows nobody, least of all itself
		return err
	}
	d.dir = d.standby.dir
	if err := d.Restart(ctx); err != nil {
		return err
	}
	return d.await(ctx, "SELECT pg_promote()")
}

// release ends both servers: nothing in them is needed any more.
func (d *followed) release(ctx context.Context) error {
	err := d.Close(ctx)
	if d.standby != nil {
		err = errors.Join(err, d.standby.Close(ctx))
	}
	return err
}
