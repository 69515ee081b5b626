package zeromq

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/relational"
	"github.com/custodymq/custody/links"
	wiremysql "github.com/custodymq/custody/links/mysql"
	wirepostgres "github.com/custodymq/custody/links/postgres"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// serverKind is a kind of database server, as packaged by Debian.
type serverKind struct {
	name     string
	driver   string // name of the driver
	dialect  relational.Dialect
	protocol links.Protocol
	program  string         // the server
	places   string         // where it is, if not in PATH
	packaged string         // the package that brings it
	user     string         // as whom it has to run where this process is root; empty: as root
	admin    string         // database that is there from the start
	end      syscall.Signal // of an orderly end that waits for no client; 0: SIGTERM

	// create returns the command that creates the data folder. It runs in the
	// server's folder, where the file password holds the administrator's
	// password.
	create func(bin string, dir string) []string
	args   func(dir, port string) []string
	dsn    func(user, address, password, database string) string

	operator string      // who may do everything; the broker's user may not write to a server that is read-only
	crowded  string      // in the error of a server that gives no more connections
	readOnly [2][]string // statements that begin and end that the server takes no writes
	volume   int64       // bytes of a file system of its own
}

// The broker's user, and how many connections a server gives.
const (
	brokerUser     = "custody"
	maxConnections = 24
)

// serverName is the actor of the server's events, and the name of its log.
const serverName = "store"

// reload makes PostgreSQL read what ALTER SYSTEM has set.
const reload = "SELECT pg_reload_conf()"

var postgres = &serverKind{
	name: "postgres", driver: "postgres", dialect: relational.Postgres, protocol: wirepostgres.Protocol{},
	program: "postgres", places: "/usr/lib/postgresql/*/bin", packaged: "postgresql", user: "postgres", admin: "postgres", end: syscall.SIGINT,
	operator: brokerUser, crowded: "53300", volume: 160 << 20,
	readOnly: [2][]string{{"ALTER SYSTEM SET default_transaction_read_only = on", reload}, {"ALTER SYSTEM RESET default_transaction_read_only", reload}},
	create: func(bin, dir string) []string {
		return []string{filepath.Join(bin, "initdb"), "-D", filepath.Join(dir, "data"), "-U", "custody", "-A", "scram-sha-256", "--pwfile", filepath.Join(dir, "password"), "--no-sync", "-E", "UTF8"}
	},
	args: func(dir, port string) []string {
		return []string{"-D", filepath.Join(dir, "data"), "-k", "", "-c", "listen_addresses=127.0.0.1", "-p", port, "-c", "timezone=UTC",
			"-c", fmt.Sprintf("max_connections=%d", maxConnections), "-c", "wal_retrieve_retry_interval=100ms"}
	},
	dsn: func(user, address, password, database string) string {
		return "postgres://" + user + ":" + password + "@" + address + "/" + database + "?sslmode=disable"
	},
}

var mariadb = &serverKind{
	name: "mariadb", driver: "mysql", dialect: relational.MySQL, protocol: wiremysql.Protocol{},
	program: "mariadbd", places: "/usr/sbin", packaged: "mariadb-server", admin: "mysql",
	operator: "operator", crowded: "1040", volume: 320 << 20,
	readOnly: [2][]string{{"SET GLOBAL read_only = 1"}, {"SET GLOBAL read_only = 0"}},
	create: func(_, dir string) []string {
		return []string{"mariadb-install-db", "--no-defaults", "--datadir=" + filepath.Join(dir, "data"), "--tmpdir=" + dir, "--auth-root-authentication-method=normal", "--skip-test-db"}
	},
	args: func(dir, port string) []string {
		args := []string{"--no-defaults", "--datadir=" + filepath.Join(dir, "data"), "--port=" + port, "--bind-address=127.0.0.1",
			// Of its own: a server deletes what it finds in its temporary folder,
			// other servers' tables included.
			"--tmpdir=" + dir, "--socket=" + filepath.Join(dir, "socket"), "--init-file=" + filepath.Join(dir, "users.sql"), "--innodb-flush-log-at-trx-commit=1",
			fmt.Sprintf("--max-connections=%d", maxConnections)}
		if os.Getuid() == 0 {
			args = append(args, "--user=root")
		}
		return args
	},
	dsn: func(user, address, password, database string) string {
		return user + ":" + password + "@tcp(" + address + ")/" + database
	},
}

func (k *serverKind) title() string { return k.name }

// bin returns the folder of the server program.
func (k *serverKind) bin() (string, error) {
	if path, err := exec.LookPath(k.program); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil { // its other programs lie beside it
			return filepath.Dir(path), nil
		}
	}
	found, err := filepath.Glob(filepath.Join(k.places, k.program))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("zeromq: %s is missing: apt-get install %s, or make brokers", k.program, k.packaged)
	}
	return filepath.Dir(slices.Max(found)), nil
}

func (k *serverKind) installed() error {
	_, err := k.bin()
	if err == nil {
		_, _, _, err = k.as(nil)
	}
	return err
}

func (k *serverKind) version() (program, version string) {
	bin, err := k.bin()
	if err != nil {
		return k.program, notInstalled
	}
	return k.program, versionOf(filepath.Join(bin, k.program))
}

// as wraps a command to run as the server's user, and returns that user's IDs; -1
// means this process's own.
func (k *serverKind) as(command []string) (_ []string, uid, gid int, err error) {
	if os.Getuid() != 0 || k.user == "" {
		return command, -1, -1, nil
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		return nil, 0, 0, fmt.Errorf("zeromq: %s does not run as root, and setpriv is missing to make it another user's: apt-get install util-linux", k.program)
	}
	who, err := user.Lookup(k.user)
	if err != nil {
		return nil, 0, 0, fmt.Errorf("zeromq: %s does not run as root, and there is no user %s: %w", k.program, k.user, err)
	}
	uid, err = strconv.Atoi(who.Uid)
	gid, other := strconv.Atoi(who.Gid)
	if err := errors.Join(err, other); err != nil {
		return nil, 0, 0, fmt.Errorf("zeromq: user %s: %w", k.user, err)
	}
	// Like every child it must die with this process; changing the user resets
	// the parent-death signal, so set it again.
	return append([]string{"setpriv", "--reuid", who.Uid, "--regid", who.Gid, "--clear-groups", "--pdeathsig", "KILL", "--"}, command...), uid, gid, nil
}

// databaseServer is a server started by this run or an earlier one. Each run has
// a database of its own in it.
type databaseServer struct {
	*process.Server
	kind     *serverKind
	address  string
	password string
	folder   string // private, but searchable by the server's user
	dir      string // the server's folder, inside folder
	port     string
	volume   *process.Volume // at dir, or nil
	changed  atomic.Bool     // its settings were changed
}

var _ process.Kept = (*databaseServer)(nil)

func (k *serverKind) start(ctx context.Context, env systems.Env, log io.WriteCloser) (_ *databaseServer, err error) {
	bin, err := k.bin()
	if err != nil {
		return nil, err
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	s := &databaseServer{kind: k, address: port.Address, port: port.Number(), password: rand.Text()}
	if s.folder, err = process.Folder(); err != nil {
		return nil, errors.Join(err, port.Close())
	}
	s.dir = filepath.Join(s.folder, "server")
	defer func() {
		if err != nil {
			err = errors.Join(err, port.Close(), s.volume.Close(), os.RemoveAll(s.folder))
		}
	}()
	if err := s.makeFolder(env.Volume); err != nil {
		return nil, err
	}
	if err := s.once(ctx, k.create(bin, s.dir)); err != nil {
		return nil, err
	}
	s.Server = process.NewServer(serverName, env.Sink, log, s.launch, port)
	return s, s.Restart(ctx)
}

// launch starts the server's program on what is in its folder.
func (s *databaseServer) launch(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
	k := s.kind
	bin, err := k.bin()
	if err != nil {
		return nil, nil, err
	}
	command, _, _, err := k.as(append([]string{filepath.Join(bin, k.program)}, k.args(s.dir, s.port)...))
	if err != nil {
		return nil, nil, err
	}
	p, err := process.StartProgram(ctx, process.ProgramOptions{Path: command[0], Args: command[1:], Dir: s.dir, Log: log, Exited: exited, Ready: s.ping, Family: true, End: k.end})
	if err != nil {
		return nil, nil, fmt.Errorf("zeromq: start %s on %s: %w", k.program, s.address, err)
	}
	return p, nil, nil
}

// makeFolder makes the server's folder, which is its user's.
func (s *databaseServer) makeFolder(volume bool) error {
	_, uid, gid, err := s.kind.as(nil)
	if err != nil {
		return err
	}
	users := fmt.Sprintf("CREATE OR REPLACE USER custody@'127.0.0.1' IDENTIFIED BY '%[1]s';\nCREATE OR REPLACE USER custody@localhost IDENTIFIED BY '%[1]s';\n"+
		"CREATE OR REPLACE USER operator@'127.0.0.1' IDENTIFIED BY '%[1]s';\nCREATE OR REPLACE USER operator@localhost IDENTIFIED BY '%[1]s';\n"+
		"GRANT ALL ON *.* TO custody@'127.0.0.1';\nGRANT ALL ON *.* TO custody@localhost;\nGRANT ALL ON *.* TO operator@'127.0.0.1';\nGRANT ALL ON *.* TO operator@localhost;\n"+
		"REVOKE READ_ONLY ADMIN, CONNECTION ADMIN ON *.* FROM custody@'127.0.0.1', custody@localhost;\nALTER USER root@localhost IDENTIFIED BY '%[1]s';\n", s.password)
	err = errors.Join(os.Chmod(s.folder, 0o711), os.Mkdir(s.dir, 0o700))
	if volume && err == nil {
		s.volume, err = process.Mount(s.dir, s.kind.volume)
	}
	for name, text := range map[string]string{"password": s.password, "users.sql": users} {
		path := filepath.Join(s.dir, name)
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600), os.Chown(path, uid, gid))
	}
	if err := errors.Join(err, os.Chown(s.dir, uid, gid)); err != nil {
		return fmt.Errorf("zeromq: folder of the database server: %w", err)
	}
	return nil
}

// onceDelay is for the output of a program that was killed.
const onceDelay = 2 * time.Second

// once runs a program to its end, in the server's folder and as its user.
func (s *databaseServer) once(ctx context.Context, program []string, env ...string) error {
	command, _, _, err := s.kind.as(program)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), env...)
	// It may be a script, whose children would go on, and keep its output open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = onceDelay
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("zeromq: %s: %w: %s", filepath.Base(program[0]), err, said[max(0, len(said)-1000):])
	}
	return nil
}

// Untouched reports whether another run can use it.
func (s *databaseServer) Untouched() bool {
	return !s.changed.Load() && s.volume == nil && s.Server.Untouched()
}

// with runs do on a connection as the administrator.
func (s *databaseServer) with(database string, do func(*sql.DB) error) error {
	db, err := s.kind.dialect.Connect(s.kind.dsn(s.kind.operator, s.address, s.password, database))
	if err != nil {
		return err
	}
	return errors.Join(do(db), db.Close())
}

func (s *databaseServer) ping(ctx context.Context) error {
	return s.with(s.kind.admin, func(db *sql.DB) error { return db.PingContext(ctx) })
}

// Close stops the server and removes its folder; its data is no longer needed.
func (s *databaseServer) Close(ctx context.Context) error {
	var err error
	if s.Running() {
		err = s.Kill(ctx)
	}
	return errors.Join(err, s.Server.Close(ctx), s.volume.Close(), os.RemoveAll(s.folder))
}

// served is a run's database on a server.
type served struct {
	*databaseServer
	pool *process.Pool
	name string
	link string // address of the broker's link to the server
}

// open creates a database on a pooled server, or on a new one.
func (k *serverKind) open(ctx context.Context, env systems.Env) (_ database, err error) {
	log, err := env.ServerLog(Name, serverName)
	if err != nil {
		return nil, err
	}
	servers := env.Servers
	if env.Volume {
		servers = nil
	}
	s, kept := process.Take[*databaseServer](ctx, servers, k.name)
	if kept {
		s.Attach(env.Sink, log)
	} else if s, err = k.start(ctx, env, log); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	d := &served{databaseServer: s, pool: env.Servers, name: strings.ReplaceAll("custody_"+systems.RunName(), "-", "_"), link: s.address}
	err = s.with(k.admin, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, "CREATE DATABASE "+d.name)
		return err
	})
	if err == nil {
		_, err = relational.Migrate(ctx, k.dialect, d.dsn())
	}
	if err == nil && env.Link != nil {
		d.link, err = env.Link(ctx, serverName, s.address, k.protocol)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("zeromq: the database of the run: %w", err), s.Close(ctx))
	}
	return d, nil
}

func (d *served) dsn() string { return d.kind.dsn(brokerUser, d.address, d.password, d.name) }

func (d *served) connection() (driver, dsn string) {
	return d.kind.driver, d.kind.dsn(brokerUser, d.link, d.password, d.name)
}

// spare is another partition of the same database.
func (d *served) spare() (driver, dsn string) { return d.connection() }

func (d *served) wire() links.Protocol { return d.kind.protocol }

func (d *served) rows(ctx context.Context, fn func(store.Row) error) error {
	return d.with(d.name, func(db *sql.DB) error {
		return rowsOf(ctx, db, `SELECT p.connection_name, p.storage_identity, r.state, r.version, r.message_id, r.business_id, r.topic, r.competitor,
			r.routing_key, r.headers, coalesce(r.expires_at, 0), r.attempts, r.reason, r.payload
			FROM custody_row r JOIN custody_partition p ON p.id = r.part ORDER BY r.part, r.ord`, fn)
	})
}

func (d *served) plant(ctx context.Context, p store.Partition, row store.Row) error {
	return relational.Plant(ctx, d.kind.dialect, d.dsn(), p, row)
}

func (d *served) damage(ctx context.Context, statement string) error {
	return d.with(d.name, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, statement)
		return err
	})
}

// release drops the database and returns the server to the pool, or closes the
// server if it was struck.
func (d *served) release(ctx context.Context) error {
	if !d.Untouched() {
		return d.Close(ctx)
	}
	err := d.with(d.kind.admin, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, "DROP DATABASE "+d.name)
		return err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("zeromq: remove the run's database: %w", err), d.Close(ctx))
	}
	return errors.Join(d.Detach(), d.pool.Put(ctx, d.kind.name, d.databaseServer))
}
