package external

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// instance is a run's connection to a server controlled by commands. Safe for
// concurrent use.
type instance struct {
	adapterInstance
	file    file
	sink    evidence.Sink
	log     io.WriteCloser
	dir     string // of the run, private
	release func()

	mu   sync.Mutex // serialises operations
	down bool
}

// adapterInstance is an adapter's instance of a server it did not start.
type adapterInstance interface {
	systems.Instance
	systems.Networked
}

// Parts are the optional interfaces that the adapter has at a server it did not
// start.
func (in *instance) Parts() []any { return []any{in.adapterInstance} }

// adapters returns the adapter's own instance.
func (in *instance) adapters() systems.Instance { return in.adapterInstance }

// quiescer is an adapter's instance that must quiesce before its server is
// struck.
type quiescer interface {
	BeforeStrike(ctx context.Context) error
}

// restartHook is an adapter's instance that must act after its server's
// restart.
type restartHook interface {
	Restarted(ctx context.Context) error
}

var _ systems.Process = (*instance)(nil)

const (
	serverName  = "broker"   // actor of the server's events
	commandsLog = "commands" // log of their output
	// pollInterval is how often a command's effect is checked.
	pollInterval = 50 * time.Millisecond
	lookTime     = 2 * time.Second
	// maxPrinted bounds a command's saved output, in bytes.
	maxPrinted = 64 << 10
)

// Running reports whether the server was left running.
func (in *instance) Running() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.down
}

// Kill ends the server at once.
func (in *instance) Kill(ctx context.Context) error {
	return in.end(ctx, "kill", in.file.Kill, evidence.ExitInfo{Code: -1, Signal: "killed", Ordered: true})
}

// Shutdown ends the server in order.
func (in *instance) Shutdown(ctx context.Context) error {
	return in.end(ctx, "stop", in.file.Stop, evidence.ExitInfo{Ordered: true})
}

func (in *instance) end(ctx context.Context, field string, command []string, exit evidence.ExitInfo) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if a, ok := in.adapterInstance.(quiescer); ok {
		if err := a.BeforeStrike(ctx); err != nil {
			return err
		}
	}
	if err := in.run(ctx, field, command); err != nil {
		return err
	}
	err := until(ctx, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", in.file.Address)
		if err != nil {
			return nil // nothing listens
		}
		return errors.Join(conn.Close(), errors.New("it still accepts connections"))
	})
	if err != nil {
		return fmt.Errorf("%s: the server does not stop: %w", in.file.locate(field), err)
	}
	in.down = true
	in.sink.Record(evidence.Event{Kind: evidence.ProcessExited, Actor: serverName, Reason: "by the configured command", Exit: &exit})
	return nil
}

// Restart starts the server, which must have ended, and waits until it serves.
func (in *instance) Restart(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.down {
		return errors.New("external: the server is running: kill it or shut it down first")
	}
	if err := in.run(ctx, "start", in.file.Start); err != nil {
		return err
	}
	err := until(ctx, func(ctx context.Context) error {
		p, err := in.Producer(ctx, systems.ProducerOptions{Name: "ready", Session: "ready"})
		if err != nil {
			return err
		}
		return p.Close(ctx)
	})
	if err != nil {
		return fmt.Errorf("%s: the server does not serve afterwards: %w", in.file.locate("start"), err)
	}
	if r, ok := in.adapterInstance.(restartHook); ok {
		if err := r.Restarted(ctx); err != nil {
			return err
		}
	}
	in.down = false
	in.sink.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: serverName, Reason: "by the configured command"})
	return nil
}

// errNoPause cannot be reached from a script: the description says that pausing
// is not supported.
var errNoPause = errors.New("external: no command pauses the server")

// Pause is not supported.
func (in *instance) Pause(context.Context) error { return errNoPause }

// Continue is not supported.
func (in *instance) Continue(context.Context) error { return errNoPause }

// Stop ends the run's use of the server and leaves it running.
func (in *instance) Stop(ctx context.Context) error {
	defer in.release()
	var err error
	if !in.Running() {
		err = in.Restart(ctx)
	}
	return errors.Join(err, in.adapterInstance.Stop(ctx), in.log.Close())
}

// run runs one of the file's commands to its end.
func (in *instance) run(ctx context.Context, field string, command []string) error {
	// A file instead of a pipe: a server started by the command may inherit it.
	out, err := os.CreateTemp(in.dir, field)
	if err != nil {
		return fmt.Errorf("external: output of a command: %w", err)
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	_, copied := io.Copy(in.log, io.NewSectionReader(out, 0, maxPrinted))
	if err = errors.Join(err, copied); err != nil {
		return fmt.Errorf("%s: %s: %w; its output is in the run's log %q", in.file.locate(field), command[0], err, commandsLog)
	}
	return nil
}

// until polls done until it returns nil.
func until(ctx context.Context, done func(context.Context) error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		looking, cancel := context.WithTimeout(ctx, lookTime)
		err := done(looking)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}
