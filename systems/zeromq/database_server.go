package zeromq

import (
	"context"
	"crypto/rand"
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
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// serverKind is a kind of database server, as packaged by Debian.
type serverKind struct {
	name     string
	driver   string // name of the driver
	protocol links.Protocol
	program  string         // the server
	places   string         // where it is, if not in PATH
	packaged string         // the package that brings it
	user     string         // as whom it has to run where this process is root; empty: as root
	end      syscall.Signal // of an orderly end that waits for no client; 0: SIGTERM
	volume   int64          // bytes of a file system of its own
	without  map[systems.Need]string

	files func(password string) map[string]string // in the server's folder before any program runs there
	// create returns the command that creates the data, run in the server's folder;
	// nil: the server does so itself.
	create func(bin, dir string) []string
	args   func(dir, port string) []string
	dsn    func(user, address, password, database string) string
	waits  string // is added to a DSN for commits that wait for a standby, if it is the broker who asks for that

	engine
	replication replication
}

// engine is how a server of a kind is spoken to, past the broker.
type engine interface {
	ping(ctx context.Context, s *databaseServer) error
	// prepare makes the run's database, with its tables; remove ends it.
	prepare(ctx context.Context, d *served) error
	remove(ctx context.Context, d *served) error
	rows(ctx context.Context, d *served, fn func(store.Row) error) error
	plant(ctx context.Context, d *served, p store.Partition, row store.Row) error
	damage(ctx context.Context, d *served, statement string) error
	// occupy takes a connection until it is closed.
	occupy(ctx context.Context, s *databaseServer) (io.Closer, error)
	crowded(err error) bool // by which a server refuses one more
	// refuse makes the server take no writes of the broker's, and sees it refuse one;
	// permit ends that.
	refuse(ctx context.Context, d *served) error
	permit(ctx context.Context, d *served) error
}

// The broker's user, and how many connections a server gives.
const (
	brokerUser     = "custody"
	maxConnections = 24
)

// serverName is the actor of the server's events, and the name of its log.
const serverName = "store"

func (k *serverKind) title() string { return k.name }

func (k *serverKind) lacks() map[systems.Need]string { return k.without }

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
	options  []string        // of its next start
	volume   *process.Volume // at dir, or nil
	changed  atomic.Bool     // its settings were changed
}

var _ process.Kept = (*databaseServer)(nil)

// newServer prepares a server that is not started yet.
func (k *serverKind) newServer(ctx context.Context, env systems.Env, actor, password string, volume bool) (*databaseServer, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	log, err := env.ServerLog(Name, actor)
	if err != nil {
		return nil, errors.Join(err, port.Close())
	}
	s := &databaseServer{kind: k, address: port.Address, port: port.Number(), password: password}
	s.Server = process.NewServer(actor, env.Sink, log, s.launch, port)
	if s.folder, err = process.Folder(); err == nil {
		err = s.makeFolder(volume)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// start starts a server without data.
func (k *serverKind) start(ctx context.Context, env systems.Env, options []string) (*databaseServer, error) {
	s, err := k.newServer(ctx, env, serverName, rand.Text(), env.Volume)
	if err != nil {
		return nil, err
	}
	s.options = options
	if err = s.createData(ctx); err == nil {
		err = s.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func (s *databaseServer) createData(ctx context.Context) error {
	if s.kind.create == nil {
		return nil
	}
	bin, err := s.kind.bin()
	if err != nil {
		return err
	}
	return s.once(ctx, s.kind.create(bin, s.dir))
}

// launch starts the server's program on what is in its folder.
func (s *databaseServer) launch(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
	k := s.kind
	bin, err := k.bin()
	if err != nil {
		return nil, nil, err
	}
	command, _, _, err := k.as(slices.Concat([]string{filepath.Join(bin, k.program)}, k.args(s.dir, s.port), s.options))
	if err != nil {
		return nil, nil, err
	}
	ready := func(ctx context.Context) error { return k.ping(ctx, s) }
	p, err := process.StartProgram(ctx, process.ProgramOptions{Path: command[0], Args: command[1:], Dir: s.dir, Log: log, Exited: exited, Ready: ready, Family: true, End: k.end})
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
	s.dir = filepath.Join(s.folder, "server")
	err = errors.Join(os.Chmod(s.folder, 0o711), os.Mkdir(s.dir, 0o700))
	if volume && err == nil {
		s.volume, err = process.Mount(s.dir, s.kind.volume)
	}
	if err := errors.Join(err, s.write(s.dir, s.kind.files(s.password)), os.Chown(s.dir, uid, gid)); err != nil {
		return fmt.Errorf("zeromq: folder of the database server: %w", err)
	}
	return nil
}

// write puts files of the server's user in a folder.
func (s *databaseServer) write(folder string, files map[string]string) error {
	_, uid, gid, err := s.kind.as(nil)
	for name, text := range files {
		path := filepath.Join(folder, name)
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600), os.Chown(path, uid, gid))
	}
	return err
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
	pool  *process.Pool
	name  string
	link  string      // address of the broker's link to the server
	waits atomic.Bool // the broker's commits wait for a standby, at its next start
}

func (k *serverKind) open(ctx context.Context, env systems.Env) (database, error) {
	d, err := k.serve(ctx, env)
	if err != nil {
		return nil, err // no database, which a nil *served would be
	}
	return d, nil
}

// serve creates a database on a pooled server, or on a new one.
func (k *serverKind) serve(ctx context.Context, env systems.Env, options ...string) (_ *served, err error) {
	servers := env.Servers
	if env.Volume {
		servers = nil
	}
	s, kept := process.Take[*databaseServer](ctx, servers, k.name)
	if kept {
		log, err := env.ServerLog(Name, serverName)
		if err != nil {
			return nil, errors.Join(err, s.Close(ctx))
		}
		s.Attach(env.Sink, log)
	} else if s, err = k.start(ctx, env, options); err != nil {
		return nil, err
	}
	d := &served{databaseServer: s, pool: env.Servers, name: strings.ReplaceAll("custody_"+systems.RunName(), "-", "_"), link: s.address}
	err = k.prepare(ctx, d)
	if err == nil && env.Link != nil {
		d.link, err = env.Link(ctx, serverName, s.address, k.protocol)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("zeromq: the database of the run: %w", err), s.Close(ctx))
	}
	return d, nil
}

// dsn is that of the broker's user, past the link.
func (d *served) dsn() string { return d.kind.dsn(brokerUser, d.address, d.password, d.name) }

func (d *served) connection() (driver, dsn string) {
	dsn = d.kind.dsn(brokerUser, d.link, d.password, d.name)
	if d.waits.Load() {
		dsn += d.kind.waits
	}
	return d.kind.driver, dsn
}

// spare is another partition of the same database.
func (d *served) spare() (driver, dsn string) { return d.connection() }

func (d *served) wire() links.Protocol { return d.kind.protocol }

func (d *served) rows(ctx context.Context, fn func(store.Row) error) error {
	return d.kind.rows(ctx, d, fn)
}

func (d *served) plant(ctx context.Context, p store.Partition, row store.Row) error {
	return d.kind.plant(ctx, d, p, row)
}

func (d *served) damage(ctx context.Context, statement string) error {
	return d.kind.damage(ctx, d, statement)
}

// release removes the database and returns the server to the pool, or closes the
// server if it was struck.
func (d *served) release(ctx context.Context) error {
	if !d.Untouched() {
		return d.Close(ctx)
	}
	if err := d.kind.remove(ctx, d); err != nil {
		return errors.Join(fmt.Errorf("zeromq: remove the run's database: %w", err), d.Close(ctx))
	}
	return errors.Join(d.Detach(), d.pool.Put(ctx, d.kind.name, d.databaseServer))
}
