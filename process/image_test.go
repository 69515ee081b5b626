package process_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems/systemtest"
)

const redisImage = "custody/redis:trixie"

// needsImage skips a test without the image, or fails it if everything is
// required.
func needsImage(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	systemtest.Needs(t, process.ImageExists(ctx, redisImage))
	return ctx
}

// docker runs the command line client, independently of the code under test.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// containersOf returns the containers that a process started.
func containersOf(t *testing.T, pid int) []string {
	t.Helper()
	var ids []string
	for line := range strings.Lines(docker(t, "ps", "--all", "--filter", "label=org.custodymq.custody", "--format", `{{.ID}} {{.Label "org.custodymq.harness"}}`)) {
		if id, mark, _ := strings.Cut(line, " "); strings.Contains(mark, fmt.Sprintf(`"pid":%d,`, pid)) {
			ids = append(ids, id)
		}
	}
	return ids
}

func nothingLeft(t *testing.T) {
	t.Helper()
	if left := containersOf(t, os.Getpid()); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// redis is a server in a container, with its data in a directory of the host.
type redis struct {
	address string
	start   process.StartFunc
}

func newRedis(t *testing.T) redis {
	t.Helper()
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Close() })
	dir := t.TempDir()
	file := filepath.Join(dir, "redis.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, "bind 127.0.0.1\nport %s\ndir %s\nappendonly yes\nappendfsync always\n", port.Number(), dir), 0o600); err != nil {
		t.Fatal(err)
	}
	r := redis{address: port.Address}
	r.start = func(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
		p, err := process.StartProgram(ctx, process.ProgramOptions{
			Image: redisImage, Path: "redis-server", Args: []string{file}, Dir: dir, Log: log, Exited: exited,
			Ready: func(ctx context.Context) error { return r.ask(ctx, "PING", "+PONG") },
		})
		return p, nil, err
	}
	return r
}

// ask sends one command and compares the last line of the reply.
func (r redis) ask(ctx context.Context, command, want string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return err
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "$") { // a length, then the value
			break
		}
	}
	if err := lines.Err(); err != nil || lines.Text() != want {
		return fmt.Errorf("%s gave %q, want %q: %w", command, lines.Text(), want, err)
	}
	return nil
}

func TestContainerLivesAsAChildDoes(t *testing.T) {
	ctx, r, h, log := needsImage(t), newRedis(t), &history{}, &logFile{}
	s := process.NewServer("broker", h, log, r.start)
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must("start", s.Restart(ctx))
	defer s.Close(context.WithoutCancel(ctx))
	must("set", r.ask(ctx, "SET order-1 paid", "+OK"))
	must("kill", s.Kill(ctx))
	if s.Running() || r.ask(ctx, "PING", "+PONG") == nil {
		t.Error("it answers after a kill")
	}
	must("start again", s.Restart(ctx))
	must("get", r.ask(ctx, "GET order-1", "paid"))

	must("pause", s.Pause(ctx))
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := r.ask(short, "PING", "+PONG"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a paused server gave %v, want no answer in time", err)
	}
	must("continue", s.Continue(ctx))
	must("ping", r.ask(ctx, "PING", "+PONG"))

	must("pause", s.Pause(ctx))
	must("kill while it is paused", s.Kill(ctx))
	must("start a third time", s.Restart(ctx))
	must("pause", s.Pause(ctx))
	must("shut down while it is paused", s.Shutdown(ctx))
	if want := strings.Repeat("process-started process-exited ", 3); h.String() != want {
		t.Errorf("recorded %q, want %q", h, want)
	}
	must("close", s.Close(ctx))
	if got := strings.Count(log.String(), "Ready to accept connections"); got != 3 || !strings.Contains(log.String(), "bye bye") {
		t.Errorf("the log tells of %d starts, want 3, and of the end:\n%s", got, log)
	}
	nothingLeft(t)
}

func TestContainerThatDoesNotObey(t *testing.T) {
	ctx := needsImage(t)
	p, err := process.StartProgram(ctx, process.ProgramOptions{Image: redisImage, Path: "sleep", Args: []string{"100"}, Ready: atOnce})
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // PID 1 of a container ignores SIGTERM
	defer cancel()
	if err := p.Stop(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop gave %v, want that it had no orderly end", err)
	}
	if e := p.Exit(); e.Signal != "killed" || e.Code != -1 || !e.Ordered {
		t.Errorf("exit %+v", e)
	}
	if err := p.Kill(ctx); err != nil {
		t.Errorf("to kill the dead gave %v", err)
	}
	nothingLeft(t)
}

func TestContainerTellsOfADeathThatNobodyOrdered(t *testing.T) {
	ctx, r := needsImage(t), newRedis(t)
	ended := make(chan process.Exit, 1)
	p, _, err := r.start(ctx, io.Discard, func(e process.Exit) { ended <- e })
	if err != nil {
		t.Fatal(err)
	}
	mine := containersOf(t, os.Getpid())
	if len(mine) != 1 {
		t.Fatalf("containers %q, want one", mine)
	}
	docker(t, "kill", mine[0])
	select {
	case e := <-ended:
		if e.Signal != "killed" || e.Code != -1 || e.Ordered {
			t.Errorf("exit %+v", e)
		}
	case <-ctx.Done():
		t.Fatal("its end was not told")
	}
	<-p.Exited()
	nothingLeft(t)
}

func TestContainerThatIsNotReady(t *testing.T) {
	needsImage(t)
	for _, c := range []struct {
		name    string
		options process.ProgramOptions
		want    string
	}{
		{"ends first", process.ProgramOptions{Image: redisImage, Path: "sh", Args: []string{"-c", "echo the port is taken >&2; exit 7"}}, "exit code 7 ); its log ends: the port is taken"},
		{"never answers", process.ProgramOptions{Image: redisImage, Path: "sleep", Args: []string{"100"}}, "nobody answers"},
		{"no such program", process.ProgramOptions{Image: redisImage, Path: "no-such-program"}, "no-such-program"},
		{"no such folder", process.ProgramOptions{Image: redisImage, Path: "true", Dir: "/no/such/folder"}, "/no/such/folder"},
		{"no such image of ours", process.ProgramOptions{Image: "custody/none:trixie", Path: "true"}, "no image custody/none:trixie on this machine; get it with: make images"},
		{"no such image", process.ProgramOptions{Image: "none:1", Path: "true"}, "docker pull none:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			c.options.Ready = never
			_, err := process.StartProgram(ctx, c.options)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
			nothingLeft(t)
		})
	}
}

func TestCancelledStartLeavesNoContainer(t *testing.T) {
	needsImage(t)
	for after := time.Duration(0); after <= 500*time.Millisecond; after += 100 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_, err := process.StartProgram(ctx, process.ProgramOptions{Image: redisImage, Path: "sleep", Args: []string{"100"}, Ready: never})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cancelled after %s: %v", after, err)
		}
	}
	nothingLeft(t)
}

func TestImageVersion(t *testing.T) {
	ctx := needsImage(t)
	for range 2 {
		v, err := process.ImageVersion(ctx, redisImage, "redis-server", "--version")
		if err != nil || !strings.HasPrefix(v, "Redis server v=") {
			t.Errorf("version %q, %v", v, err)
		}
	}
	if _, err := process.ImageVersion(ctx, redisImage, "redis-server", "--no-such-flag"); err == nil {
		t.Error("a failure was taken for a version")
	}
	nothingLeft(t)
}

// keeperRole is a harness that owns a container.
func keeperRole() process.Role {
	return process.Role{
		Start: func(ctx context.Context, _ json.RawMessage, _ *process.Parent) error {
			_, err := process.StartProgram(ctx, process.ProgramOptions{Image: redisImage, Path: "sleep", Args: []string{"100"}, Ready: atOnce})
			return err
		},
		Stop: func(context.Context) error { return nil },
	}
}

func TestLeftoversAreThoseOfADeadHarness(t *testing.T) {
	ctx := needsImage(t)
	harness, err := process.StartChild(ctx, process.ChildOptions{Role: "keeper", Log: io.Discard}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kept := containersOf(t, harness.PID())
	if len(kept) != 1 {
		t.Fatalf("containers of the harness: %q, want one", kept)
	}
	found := func() *process.Leftover {
		t.Helper()
		list, err := process.Containers(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list {
			if strings.Contains(l.Name, kept[0]) && strings.Contains(l.Name, redisImage) {
				return &l
			}
		}
		return nil
	}
	if found() != nil {
		t.Error("the container of a harness that lives is called left behind")
	}
	if err := harness.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	left := found()
	if left == nil || left.State != process.Dead {
		t.Fatalf("the container of a dead harness: %+v", left)
	}
	if err := left.Remove(ctx); err != nil || found() != nil {
		t.Errorf("it was not removed: %v", err)
	}
	if left := containersOf(t, harness.PID()); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}
