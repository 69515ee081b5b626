package business

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
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

func init() {
	stores["postgres"] = func(t *testing.T, gate Gate) Store {
		usePostgres(t)
		d, err := CreatePostgres(t.Context(), gate)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// server is the one server of this test binary.
var server struct {
	once    sync.Once
	missing error // why there is none
	cmd     *exec.Cmd
	folder  string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if server.cmd != nil {
		_ = server.cmd.Process.Signal(syscall.SIGINT)
		_ = server.cmd.Wait()
	}
	if server.folder != "" {
		_ = os.RemoveAll(server.folder)
	}
	os.Exit(code)
}

// usePostgres makes the environment name a server: the one that it names already,
// or one started here.
func usePostgres(t *testing.T) {
	t.Helper()
	server.once.Do(func() {
		if os.Getenv("PGHOST") == "" {
			server.missing = startPostgres()
		}
	})
	switch {
	case server.missing == nil:
	case os.Getenv("CUSTODY_REQUIRE") == "1":
		t.Fatal(server.missing)
	default:
		t.Skip(server.missing)
	}
}

func startPostgres() error {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return fmt.Errorf("no PostgreSQL here: apt-get install postgresql")
	}
	bin := filepath.Dir(found[len(found)-1])
	if server.folder, err = os.MkdirTemp("", "custody-business-"); err != nil {
		return err
	}
	attributes := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if os.Getuid() == 0 { // it refuses to run as root
		who, err := user.Lookup("postgres")
		if err != nil {
			return err
		}
		uid, err := strconv.Atoi(who.Uid)
		if err != nil {
			return err
		}
		gid, err := strconv.Atoi(who.Gid)
		if err != nil {
			return err
		}
		if err := os.Chown(server.folder, uid, gid); err != nil {
			return err
		}
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(server.folder, "data")
	create := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "custody", "-A", "trust", "--no-sync", "-E", "UTF8")
	create.SysProcAttr, create.Dir = attributes, server.folder
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", "", "-c", "listen_addresses=127.0.0.1", "-p", port)
	cmd.SysProcAttr, cmd.Dir, cmd.Stderr = attributes, server.folder, &log
	if err := cmd.Start(); err != nil {
		return err
	}
	server.cmd = cmd
	for name, value := range map[string]string{"PGHOST": "127.0.0.1", "PGPORT": port, "PGUSER": "custody", "PGDATABASE": "postgres"} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	db, err := postgres.open("")
	if err != nil {
		return err
	}
	defer db.Close()
	return untilReady(db)
}

func untilReady(db *sql.DB) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the server is not ready: %w", err)
		}
	}
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// Two relays of one server claim the same rows at the same moment.
func TestConcurrentClaimsOnAServer(t *testing.T) { testConcurrentClaims(t, "postgres") }

// On PostgreSQL transactions run beside each other, which SQLite never does.
func TestConcurrentInstancesOnAServer(t *testing.T) { testTwoInstances(t, "postgres") }
