// Package servertest runs the database servers with which stores are tested.
package servertest

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Server is a database server of a test, which can be killed and started again.
// Safe for concurrent use.
type Server struct {
	Command []string
	Input   string // its standard input
	Dir     string // its folder: see Folder
	As      *syscall.Credential
	Answers func(ctx context.Context) error // nil when it serves

	mu  sync.Mutex
	cmd *exec.Cmd
	log bytes.Buffer
}

// Start starts the process and waits until it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmd = exec.Command(s.Command[0], s.Command[1:]...)
	s.cmd.Stdin, s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = strings.NewReader(s.Input), s.Dir, &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.As, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	s.cmd.WaitDelay = 2 * time.Second
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for s.Answers(ctx) != nil {
		if ctx.Err() != nil {
			t.Fatalf("%s does not answer:\n%s", s.Command[0], &s.log)
		}
		<-again.C
	}
}

// Kill kills the server and all of its processes.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	_ = s.cmd.Wait() // it was killed
	s.cmd = nil
}

// Stop kills the server and removes its folder.
func (s *Server) Stop() {
	s.Kill()
	_ = os.RemoveAll(s.Dir)
}

// Once runs a program in the server's folder and as its user.
func (s *Server) Once(t testing.TB, command ...string) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = s.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.As}
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command[0], err, said)
	}
}

// Folder makes a folder that belongs to the server's user.
func Folder(t testing.TB, as *syscall.Credential) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "custody-server-")
	if err == nil && as != nil {
		err = os.Chown(dir, int(as.Uid), int(as.Gid))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// FreePort returns a port on which nobody listens.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Program finds a program in PATH, or in places, which are patterns of folders. It
// is Missing if it is not there.
func Program(t testing.TB, name string, places ...string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, pattern := range places {
		if found, _ := filepath.Glob(filepath.Join(pattern, name)); len(found) > 0 {
			return slices.Max(found)
		}
	}
	Missing(t, name)
	return ""
}

// Missing skips the test, or fails it under CUSTODY_REQUIRE.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CUSTODY_REQUIRE") != "" {
		t.Fatalf("%s is missing", what)
	}
	t.Skipf("%s is missing", what)
}

// Shared are the servers that all tests of a package share, by name.
type Shared[S interface{ Stop() }] struct {
	mu      sync.Mutex
	running map[string]S
}

// Get gives a server, which start starts the first time.
func (s *Shared[S]) Get(name string, start func() S) S {
	s.mu.Lock()
	defer s.mu.Unlock()
	if server, there := s.running[name]; there {
		return server
	}
	if s.running == nil {
		s.running = map[string]S{}
	}
	server := start()
	s.running[name] = server
	return server
}

// Stop stops them all.
func (s *Shared[S]) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, server := range s.running {
		server.Stop()
	}
}
