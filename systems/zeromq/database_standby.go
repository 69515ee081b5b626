package zeromq

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/systems"
)

// standbyName is the actor of a standby: of its link to the server, of its events,
// and the name of its log.
const standbyName = "standby"

// GapDefect is seeded where the servers are set up, not in the broker: a commit no
// longer waits for the standby, which is said to be synchronous, so that it is
// promoted with a gap.
const GapDefect = "standby-promoted-with-a-gap"

// pair is a server with a standby.
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

// replication is how a standby follows a server of a kind. Its methods are called
// in this order.
type replication interface {
	// options are those of a server that is to be followed.
	options() []string
	// copy prepares the standby, which is started then. The server is reached at
	// upstream.
	copy(ctx context.Context, s, standby *databaseServer, upstream string) error
	// demand makes what the server commits from now on wait for the standby.
	demand(ctx context.Context, d *served) error
	// attach makes the standby follow, and waits until it has all that the server has.
	attach(ctx context.Context, s, standby *databaseServer, upstream string, synchronous bool) error
	// detach waits until the standby has made its own all that it was sent. Started
	// again, it follows nobody, least of all itself.
	detach(ctx context.Context, standby *databaseServer) error
	// promote makes a server that was started as the standby was left take writes.
	promote(ctx context.Context, s *databaseServer) error
}

// followed is a run's database in a server with a standby.
type followed struct {
	*served
	standby *databaseServer
}

var _ systems.Replicated = (*followed)(nil)

func (p pair) open(ctx context.Context, env systems.Env) (_ database, err error) {
	env.Servers = nil // the standby follows over a link of this run's
	first, err := p.serve(ctx, env, p.replication.options()...)
	if err != nil {
		return nil, err
	}
	d := &followed{served: first}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("zeromq: standby: %w", err), d.release(context.WithoutCancel(ctx)))
		}
	}()
	upstream := d.address
	if env.Link != nil {
		if upstream, err = env.Link(ctx, standbyName, d.address, nil); err != nil {
			return nil, err
		}
	}
	if d.standby, err = p.newServer(ctx, env, standbyName, d.password, false); err != nil {
		return nil, err
	}
	if err = p.replication.copy(ctx, d.databaseServer, d.standby, upstream); err != nil {
		return nil, err
	}
	if err = d.standby.Restart(ctx); err != nil {
		return nil, err
	}
	synchronous := p.synchronous && env.Defect != GapDefect
	if synchronous {
		if err = p.replication.demand(ctx, d.served); err != nil {
			return nil, err
		}
	}
	if err = p.replication.attach(ctx, d.databaseServer, d.standby, upstream, synchronous); err != nil {
		return nil, err
	}
	return d, nil
}

// FailOver starts what the standby has on the server's address, and promotes it.
// What commits there waits for nobody.
func (d *followed) FailOver(ctx context.Context) error {
	if err := d.Kill(ctx); err != nil {
		return err
	}
	if err := d.kind.replication.detach(ctx, d.standby); err != nil {
		return err
	}
	if err := d.standby.Shutdown(ctx); err != nil {
		return err
	}
	d.dir, d.options = d.standby.dir, nil
	d.waits.Store(false)
	if err := d.Restart(ctx); err != nil {
		return err
	}
	return d.kind.replication.promote(ctx, d.databaseServer)
}

// release ends both servers: nothing in them is needed any more.
func (d *followed) release(ctx context.Context) error {
	err := d.Close(ctx)
	if d.standby != nil {
		err = errors.Join(err, d.standby.Close(ctx))
	}
	return err
}

// postgresReplication streams the WAL:
// https://www.postgresql.org/docs/current/warm-standby.html
type postgresReplication struct{ relationalEngine }

func (postgresReplication) options() []string { return nil }

func (postgresReplication) copy(ctx context.Context, s, standby *databaseServer, upstream string) error {
	bin, err := s.kind.bin()
	if err != nil {
		return err
	}
	data := filepath.Join(standby.dir, "data")
	err = standby.once(ctx, []string{filepath.Join(bin, "pg_basebackup"), "-d", s.kind.dsn(brokerUser, s.address, "", ""), "-D", data, "-X", "stream", "--checkpoint=fast", "--no-sync"},
		"PGPASSWORD="+s.password)
	if err != nil {
		return err
	}
	from := s.kind.dsn(brokerUser, upstream, s.password, "") + "&application_name=" + standbyName
	return standby.write(data, map[string]string{"postgresql.auto.conf": "primary_conninfo = '" + from + "'\n", "standby.signal": ""})
}

func (r postgresReplication) demand(ctx context.Context, d *served) error {
	return r.do(ctx, d.databaseServer, "ALTER SYSTEM SET synchronous_standby_names = '"+standbyName+"'", reload)
}

func (r postgresReplication) attach(ctx context.Context, s, _ *databaseServer, _ string, synchronous bool) error {
	state := "async"
	if synchronous {
		state = "sync"
	}
	return r.await(ctx, s, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = '"+state+"')")
}

func (postgresReplication) detach(_ context.Context, standby *databaseServer) error {
	return standby.write(filepath.Join(standby.dir, "data"), map[string]string{"postgresql.auto.conf": ""})
}

func (r postgresReplication) promote(ctx context.Context, s *databaseServer) error {
	return r.await(ctx, s, "SELECT pg_promote()")
}

// mariadbReplication sends the binary log, from its beginning, to a standby that has
// no more than a new server has. Semi-synchronous, a transaction that is in the log
// waits until the standby has it in its own, before it is committed:
// https://mariadb.com/docs/server/ha-and-performance/standard-replication/semisynchronous-replication
type mariadbReplication struct{ relationalEngine }

// semisync, by default, gives up waiting after ten seconds. Then a commit waits for
// nobody until the standby is back, and may be lost with the server.
const semisync = "--rpl-semi-sync-master-enabled=1"

func (mariadbReplication) options() []string {
	return []string{"--server-id=1", "--log-bin=binlog", "--sync-binlog=1", "--binlog-format=ROW",
		"--rpl-semi-sync-master-timeout=3600000", "--rpl-semi-sync-master-wait-point=AFTER_SYNC"}
}

func (mariadbReplication) copy(ctx context.Context, _, standby *databaseServer, _ string) error {
	standby.options = []string{"--server-id=2", "--relay-log=relay", "--read-only=1", "--rpl-semi-sync-slave-enabled=1"}
	return standby.createData(ctx)
}

// demand holds over restarts of the server too.
func (r mariadbReplication) demand(ctx context.Context, d *served) error {
	d.options = append(d.options, semisync)
	return r.do(ctx, d.databaseServer, "SET GLOBAL rpl_semi_sync_master_enabled = 1")
}

func (r mariadbReplication) attach(ctx context.Context, s, standby *databaseServer, upstream string, synchronous bool) error {
	host, port, err := net.SplitHostPort(upstream)
	if err != nil {
		return err
	}
	follow := fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '%s', MASTER_PORT = %s, MASTER_USER = '%s', MASTER_PASSWORD = '%s', MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos",
		host, port, brokerUser, s.password)
	if err := r.do(ctx, standby, follow, "START SLAVE"); err != nil {
		return err
	}
	at, err := r.column(ctx, s, "SELECT @@gtid_binlog_pos AS at", "at")
	if err != nil {
		return err
	}
	if err := r.reached(ctx, standby, at); err != nil || !synchronous {
		return err
	}
	return r.await(ctx, s, "SELECT COUNT(*) = 2 FROM information_schema.GLOBAL_STATUS "+
		"WHERE (VARIABLE_NAME, VARIABLE_VALUE) IN (('RPL_SEMI_SYNC_MASTER_STATUS', 'ON'), ('RPL_SEMI_SYNC_MASTER_CLIENTS', '1'))")
}

// detach: what the standby has acknowledged is in its relay log, which it discards
// when it is started again.
func (r mariadbReplication) detach(ctx context.Context, standby *databaseServer) error {
	if err := r.do(ctx, standby, "STOP SLAVE IO_THREAD"); err != nil {
		return err
	}
	at, err := r.column(ctx, standby, "SHOW SLAVE STATUS", "Gtid_IO_Pos")
	if err != nil {
		return err
	}
	if err := r.reached(ctx, standby, at); err != nil {
		return err
	}
	return r.do(ctx, standby, "STOP SLAVE", "RESET SLAVE ALL")
}

func (mariadbReplication) promote(context.Context, *databaseServer) error { return nil }

// reached waits until the standby has applied the log up to a position.
func (r mariadbReplication) reached(ctx context.Context, standby *databaseServer, at string) error {
	return r.await(ctx, standby, "SELECT MASTER_GTID_WAIT('"+at+"', 0.02) = 0")
}

// column is a value of the one row of an answer.
func (r mariadbReplication) column(ctx context.Context, s *databaseServer, query, name string) (value string, err error) {
	err = r.with(s, r.admin, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, query)
		if err != nil {
			return err
		}
		defer rows.Close()
		names, err := rows.Columns()
		if err != nil {
			return err
		}
		values := make([]any, len(names))
		for i := range values {
			values[i] = new(sql.NullString)
		}
		if !rows.Next() {
			return errors.Join(sql.ErrNoRows, rows.Err())
		}
		if err := rows.Scan(values...); err != nil {
			return err
		}
		for i := range names {
			if names[i] == name {
				value = values[i].(*sql.NullString).String
				return rows.Err()
			}
		}
		return fmt.Errorf("there is no %s", name)
	})
	if err != nil {
		return "", fmt.Errorf("zeromq: %s: %w", query, err)
	}
	return value, nil
}

// redisReplication sends commands, to a replica that copies the server by itself.
// That a commit waits for it is asked for by who commits: see redisstore.Options.
// https://redis.io/docs/latest/operate/oss_and_stack/management/replication/
type redisReplication struct{ redisEngine }

func (redisReplication) options() []string { return nil }

func (redisReplication) copy(_ context.Context, _, standby *databaseServer, upstream string) error {
	host, port, err := net.SplitHostPort(upstream)
	standby.options = []string{"--replicaof", host, port}
	return err
}

func (redisReplication) demand(_ context.Context, d *served) error {
	d.waits.Store(true)
	return nil
}

func (r redisReplication) attach(ctx context.Context, _, standby *databaseServer, _ string, _ bool) error {
	return r.says(ctx, standby, "master_link_status:up", logged)
}

// logged: the replica's own log has the copy. Before that it would be empty after a
// restart.
const logged = "aof_rewrite_in_progress:0"

func (r redisReplication) detach(ctx context.Context, standby *databaseServer) error {
	return r.says(ctx, standby, logged)
}

func (redisReplication) promote(context.Context, *databaseServer) error { return nil }

// says waits until a server says all of this of itself.
func (r redisReplication) says(ctx context.Context, s *databaseServer, facts ...string) error {
	return r.with(s, func(c *client.Client) error {
		return until(ctx, strings.Join(facts, ", "), func() (bool, error) {
			info, err := c.Info(ctx).Result()
			for _, fact := range facts {
				if !strings.Contains(info, fact+"\r\n") {
					return false, err
				}
			}
			return err == nil, err
		})
	})
}
