package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/custodymq/custody/tasks"
)

// Role is what a re-executed binary can become. Start is called first; the
// other methods may be called afterwards, each in its own goroutine.
type Role struct {
	// An error from Start ends the process with code 1, or with
	// tasks.ExitUnmeasured if it wraps ErrUnfit.
	Start   func(ctx context.Context, config json.RawMessage, p *Parent) error
	Methods map[string]func(ctx context.Context, params json.RawMessage) (any, error)
	// Stop shuts down, on SIGTERM or when the parent is gone.
	Stop func(ctx context.Context) error
}

// ErrUnfit: the machine lacks a resource that the role needs (a free port,
// disk space, files, memory, time), so a failed start is not the role's fault.
var ErrUnfit = errors.New("the machine lacks what is needed")

// Parent is the connection to the process that started this one.
type Parent struct {
	// Events is the evidence pipe; each Write must be one whole line.
	Events io.Writer
	mu     sync.Mutex
	out    io.Writer
	asked  uint64
	asking map[uint64]chan reply
}

// Ask sends a request to the parent and waits for the answer. If ctx ends
// first, or no answer arrives, the request may or may not have been served.
func (p *Parent) Ask(ctx context.Context, question string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("process: parameters of %s: %w", question, err)
	}
	answered := make(chan reply, 1)
	p.mu.Lock()
	p.asked++
	id := p.asked
	p.asking[id] = answered
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.asking, id)
	}()
	if err := p.send(reply{ID: id, Ask: question, Result: raw}); err != nil {
		return fmt.Errorf("process: request %s: %w", question, err)
	}
	select {
	case a := <-answered:
		if a.Error != "" {
			return &RemoteError{Method: question, Text: a.Error}
		}
		if err := json.Unmarshal(a.Result, result); err != nil {
			return fmt.Errorf("process: answer to %s: %w", question, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("process: %s: %w", question, context.Cause(ctx))
	}
}

// deliverAnswer passes an answer to the goroutine waiting for it.
func (p *Parent) deliverAnswer(params json.RawMessage) {
	var a reply
	if json.Unmarshal(params, &a) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if waiting, ok := p.asking[a.ID]; ok {
		delete(p.asking, a.ID)
		waiting <- a
	}
}

// Notify sends the parent a notification, which has been written when it
// returns.
func (p *Parent) Notify(note string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("process: note %s: %w", note, err)
	}
	return p.send(reply{Note: note, Result: raw})
}

func (p *Parent) send(r reply) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("process: reply: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = p.out.Write(append(line, '\n'))
	return err
}

// RunRole turns this process into a child if the environment says so: it serves
// until stopped and never returns. Call it first in main and in TestMain.
func RunRole(roles map[string]func() Role) {
	name := os.Getenv(RoleVariable)
	if name == "" {
		return
	}
	if err := os.Unsetenv(RoleVariable); err != nil { // its own children have no role
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	newRole, ok := roles[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "process: no role %q in this binary\n", name)
		os.Exit(64)
	}
	if err := serve(newRole()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(role Role) error {
	commands, out, events := os.NewFile(3, "commands"), os.NewFile(4, "replies"), os.NewFile(5, "events")
	if commands == nil || out == nil || events == nil {
		return errors.New("process: a role must be started by its parent, with three pipes")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	p := &Parent{Events: events, out: out, asking: map[uint64]chan reply{}}
	defer tasks.OnPanic(func(err error) {
		_ = p.send(reply{Note: panicNote, Error: err.Error()}) // fails if the parent is gone
		os.Exit(tasks.ExitUnmeasured)
	})()
	lines := make(chan []byte)
	tasks.Go(func() {
		defer close(lines)
		s := bufio.NewScanner(commands)
		s.Buffer(make([]byte, 0, 64<<10), maxLine)
		for s.Scan() {
			lines <- append([]byte(nil), s.Bytes()...)
		}
	})
	for {
		select {
		case <-ctx.Done():
			return role.Stop(context.WithoutCancel(ctx))
		case line, ok := <-lines:
			if !ok {
				return role.Stop(context.WithoutCancel(ctx)) // the parent is gone
			}
			var c call
			if err := json.Unmarshal(line, &c); err != nil {
				return fmt.Errorf("process: invalid JSON in a command: %w", err)
			}
			if c.Method == "start" {
				var failed error
				err := answer(p, c, func() (any, error) { failed = role.Start(ctx, c.Params, p); return nil, failed })
				switch {
				case errors.Is(failed, ErrUnfit):
					os.Exit(tasks.ExitUnmeasured)
				case err != nil || failed != nil:
					return errors.Join(err, failed)
				}
				continue
			}
			if c.Method == answerMethod {
				p.deliverAnswer(c.Params)
				continue
			}
			method, ok := role.Methods[c.Method]
			tasks.Go(func() {
				err := answer(p, c, func() (any, error) {
					if !ok {
						return nil, fmt.Errorf("process: no method %q", c.Method)
					}
					return method(ctx, c.Params)
				})
				if err != nil {
					cancel() // the parent no longer reads
				}
			})
		}
	}
}

func answer(p *Parent, c call, do func() (any, error)) error {
	result, err := do()
	r := reply{ID: c.ID}
	if err != nil {
		r.Error = err.Error()
	} else if r.Result, err = json.Marshal(result); err != nil {
		r.Error = err.Error()
	}
	return p.send(r)
}
