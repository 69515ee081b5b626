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

// instance is one run's part in a server that commands can strike. Safe for
// concurrent use.
type instance struct {
	reached
	file    file
	sink    evidence.Sink
	log     io.WriteCloser
	dir     string // of the run, private
	release func()

	mu   sync.Mutex // one order at a time
	down bool
}

// reached is what an adapter has of a server that it has not started.
type reached interface {
	systems.Instance
	systems.Networked
}

// Report is the adapter's, of the server that it has found.
func (in *instance) Report(d *systems.Description) {
	if r, ok := in.reached.(systems.Reporter); ok {
		r.Report(d)
	}
}

// adapters is the instance as the adapter knows it.
func (in *instance) adapters() systems.Instance { return in.reached }

// awaited is an adapter's instance that has to come to rest before its server
// is struck.
type awaited interface {
	BeforeStrike(ctx context.Context) error
}

// restarted is an adapter's instance that has to do something when its server
// is back.
type restarted interface {
	Restarted(ctx context.Context) error
}

var _ systems.Process = (*instance)(nil)

const (
	serverName  = "broker"   // the actor of the server's events
	commandsLog = "commands" // what they print
	// lookEvery is how often it is looked whether a command has had its effect.
	lookEvery = 50 * time.Millisecond
	lookTime  = 2 * time.Second
	// maxPrinted is how much of a command's output is kept, in bytes.
	maxPrinted = 64 << 10
)

// Running says whether the server was left running.
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
	if a, ok := in.reached.(awaited); ok {
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
			return nil // nobody answers
		}
		return errors.Join(conn.Close(), errors.New("it still takes connections"))
	})
	if err != nil {
		return fmt.Errorf("%s: the server does not end by it: %w", in.file.place(field), err)
	}
	in.down = true
	in.sink.Record(evidence.Event{Kind: evidence.ProcessExited, Actor: serverName, Reason: "by the command of its owner", Exit: &exit})
	return nil
}

// Restart starts the server, which must have ended, and waits until it serves.
func (in *instance) Restart(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.down {
		return errors.New("external: the server runs: kill it or shut it down first")
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
		return fmt.Errorf("%s: the server does not serve after it: %w", in.file.place("start"), err)
	}
	if r, ok := in.reached.(restarted); ok {
		if err := r.Restarted(ctx); err != nil {
			return err
		}
	}
	in.down = false
	in.sink.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: serverName, Reason: "by the command of its owner"})
	return nil
}

// errNoPause: the description lacks it, so that no script asks.
var errNoPause = errors.New("external: no command pauses the server")

// Pause is not to be had by commands.
func (in *instance) Pause(context.Context) error { return errNoPause }

// Continue is not to be had by commands.
func (in *instance) Continue(context.Context) error { return errNoPause }

// Stop ends the run's part in the server, which runs again then.
func (in *instance) Stop(ctx context.Context) error {
	defer in.release()
	var err error
	if !in.Running() {
		err = in.Restart(ctx)
	}
	return errors.Join(err, in.reached.Stop(ctx), in.log.Close())
}

// run one command of the owner's to its end.
func (in *instance) run(ctx context.Context, field string, command []string) error {
	// A file and not a pipe: a server that it starts may hold on to it.
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
		return fmt.Errorf("%s: %s: %w; what it printed is in the run's log %q", in.file.place(field), command[0], err, commandsLog)
	}
	return nil
}

// until calls done until it returns nil.
func until(ctx context.Context, done func(context.Context) error) error {
	tick := time.NewTicker(lookEvery)
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
