package process_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/tasks"
)

func TestMain(m *testing.M) {
	process.RunRole(map[string]func() process.Role{"echo": echoRole, "keeper": keeperRole})
	goleak.VerifyTestMain(m)
}

// echoRole answers, notifies and reports; it can be made to hang or exit.
func echoRole() process.Role {
	var parent *process.Parent
	return process.Role{
		Start: func(_ context.Context, config json.RawMessage, p *process.Parent) error {
			switch string(config) {
			case `"broken"`:
				return errors.New("this configuration is broken")
			case `"crowded"`:
				return fmt.Errorf("%w: no free port", process.ErrUnfit)
			case `"stuck"`:
				select {}
			}
			parent = p
			fmt.Println("started with", string(config))
			return nil
		},
		Stop: func(context.Context) error {
			_, err := fmt.Fprintln(parent.Events, "stopped in order")
			return err
		},
		Methods: map[string]func(context.Context, json.RawMessage) (any, error){
			"echo":   func(_ context.Context, params json.RawMessage) (any, error) { return params, nil },
			"fail":   func(context.Context, json.RawMessage) (any, error) { return nil, errors.New("it failed") },
			"report": func(_ context.Context, p json.RawMessage) (any, error) { return fmt.Fprintf(parent.Events, "%s\n", p) },
			"notify": func(_ context.Context, p json.RawMessage) (any, error) { return nil, parent.Notify("note", p) },
			"hang": func(ctx context.Context, _ json.RawMessage) (any, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
			"ask": func(ctx context.Context, p json.RawMessage) (any, error) {
				var answer string
				err := parent.Ask(ctx, "question", p, &answer)
				return answer, err
			},
			"panic": func(ctx context.Context, _ json.RawMessage) (any, error) {
				tasks.Go(func() { panic("in the child") })
				<-ctx.Done()
				return nil, ctx.Err()
			},
			"spawn": func(context.Context, json.RawMessage) (any, error) {
				cmd := exec.Command("sleep", "600")
				err := cmd.Start()
				return cmd.Process.Pid, err
			},
			"exit": func(context.Context, json.RawMessage) (any, error) {
				os.Exit(7)
				return nil, nil
			},
		},
	}
}

type started struct {
	*process.Child
	mu     sync.Mutex
	events []string
	notes  []string
	log    bytes.Buffer
	ended  chan process.Exit
}

func start(t *testing.T) *started {
	t.Helper()
	s := &started{ended: make(chan process.Exit, 1)}
	child, err := process.StartChild(t.Context(), process.ChildOptions{Role: "echo", Config: "fine", Log: &s.log,
		Answer: func(_ context.Context, question string, params json.RawMessage) (any, error) {
			if string(params) == `"refuse"` {
				return nil, errors.New("refused")
			}
			return question + " " + string(params), nil
		},
		Events: func(r io.Reader) {
			lines := bufio.NewScanner(r)
			for lines.Scan() {
				s.mu.Lock()
				s.events = append(s.events, lines.Text())
				s.mu.Unlock()
			}
		},
		Exited: func(e process.Exit) { s.ended <- e },
	}, func(note string, value json.RawMessage) {
		s.mu.Lock()
		s.notes = append(s.notes, note+" "+string(value))
		s.mu.Unlock()
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Child = child
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := child.Kill(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestCalls(t *testing.T) {
	s := start(t)
	var got string
	if err := s.Call(t.Context(), "echo", "hello", &got); err != nil || got != "hello" {
		t.Errorf("echo gave %q, %v", got, err)
	}
	var remote *process.RemoteError
	if err := s.Call(t.Context(), "fail", nil, nil); !errors.As(err, &remote) || remote.Text != "it failed" {
		t.Errorf("fail gave %v", err)
	}
	if err := s.Call(t.Context(), "nonsense", nil, nil); err == nil || !strings.Contains(err.Error(), "no method") {
		t.Errorf("nonsense gave %v", err)
	}
	if err := s.Call(t.Context(), "notify", 1, nil); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.notes) != 1 || s.notes[0] != "note 1" {
		t.Errorf("notes %q", s.notes)
	}
}

// ByItself excludes children that were ended from outside or lacked a
// resource.
func TestStartThatFailsByItself(t *testing.T) {
	for config, byItself := range map[string]bool{"broken": true, "crowded": false, "stuck": false} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if config == "stuck" {
			ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
		}
		_, err := process.StartChild(ctx, process.ChildOptions{Role: "echo", Config: config, Log: io.Discard}, nil)
		cancel()
		var fell *process.StartError
		if !errors.As(err, &fell) || fell.ByItself() != byItself {
			t.Errorf("%s: %v, %+v", config, err, fell)
		}
	}
}

func TestKillLeavesWhatIsInThePipes(t *testing.T) {
	s := start(t)
	if err := s.Call(t.Context(), "report", "seen", nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := <-s.ended; e.Signal != "killed" || e.Code != -1 || !e.Ordered {
		t.Errorf("exit %+v", e)
	}
	if len(s.events) != 1 || s.events[0] != `"seen"` {
		t.Errorf("events %q", s.events)
	}
	if err := s.Call(t.Context(), "echo", nil, nil); !errors.Is(err, process.ErrExited) {
		t.Errorf("a call to the dead gave %v", err)
	}
}

func TestStopIsOrderly(t *testing.T) {
	s := start(t)
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := <-s.ended; e.Code != 0 || e.Signal != "" || !e.Ordered {
		t.Errorf("exit %+v", e)
	}
	if len(s.events) != 1 || s.events[0] != "stopped in order" {
		t.Errorf("events %q", s.events)
	}
	if !strings.Contains(s.log.String(), `started with "fine"`) {
		t.Errorf("log %q", s.log.String())
	}
}

func TestEndByItself(t *testing.T) {
	s := start(t)
	if err := s.Call(t.Context(), "exit", nil, nil); !errors.Is(err, process.ErrExited) {
		t.Errorf("the call gave %v", err)
	}
	if e := <-s.ended; e.Code != 7 || e.Ordered {
		t.Errorf("exit %+v", e)
	}
}

func TestPause(t *testing.T) {
	s := start(t)
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Call(ctx, "echo", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused process answered: %v", err)
	}
	if err := s.Continue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Call(t.Context(), "echo", nil, nil); err != nil {
		t.Error(err)
	}
}

func TestCancelledCall(t *testing.T) {
	s := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Call(ctx, "hang", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("it gave %v", err)
	}
}

func TestStartThatFails(t *testing.T) {
	var log bytes.Buffer
	_, err := process.StartChild(t.Context(), process.ChildOptions{Role: "echo", Config: "broken", Log: &log}, nil)
	if err == nil || !strings.Contains(err.Error(), "this configuration is broken") {
		t.Errorf("starting gave %v", err)
	}
	if _, err := process.StartChild(t.Context(), process.ChildOptions{Role: "none", Log: &log}, nil); err == nil {
		t.Error("a role that does not exist was started")
	}
}

func TestChildAsksItsParent(t *testing.T) {
	s := start(t)
	defer s.Kill(t.Context())
	var answer string
	if err := s.Call(t.Context(), "ask", 7, &answer); err != nil || answer != "question 7" {
		t.Errorf("answered %q, %v", answer, err)
	}
	if err := s.Call(t.Context(), "ask", "refuse", nil); err == nil || err.Error() != "refused" {
		t.Errorf("a refusal came as %v", err)
	}
}

// The request of a child that is killed ends with it.
func TestRequestOfAKilledChildEnds(t *testing.T) {
	asked := make(chan struct{})
	ended := make(chan error, 1)
	child, err := process.StartChild(t.Context(), process.ChildOptions{Role: "echo", Config: "fine", Log: io.Discard,
		Answer: func(ctx context.Context, _ string, _ json.RawMessage) (any, error) {
			close(asked)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil, nil
		}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var calling tasks.Group
	calling.Go(func() { _ = child.Call(t.Context(), "ask", 1, nil) }) // it dies meanwhile
	<-asked
	if err := child.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	calling.Wait()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

// A panic of the harness's code in a child is reported to the parent, and never
// ends with Go's exit code.
func TestPanicInAChild(t *testing.T) {
	told := make(chan error, 1)
	defer tasks.OnPanic(func(err error) { told <- err })()
	s := start(t)
	if err := s.Call(t.Context(), "panic", nil, nil); !errors.Is(err, process.ErrExited) {
		t.Errorf("the call ended with %v", err)
	}
	if err := <-told; !strings.Contains(err.Error(), "in the child") {
		t.Errorf("told %v", err)
	}
	if x := <-s.ended; x.Code != tasks.ExitUnmeasured || x.Ordered {
		t.Errorf("it ended as %+v", x)
	}
}

// Striking a process that exited by itself fails, and the exit does not count
// as ordered.
func TestStrikeWhatHasEnded(t *testing.T) {
	s := start(t)
	if err := s.Call(t.Context(), "exit", nil, nil); !errors.Is(err, process.ErrExited) {
		t.Fatal(err)
	}
	<-s.ended
	<-s.Exited()
	for name, order := range map[string]func(process.Process, context.Context) error{
		"kill": process.Process.Kill, "stop": process.Process.Stop, "pause": process.Process.Pause, "continue": process.Process.Continue,
	} {
		if err := process.Strike(t.Context(), s.Child, order); !errors.Is(err, process.ErrNotRunning) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if x := s.Exit(); x.Ordered || x.Code != 7 {
		t.Errorf("it ended as %+v", x)
	}
	if err := process.Strike(t.Context(), nil, process.Process.Kill); !errors.Is(err, process.ErrNotRunning) {
		t.Errorf("nobody: %v", err)
	}
}

// What a child has started is struck with it: a consumer's adapter does not go on
// alone.
func TestAChildIsStruckWithItsFamily(t *testing.T) {
	c, err := process.StartChild(t.Context(), process.ChildOptions{Role: "echo", Family: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := c.Call(t.Context(), "spawn", nil, &pid); err != nil {
		t.Fatal(err)
	}
	state := func() string {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return "gone"
		}
		return string(stat[bytes.LastIndexByte(stat, ')')+2:][:1])
	}
	if err := c.Pause(t.Context()); err != nil || state() != "T" {
		t.Errorf("paused: %v, and what it has started is %s", err, state())
	}
	if err := c.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if s := state(); s != "gone" && s != "Z" && s != "X" {
		t.Errorf("killed, and what it has started is %s", s)
	}
}
