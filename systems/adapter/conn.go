package adapter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// conn is one process of an adapter, and the calls to it. Whatever breaks the
// protocol breaks the conn: nothing that was measured with it stands. Safe for
// concurrent use.
type conn struct {
	name    string // the command, for errors
	child   *process.Piped
	bounds  bounds
	ended   chan struct{} // closed once broken is set
	running tasks.Group   // what reads, pings and kills
	idle    context.CancelFunc

	writing sync.Mutex // of whole lines; never held together with mu

	mu       sync.Mutex
	next     uint64
	calls    map[uint64]*call
	sessions map[string]*session // by name, also when they are gone
	fired    map[string]func(line) error
	broken   error
	closing  bool
}

// maxLine is the longest line, in bytes.
const maxLine = 16 << 20

// bounds are how long an adapter may take.
type bounds struct {
	call  time.Duration // an answer, where the caller's context ends later
	grace time.Duration // an answer after a cancel; the exit after the end of input
	pulse time.Duration // a ping: an adapter that stands still delays what it reports
}

func scaledBounds(scale float64) bounds {
	scaled := func(d time.Duration) time.Duration { return time.Duration(float64(d) * scale) }
	return bounds{call: scaled(30 * time.Second), grace: scaled(5 * time.Second), pulse: scaled(5 * time.Second)}
}

// call is one call in progress.
type call struct {
	id   uint64
	op   string
	left bool // a message was written to the system; guarded by conn.mu until done
	done chan struct{}

	// Valid once done is closed.
	answer json.RawMessage
	err    error
}

// start runs the adapter's command. Its standard error goes to log.
func start(command []string, log io.Writer, b bounds) (*conn, error) {
	child, err := process.StartPiped(command, log)
	if err != nil {
		return nil, err
	}
	c := &conn{
		name: strings.Join(command, " "), child: child, bounds: b, ended: make(chan struct{}),
		calls: make(map[uint64]*call), sessions: make(map[string]*session), fired: make(map[string]func(line) error),
	}
	if rest, ok := strings.CutPrefix(c.name, shell); ok {
		c.name = rest
	}
	c.running.Go(c.read)
	ctx, cancel := context.WithCancel(context.Background())
	c.idle = cancel
	c.running.Go(func() { c.watch(ctx) })
	return c, nil
}

// read reads lines until the adapter ends.
func (c *conn) read() {
	defer c.child.Out.Close()
	lines := bufio.NewScanner(c.child.Out)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	n := 0
	for lines.Scan() {
		n++
		if err := c.take(lines.Bytes()); err != nil {
			_ = c.fail(fmt.Errorf("line %d of its output: %w", n, err))
			break
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		_ = c.fail(fmt.Errorf("line %d of its output is longer than %d bytes", n+1, maxLine))
	}
	_, _ = io.Copy(io.Discard, c.child.Out) // until it is killed
	timer := time.NewTimer(c.bounds.grace)
	defer timer.Stop()
	select {
	case <-c.child.Exited():
		x := c.child.Exit()
		_ = c.fail(&exitError{x, c.said()})
	case <-timer.C:
		_ = c.fail(errors.New("it closed its standard output"))
	}
}

// exitError is an exit that nobody asked for, or that failed.
type exitError struct {
	exit process.Exit
	said string // the end of its standard error
}

func (e *exitError) Error() string {
	how := fmt.Sprintf("it exited with code %d", e.exit.Code)
	if e.exit.Signal != "" {
		how = "it was ended by the signal " + e.exit.Signal
	}
	if e.said == "" {
		return how
	}
	return how + "; its standard error ends: " + e.said
}

// take handles one line.
func (c *conn) take(text []byte) error {
	var head struct {
		ID    uint64 `json:"id"`
		Event string `json:"event"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return fmt.Errorf("no JSON object of the protocol (%w): %s; write logs to standard error", err, excerpt(text))
	}
	if head.Event != "" {
		return c.event(head.Event, text)
	}
	if err := check("answer", text); err != nil {
		return fmt.Errorf("an answer: %w: %s", err, excerpt(text))
	}
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("an answer: %w", err)
	}
	c.mu.Lock()
	k := c.calls[l.ID]
	c.mu.Unlock()
	switch {
	case k == nil:
		return fmt.Errorf("an answer to call %d, which is not open: each call is answered once", l.ID)
	case l.Error != nil:
		if l.Error.Kind == Failed || l.Error.Kind == UnknownOp && k.op != unknownOp {
			return fmt.Errorf("%s: %w", k.op, l.Error)
		}
		c.finish(k, nil, fmt.Errorf("adapter: %s: %w", k.op, l.Error))
	case k.op == unknownOp:
		return fmt.Errorf("%s was answered ok: an op that the adapter does not know is an error of the kind %s", k.op, UnknownOp)
	default:
		if err := check("answer."+k.op, l.OK); err != nil {
			return fmt.Errorf("the answer to %s: %w: %s", k.op, err, excerpt(l.OK))
		}
		c.finish(k, l.OK, nil)
	}
	return nil
}

// finish ends a call, unless fail has.
func (c *conn) finish(k *call, answer json.RawMessage, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[k.id] == k {
		delete(c.calls, k.id)
		k.answer, k.err = answer, err
		close(k.done)
	}
}

var events = map[string]func(*conn, line) error{
	"left": func(c *conn, l line) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		k := c.calls[l.Of]
		if k == nil || k.op != "send" {
			return fmt.Errorf("event left of call %d, which is no open send: it comes before the answer", l.Of)
		}
		k.left = true
		return nil
	},
	"delivery": func(c *conn, l line) error {
		s, err := c.session(l)
		if err != nil {
			return err
		}
		return s.deliver(l)
	},
	"gone": func(c *conn, l line) error {
		s, err := c.session(l)
		if err != nil {
			return err
		}
		s.end(fmt.Errorf("%w: %s", systems.ErrDisconnected, l.Reason))
		return nil
	},
	"fired": func(c *conn, l line) error {
		c.mu.Lock()
		fired := c.fired[l.Label]
		c.mu.Unlock()
		if fired == nil {
			return fmt.Errorf("event fired of the fault %q, which was never armed", l.Label)
		}
		return fired(l)
	},
}

func (c *conn) event(name string, text []byte) error {
	handle, known := events[name]
	if !known {
		return fmt.Errorf("version %d of the protocol has no event %q", Version, name)
	}
	if err := check("event."+name, text); err != nil {
		return fmt.Errorf("event %s: %w: %s", name, err, excerpt(text))
	}
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("event %s: %w", name, err)
	}
	return handle(c, l)
}

func (c *conn) session(l line) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.sessions[l.Session]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("event %s of the session %q, which was never opened", l.Event, l.Session)
}

// begin writes a call. An error means that the conn is broken.
func (c *conn) begin(op string, params any) (*call, error) {
	raw, err := json.Marshal(params)
	if err != nil {
		return nil, fmt.Errorf("adapter: fields of %s: %w", op, err)
	}
	k := &call{op: op, done: make(chan struct{})}
	c.mu.Lock()
	if c.broken != nil {
		defer c.mu.Unlock()
		return nil, c.broken
	}
	c.next++
	k.id = c.next
	c.calls[k.id] = k
	c.mu.Unlock()
	text := fmt.Appendf(nil, `{"id":%d,"op":%q`, k.id, op)
	if fields := bytes.TrimPrefix(raw, []byte("{")); len(fields) > 1 {
		text = append(append(text, ','), fields...)
	} else {
		text = append(text, '}')
	}
	if err := c.write(text); err != nil {
		return nil, err
	}
	return k, nil
}

// write writes one line. It does not end with a caller's context: half a line
// would end the conversation.
func (c *conn) write(text []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if len(text) >= maxLine {
		return fmt.Errorf("adapter %s: a line of %d bytes: the protocol has at most %d", c.name, len(text), maxLine)
	}
	_ = c.child.In.SetWriteDeadline(time.Now().Add(c.bounds.call))
	if _, err := c.child.In.Write(append(text, '\n')); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return c.fail(fmt.Errorf("it does not read its standard input for %v", c.bounds.call))
		}
		select { // its end tells more than the broken pipe
		case <-c.ended:
		case <-c.child.Exited():
			<-c.ended
		}
		return c.brokenBy()
	}
	return nil
}

// call makes a call and waits for the answer.
func (c *conn) call(ctx context.Context, op string, params, result any) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	k, err := c.begin(op, params)
	if err != nil {
		return err
	}
	return c.await(ctx, k, result)
}

// await waits for the answer. If ctx ends first the call is cancelled; an
// answer other than an error still counts.
func (c *conn) await(ctx context.Context, k *call, result any) error {
	bounded, cancel := context.WithTimeoutCause(ctx, c.bounds.call, fmt.Errorf("no answer to %s within %v", k.op, c.bounds.call))
	defer cancel()
	select {
	case <-k.done:
	case <-bounded.Done():
		if err := c.cancel(k); err != nil {
			return err
		}
	}
	var answered *Error
	switch {
	case errors.As(k.err, &answered) && answered.Kind == Cancelled && bounded.Err() != nil:
		return fmt.Errorf("adapter: %s: %w", k.op, context.Cause(bounded))
	case k.err != nil:
		return k.err
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(k.answer, result); err != nil {
		return c.fail(fmt.Errorf("the answer to %s: %w: %s", k.op, err, excerpt(k.answer)))
	}
	return nil
}

// cancel asks for the end of a call and waits for its answer.
func (c *conn) cancel(k *call) error {
	if err := c.write(fmt.Appendf(nil, `{"op":"cancel","of":%d}`, k.id)); err != nil {
		return err
	}
	timer := time.NewTimer(c.bounds.grace)
	defer timer.Stop()
	select {
	case <-k.done:
		return nil
	case <-timer.C:
		return c.fail(fmt.Errorf("%s was cancelled, and is not answered within %v", k.op, c.bounds.grace))
	}
}

// pulseEvery is how often an adapter shows that it does not stand still.
const pulseEvery = time.Second

// watch pings.
func (c *conn) watch(ctx context.Context) {
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-c.ended:
			return
		}
		k, err := c.begin("ping", struct{}{})
		if err != nil {
			return
		}
		timer := time.NewTimer(c.bounds.pulse)
		select {
		case <-k.done:
		case <-ctx.Done():
		case <-timer.C:
			_ = c.fail(fmt.Errorf("it stands still: no answer to a ping within %v", c.bounds.pulse))
		}
		timer.Stop()
	}
}

// fail breaks the conn, once, and ends the adapter. It returns what broke it.
func (c *conn) fail(err error) error {
	c.mu.Lock()
	if c.broken != nil {
		defer c.mu.Unlock()
		return c.broken
	}
	expected := c.closing
	c.broken = fmt.Errorf("adapter %s: %w", c.name, err)
	calls, sessions := c.calls, c.sessions
	c.calls = make(map[uint64]*call)
	broken := c.broken
	c.mu.Unlock()
	for _, k := range calls {
		k.err = broken
		close(k.done)
	}
	for _, s := range sessions {
		s.end(broken)
	}
	close(c.ended)
	if !expected {
		c.running.Go(c.kill)
	}
	return broken
}

func (c *conn) brokenBy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

func (c *conn) kill() {
	ctx, cancel := context.WithTimeout(context.Background(), c.bounds.grace)
	defer cancel()
	_ = c.child.Kill(ctx) // it may have exited
}

// close ends the adapter by the end of its input. The error says what broke it
// before, or that it does not exit.
func (c *conn) close(ctx context.Context) error {
	c.mu.Lock()
	before := c.broken
	c.closing = true
	c.mu.Unlock()
	c.idle()
	c.writing.Lock()
	c.child.In.Close()
	c.writing.Unlock()
	timer := time.NewTimer(c.bounds.grace)
	defer timer.Stop()
	err := before
	select {
	case <-c.child.Exited():
		if x := c.child.Exit(); before == nil && (x.Code != 0 || x.Signal != "") {
			err = fmt.Errorf("adapter %s: at the end of its input: %w", c.name, &exitError{x, c.said()})
		}
	case <-timer.C:
		err = errors.Join(before, fmt.Errorf("adapter %s: it does not exit within %v of the end of its input", c.name, c.bounds.grace))
		c.kill()
	case <-ctx.Done():
		c.kill()
	}
	c.running.Wait()
	return err
}

// unknownOp is an operation that no version of the protocol has.
const unknownOp = "no-such-op"

// excerpt is the beginning of a line, for an error.
func excerpt(text []byte) string {
	const most = 200
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}

// said is the end of its standard error, on one line.
func (c *conn) said() string { return strings.Join(strings.Fields(c.child.Said()), " ") }
