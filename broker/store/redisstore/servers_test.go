package redisstore

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
)

// server is a Redis server of the tests that can be killed and restarted.
type server struct {
	path, dir string
	port      int
	settings  []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	log  bytes.Buffer
	used int // number of databases handed out
}

// programs are tested if they are installed.
var programs = []string{"redis-server", "valkey-server"}

var servers struct {
	sync.Mutex
	running map[string]*server
}

// running returns the server that all tests share.
func running(t testing.TB, program string) *server {
	t.Helper()
	servers.Lock()
	defer servers.Unlock()
	if s := servers.running[program]; s != nil {
		return s
	}
	s := start(t, program)
	if servers.running == nil {
		servers.running = map[string]*server{}
	}
	servers.running[program] = s
	return s
}

func stopServers() {
	for _, s := range servers.running {
		s.stop()
	}
}

// start starts a server with durable settings, which settings override.
func start(t testing.TB, program string, settings ...string) *server {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		if os.Getenv("CUSTODY_REQUIRE") != "" && program == programs[0] {
			t.Fatal(err)
		}
		t.Skipf("%s is missing", program)
	}
	dir, err := os.MkdirTemp("", "custody-redis-")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	s := &server{path: path, dir: dir, port: port, settings: settings}
	s.start(t)
	return s
}

// start starts the process and waits until it answers.
func (s *server) start(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %s\ndatabases 1000\nsave \"\"\nappendonly yes\nappendfsync always\n", s.port, s.dir)
	for i := 0; i < len(s.settings); i += 2 {
		text += s.settings[i] + " " + s.settings[i+1] + "\n"
	}
	s.cmd = exec.Command(s.path, "-")
	s.cmd.Stdin = strings.NewReader(text)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = s.dir, &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.cmd.WaitDelay = 2 * time.Second
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o, err := redis.ParseURL(s.dsn(0))
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	looks := time.NewTicker(5 * time.Millisecond)
	defer looks.Stop()
	for {
		err := c.Ping(ctx).Err()
		if err == nil || strings.HasPrefix(err.Error(), "NOAUTH") {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s does not answer:\n%s", s.path, &s.log)
		}
		<-looks.C
	}
}

func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait() // it was killed
		s.cmd = nil
	}
}

func (s *server) stop() {
	s.kill()
	_ = os.RemoveAll(s.dir)
}

func (s *server) dsn(database int) string {
	return fmt.Sprintf("redis://127.0.0.1:%d/%d", s.port, database)
}

// database returns the DSN of an empty database.
func (s *server) database(t testing.TB) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used++
	dsn := s.dsn(s.used)
	t.Cleanup(func() {
		s.with(t, dsn, func(c *redis.Client) error { return c.FlushDB(context.Background()).Err() })
	})
	return dsn
}

// with runs do on the database, as another program might.
func (s *server) with(t testing.TB, dsn string, do func(*redis.Client) error) {
	t.Helper()
	o, err := redis.ParseURL(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	defer c.Close()
	if err := do(c); err != nil {
		t.Fatal(err)
	}
}

// alter changes one value of a row; an empty one is deleted.
func (s *server) alter(t testing.TB, dsn string, p store.Partition, key, id string, change func(order, value string) string) {
	t.Helper()
	s.with(t, dsn, func(c *redis.Client) error {
		prefix := strings.TrimSuffix(keysOf(p)[partitionKey], "partition")
		order, err := c.HGet(t.Context(), prefix+"ids", id).Result()
		if err != nil {
			return err
		}
		value, err := c.HGet(t.Context(), prefix+key, order).Result()
		if err != nil {
			return err
		}
		changed := change(order, value)
		if changed == value {
			t.Fatalf("%s of %s is not altered", key, id)
		}
		if changed == "" {
			return c.HDel(t.Context(), prefix+key, order).Err()
		}
		return c.HSet(t.Context(), prefix+key, order, changed).Err()
	})
}

func decimal[T ~uint8](n T) string { return strconv.Itoa(int(n)) }
