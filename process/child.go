// Package process starts, kills, pauses and stops the parts of a run: child
// processes of this binary, installed servers, containers.
package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/custodymq/custody/tasks"
)

// Child is this binary re-executed in another role: a process that can be
// killed for real. Three inherited pipes connect it to its parent: commands in
// (descriptor 3), replies out (4), events out (5). What is in a pipe survives
// the child's SIGKILL.
//
// Its methods are safe for concurrent use.
type Child struct {
	*process
	commands *os.File

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan reply
	broken  error
	asked   tasks.Group
}

// ChildOptions configures one child.
type ChildOptions struct {
	Executable string    // empty for this binary
	Role       string    // see Role
	Config     any       // JSON, sent on the command pipe, never in the environment: it may hold a token
	Env        []string  // added to the parent's
	Log        io.Writer // standard output and error
	// Events reads the event pipe, in a goroutine of its own, until the pipe
	// ends.
	Events func(io.Reader)
	// Answer serves the child's requests (see Parent.Ask), in goroutines of its
	// own. ctx ends with the child, and Answer returns before Exited.
	Answer func(ctx context.Context, question string, params json.RawMessage) (any, error)
	// Family strikes the processes that the child has started together with it.
	Family bool
	// Exited is called once, after the last event has been read.
	Exited func(Exit)
}

// RoleVariable is the environment variable with a re-executed binary's role.
const RoleVariable = "CUSTODY_CHILD_ROLE"

// maxLine bounds one line of a command or reply.
const maxLine = 16 << 20

// ErrExited: the child exited, so the call may or may not have been performed.
var ErrExited = errors.New("process: the child process has exited")

type call struct {
	ID     uint64          `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

type reply struct {
	ID     uint64          `json:"id"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
	Note   string          `json:"note,omitempty"` // notification's name; Result is its value
	Ask    string          `json:"ask,omitempty"`  // request to the parent; Result holds its parameters, ID identifies the answer
}

// panicNote reports a panic of the harness's code in a child; answerMethod
// carries the answer to a request.
const (
	panicNote    = "panic"
	answerMethod = "answer"
)

// StartChild starts the child and returns once it is ready.
func StartChild(ctx context.Context, o ChildOptions, notify func(note string, value json.RawMessage)) (*Child, error) {
	exe := o.Executable
	if exe == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("process: locate this binary to run it as %s: %w", o.Role, err)
		}
		exe = self
	}
	var ends [6]*os.File // read, write of commands, replies, events
	closeAll := func() {
		for _, f := range ends {
			if f != nil {
				f.Close()
			}
		}
	}
	for i := 0; i < len(ends); i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll()
			return nil, fmt.Errorf("process: pipe for %s: %w", o.Role, err)
		}
		ends[i], ends[i+1] = r, w
	}
	cmd := exec.Command(exe)
	cmd.Env = append(append(os.Environ(), o.Env...), RoleVariable+"="+o.Role)
	cmd.ExtraFiles = []*os.File{ends[0], ends[3], ends[5]}
	cmd.Stdout, cmd.Stderr = o.Log, o.Log
	c := &Child{commands: ends[1], waiting: make(map[uint64]chan reply)}
	eventsDone, repliesDone := make(chan struct{}), make(chan struct{})
	started, err := startProcess(cmd, func(e Exit) {
		<-eventsDone
		<-repliesDone
		c.asked.Wait()
		c.commands.Close()
		if o.Exited != nil {
			o.Exited(e)
		}
	}, o.signals())
	if err != nil {
		closeAll()
		return nil, fmt.Errorf("process: start %s as %s: %w", exe, o.Role, err)
	}
	c.process = started
	for _, i := range []int{0, 3, 5} {
		ends[i].Close()
	}
	tasks.Go(func() {
		defer close(eventsDone)
		defer ends[4].Close()
		if o.Events != nil {
			o.Events(ends[4])
		}
		_, _ = io.Copy(io.Discard, ends[4]) // drain the pipe, so that the child never blocks on it
	})
	tasks.Go(func() {
		defer close(repliesDone)
		c.readReplies(ends[2], notify, o.Answer)
	})
	if err := c.Call(ctx, "start", o.Config, nil); err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if ctx.Err() == nil { // a child that cannot start says so, and exits on its own
			select {
			case <-c.Exited():
			case <-stop.Done():
			}
		}
		_ = c.Kill(stop)
		err = fmt.Errorf("process: %s did not become ready: %w", o.Role, err)
		if running(c) {
			return nil, err
		}
		return nil, &StartError{Err: err, Exit: c.Exit()}
	}
	return c, nil
}

func (o ChildOptions) signals() func(*os.Process, signalFunc) signalFunc {
	if o.Family {
		return ofFamily
	}
	return nil
}

// StartError is the error of a child that exited without becoming ready.
type StartError struct {
	Err  error
	Exit Exit
}

func (e *StartError) Error() string { return e.Err.Error() }

func (e *StartError) Unwrap() error { return e.Err }

// ByItself reports whether the child said that it cannot start (exit code 1)
// or crashed (Go's 2), rather than being ended from outside or lacking a
// resource of the machine.
func (e *StartError) ByItself() bool {
	return !e.Exit.Ordered && (e.Exit.Code == 1 || e.Exit.Code == 2)
}

func (c *Child) readReplies(r *os.File, notify func(string, json.RawMessage), asked func(context.Context, string, json.RawMessage) (any, error)) {
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	alive, dead := context.WithCancel(context.Background())
	defer dead()
	var err error
	for lines.Scan() {
		var rep reply
		if err = json.Unmarshal(lines.Bytes(), &rep); err != nil {
			err = fmt.Errorf("process: invalid JSON in a reply: %w", err)
			break
		}
		if rep.Ask != "" {
			c.asked.Go(func() { c.answer(alive, rep, asked) })
			continue
		}
		if rep.Note == panicNote {
			tasks.Report(fmt.Errorf("process: in %s: %s", c.name, rep.Error))
			continue
		}
		if rep.Note != "" {
			if notify != nil {
				notify(rep.Note, rep.Result)
			}
			continue
		}
		c.mu.Lock()
		ch := c.waiting[rep.ID]
		delete(c.waiting, rep.ID)
		c.mu.Unlock()
		if ch != nil {
			ch <- rep
		}
	}
	if err == nil {
		err = ErrExited
	}
	c.mu.Lock()
	c.broken = err
	for id, ch := range c.waiting {
		delete(c.waiting, id)
		close(ch)
	}
	c.mu.Unlock()
	_, _ = io.Copy(io.Discard, r)
}

// askTimeout bounds the answer to a child's request.
const askTimeout = 30 * time.Second

func (c *Child) answer(alive context.Context, q reply, asked func(context.Context, string, json.RawMessage) (any, error)) {
	ctx, cancel := context.WithTimeout(alive, askTimeout)
	defer cancel()
	a := reply{ID: q.ID}
	if asked == nil {
		a.Error = fmt.Sprintf("process: no handler for request %q", q.Ask)
	} else if result, err := asked(ctx, q.Ask, q.Result); err != nil {
		a.Error = err.Error()
	} else if a.Result, err = json.Marshal(result); err != nil {
		a.Error = err.Error()
	}
	params, err := json.Marshal(a)
	if err != nil {
		params = nil // strings and JSON always marshal
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.write(ctx, call{Method: answerMethod, Params: params}) // a dead child needs no answer
}

// write sends a command. c.mu must be held.
func (c *Child) write(ctx context.Context, what call) error {
	line, err := json.Marshal(what)
	if err != nil {
		return err
	}
	// A command is far smaller than the pipe's buffer, so this blocks only if
	// the child is stopped; the deadline bounds that too.
	deadline, _ := ctx.Deadline() // the zero time means no deadline, for the pipe too
	_ = c.commands.SetWriteDeadline(deadline)
	_, err = c.commands.Write(append(line, '\n'))
	return err
}

// Call invokes a method of the child and waits for the result. ErrExited if the
// child died first: the call may or may not have been performed.
func (c *Child) Call(ctx context.Context, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("process: parameters of %s: %w", method, err)
	}
	ch := make(chan reply, 1)
	c.mu.Lock()
	if c.broken != nil {
		defer c.mu.Unlock()
		return fmt.Errorf("process: %s: %w", method, c.broken)
	}
	c.next++
	id := c.next
	c.waiting[id] = ch
	if err = c.write(ctx, call{ID: id, Method: method, Params: raw}); err != nil {
		delete(c.waiting, id)
	}
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("process: %s: %w", method, errors.Join(ErrExited, err))
	}
	select {
	case rep, ok := <-ch:
		switch {
		case !ok:
			return fmt.Errorf("process: %s: %w", method, ErrExited)
		case rep.Error != "":
			return &RemoteError{Method: method, Text: rep.Error}
		case result == nil:
			return nil
		}
		if err := json.Unmarshal(rep.Result, result); err != nil {
			return fmt.Errorf("process: result of %s: %w", method, err)
		}
		return nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		return fmt.Errorf("process: %s: %w", method, context.Cause(ctx))
	}
}

// RemoteError is an error returned by the child.
type RemoteError struct{ Method, Text string }

func (e *RemoteError) Error() string { return e.Text }
