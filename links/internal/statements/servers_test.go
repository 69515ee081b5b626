package statements_test

import (
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

	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker/store/relational"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/mysql"
	"github.com/custodymq/custody/links/postgres"
)

// server is a database server shared by all tests, with the store's tables.
type server struct {
	dialect  relational.Dialect
	protocol links.Protocol
	capture  string
	dsn      func(address string) string
	start    func(t testing.TB, dir, port string) *exec.Cmd

	address string
	cmd     *exec.Cmd
}

const password = "custody"

var servers = map[string]*server{
	"postgres": {
		dialect: relational.Postgres, protocol: postgres.Protocol{}, capture: "../../postgres/testdata/store.capture",
		dsn: func(address string) string {
			return "postgres://custody:" + password + "@" + address + "/postgres?sslmode=disable"
		},
		start: func(t testing.TB, dir, port string) *exec.Cmd {
			const places = "/usr/lib/postgresql/*/bin"
			as := owner(t, dir)
			file := filepath.Join(dir, "password")
			if err := os.WriteFile(file, []byte(password), 0o644); err != nil {
				t.Fatal(err)
			}
			data := filepath.Join(dir, "data")
			once(t, as, dir, program(t, "initdb", places), "-D", data, "-U", "custody", "-A", "scram-sha-256", "--pwfile", file, "--no-sync")
			return command(as, dir, program(t, "postgres", places), "-D", data, "-k", "", "-c", "listen_addresses=127.0.0.1", "-p", port)
		},
	},
	"mysql": {
		dialect: relational.MySQL, protocol: mysql.Protocol{}, capture: "../../mysql/testdata/store.capture",
		dsn: func(address string) string { return "custody:" + password + "@tcp(" + address + ")/mysql" },
		start: func(t testing.TB, dir, port string) *exec.Cmd {
			data, users := "--datadir="+filepath.Join(dir, "data"), filepath.Join(dir, "users.sql")
			grant := "CREATE USER custody@'%' IDENTIFIED BY '" + password + "';\nGRANT ALL ON *.* TO custody@'%';\n"
			if err := os.WriteFile(users, []byte(grant), 0o600); err != nil {
				t.Fatal(err)
			}
			once(t, nil, dir, program(t, "mariadb-install-db"), "--no-defaults", data, "--tmpdir="+dir, "--auth-root-authentication-method=normal", "--skip-test-db")
			cmd := command(nil, dir, program(t, "mariadbd", "/usr/sbin"), "--no-defaults", data, "--tmpdir="+dir, "--port="+port,
				"--bind-address=127.0.0.1", "--socket="+filepath.Join(dir, "socket"), "--init-file="+users, "--innodb-flush-log-at-trx-commit=1")
			if os.Getuid() == 0 {
				cmd.Args = append(cmd.Args, "--user=root")
			}
			return cmd
		},
	},
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, s := range servers {
		if s.cmd != nil {
			_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
			_ = s.cmd.Wait() // it was killed
			_ = os.RemoveAll(s.cmd.Dir)
		}
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var starting sync.Mutex

// run starts the server on first use and creates the store's tables.
func (s *server) run(t testing.TB) {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	if s.cmd != nil {
		return
	}
	dir, err := os.MkdirTemp("", "custody-")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(s.address)
	cmd := s.start(t, dir, port)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.cmd = cmd
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s.with(t, func(db *sql.DB) error {
		return patiently(ctx, func() error { return db.PingContext(ctx) })
	})
	if _, err := relational.Migrate(ctx, s.dialect, s.dsn(s.address)); err != nil {
		t.Fatal(err)
	}
}

// with accesses the database directly, bypassing store and links.
func (s *server) with(t testing.TB, do func(*sql.DB) error) {
	t.Helper()
	db, err := s.dialect.Connect(s.dsn(s.address))
	if err == nil {
		defer db.Close()
		err = do(db)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// patiently retries until try succeeds.
func patiently(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func program(t testing.TB, name string, places ...string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, place := range places {
		if found, _ := filepath.Glob(filepath.Join(place, name)); len(found) > 0 {
			return slices.Max(found)
		}
	}
	if os.Getenv("CUSTODY_REQUIRE") != "" {
		t.Fatalf("%s is missing", name)
	}
	t.Skipf("%s is missing", name)
	return ""
}

// owner gives the folder to a user other than root, as which PostgreSQL
// refuses to run.
func owner(t testing.TB, dir string) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	who, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(who.Uid)
	gid, _ := strconv.Atoi(who.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func command(as *syscall.Credential, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

func once(t testing.TB, as *syscall.Credential, dir, name string, args ...string) {
	t.Helper()
	if said, err := command(as, dir, name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, said)
	}
}
