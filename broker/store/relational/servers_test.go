package relational

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// server is a database server of the tests that can be killed and restarted.
type server struct {
	dialect Dialect
	dsn     func(database string) string
	args    []string
	as      *syscall.Credential

	mu  sync.Mutex
	cmd *exec.Cmd
	log bytes.Buffer
}

// kinds are the servers that can be started here.
var kinds = map[string]func(t testing.TB, dir string, port int) *server{"postgres": postgresServer, "mariadb": mariadbServer}

// needed skips the test, or fails it under CUSTODY_REQUIRE.
func needed(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CUSTODY_REQUIRE") != "" {
		t.Fatalf("%s is missing", what)
	}
	t.Skipf("%s is missing", what)
}

var servers struct {
	sync.Mutex
	running map[string]*server
	dir     string
}

// running returns the server of that kind, started once for all tests.
func running(t testing.TB, kind string) *server {
	t.Helper()
	servers.Lock()
	defer servers.Unlock()
	if s := servers.running[kind]; s != nil {
		return s
	}
	if servers.running == nil {
		dir, err := os.MkdirTemp("", "custody-servers-")
		if err != nil {
			t.Fatal(err)
		}
		servers.dir, servers.running = dir, map[string]*server{}
	}
	if err := os.Chmod(servers.dir, 0o711); err != nil { // another user's server has its folder below
		t.Fatal(err)
	}
	s := kinds[kind](t, filepath.Join(servers.dir, kind), freePort(t))
	s.start(t)
	servers.running[kind] = s
	return s
}

func stopServers() {
	for _, s := range servers.running {
		s.kill()
	}
	if servers.dir != "" {
		_ = os.RemoveAll(servers.dir)
	}
}

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func program(t testing.TB, name string, places ...string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, pattern := range places {
		if found, _ := filepath.Glob(filepath.Join(pattern, name)); len(found) > 0 {
			return slices.Max(found)
		}
	}
	needed(t, name)
	return ""
}

func postgresServer(t testing.TB, dir string, port int) *server {
	const places = "/usr/lib/postgresql/*/bin"
	initdb, postgres := program(t, "initdb", places), program(t, "postgres", places)
	s := &server{dialect: Postgres, args: []string{postgres, "-D", dir, "-k", "", "-c", "listen_addresses=127.0.0.1", "-p", strconv.Itoa(port), "-c", "max_connections=200"}}
	s.dsn = func(database string) string {
		return fmt.Sprintf("postgres://custody@127.0.0.1:%d/%s?sslmode=disable", port, database)
	}
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		who, err := user.Lookup("postgres")
		if err != nil {
			needed(t, "a user postgres")
		}
		uid, _ := strconv.Atoi(who.Uid)
		gid, _ := strconv.Atoi(who.Gid)
		s.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	s.once(t, initdb, "-D", dir, "-U", "custody", "-A", "trust", "--no-sync")
	return s
}

func mariadbServer(t testing.TB, dir string, port int) *server {
	install, daemon := program(t, "mariadb-install-db"), program(t, "mariadbd", "/usr/sbin")
	s := &server{dialect: MySQL}
	s.args = []string{daemon, "--no-defaults", "--datadir=" + dir, "--port=" + strconv.Itoa(port), "--bind-address=127.0.0.1",
		"--socket=" + filepath.Join(dir, "s"), "--skip-grant-tables", "--skip-networking=0", "--innodb-flush-log-at-trx-commit=1"}
	if os.Getuid() == 0 {
		s.args = append(s.args, "--user=root")
	}
	s.dsn = func(database string) string {
		if database == "postgres" {
			database = "mysql"
		}
		return fmt.Sprintf("custody@tcp(127.0.0.1:%d)/%s", port, database)
	}
	s.once(t, install, "--no-defaults", "--datadir="+dir, "--tmpdir="+servers.dir, "--auth-root-authentication-method=normal", "--skip-test-db")
	return s
}

func (s *server) once(t testing.TB, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = servers.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, said)
	}
}

// start starts the process and waits until it answers.
func (s *server) start(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Dir = servers.dir
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	s.cmd.WaitDelay = 2 * time.Second
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	db, err := s.dialect.open(s.dsn("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for db.PingContext(ctx) != nil {
		if ctx.Err() != nil {
			t.Fatalf("%s does not answer:\n%s", s.args[0], &s.log)
		}
		<-again.C
	}
}

// kill kills the server and all of its processes.
func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	_ = s.cmd.Wait() // it was killed
	s.cmd = nil
}

var databases struct {
	sync.Mutex
	made int
}

// database returns the DSN of a new database with the tables.
func (s *server) database(t testing.TB) string {
	t.Helper()
	dsn := s.empty(t)
	if from, err := Migrate(t.Context(), s.dialect, dsn); err != nil || from != 0 {
		t.Fatalf("migrate: from %d, %v", from, err)
	}
	return dsn
}

func (s *server) empty(t testing.TB) string {
	t.Helper()
	databases.Lock()
	databases.made++
	name := fmt.Sprintf("custody_%d", databases.made)
	databases.Unlock()
	s.exec(t, s.dsn("postgres"), "CREATE DATABASE "+name)
	t.Cleanup(func() { s.exec(t, s.dsn("postgres"), "DROP DATABASE "+name) })
	return s.dsn(name)
}

// exec runs a statement, as another program might.
func (s *server) exec(t testing.TB, dsn, statement string, args ...any) {
	t.Helper()
	s.with(t, dsn, func(db *sql.DB) error {
		_, err := db.ExecContext(context.WithoutCancel(t.Context()), s.dialect.bind(statement), args...)
		return err
	})
}

func (s *server) with(t testing.TB, dsn string, do func(*sql.DB) error) {
	t.Helper()
	db, err := s.dialect.open(dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := do(db); err != nil {
		t.Fatal(err)
	}
}
