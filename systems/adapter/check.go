package adapter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/conformance"
)

// ErrNotRun: the command could not be run, so that nothing is known of the
// adapter.
var ErrNotRun = errors.New("adapter: the command cannot be run")

// exit codes of a shell that finds no program, or cannot run it.
const (
	exitNotRunnable = 126
	exitNotFound    = 127
)

// Check checks an adapter, one profile after the other: first its conversation,
// then all obligations of an adapter. No answer may take longer than within. It
// tells of each as it is known.
func Check(ctx context.Context, command string, within time.Duration, tell func(profile string, f conformance.Finding)) error {
	found, err := open(ctx, Command(command), 1, bounds{call: within, grace: within, pulse: within})
	var exited *exitError
	if errors.As(err, &exited) && (exited.exit.Code == exitNotFound || exited.exit.Code == exitNotRunnable) {
		return fmt.Errorf("%w: %s", ErrNotRun, exited.said)
	}
	described := conformance.Finding{Obligation: "it describes itself, and exits at the end of its input"}
	if err != nil {
		described.Wrong = []string{err.Error()}
	}
	tell("", described)
	for _, s := range found {
		name := s.Describe().Profile.Name
		for _, c := range conversation {
			f := conformance.Finding{Obligation: c.obligation}
			if err := converse(ctx, s, within, c.check); err != nil {
				f.Wrong = []string{err.Error()}
			}
			tell(name, f)
		}
		if err := conformance.Findings(ctx, s, 4*within, func(f conformance.Finding) { tell(name, f) }); err != nil {
			return err
		}
	}
	return nil
}

// conversation is what the protocol demands of an adapter and no Go adapter can
// get wrong.
var conversation = []struct {
	obligation string
	check      func(context.Context, *instance) error
}{
	{"an unknown op is answered with the error kind unknown-op", func(ctx context.Context, in *instance) error {
		err := in.call(ctx, unknownOp, struct{}{}, nil)
		var answered *Error
		if !errors.As(err, &answered) || answered.Kind != UnknownOp {
			return fmt.Errorf("%s was answered %v, want an error of the kind %s", unknownOp, err, UnknownOp)
		}
		return nil
	}},
	{"a cancel of a call that was answered is ignored", func(ctx context.Context, in *instance) error {
		k, err := in.begin("ping", struct{}{})
		if err != nil {
			return err
		}
		if err := in.await(ctx, k, nil); err != nil {
			return err
		}
		if err := in.write(fmt.Appendf(nil, `{"op":"cancel","of":%d}`, k.id)); err != nil {
			return err
		}
		return in.call(ctx, "ping", struct{}{}, nil)
	}},
	{"closing a session that is not there is no error", func(ctx context.Context, in *instance) error {
		return in.call(ctx, "close", inSession{"nobody#1"}, nil)
	}},
	{"an acknowledgement of a delivery that was never made is refused", func(ctx context.Context, in *instance) error {
		return in.strange(ctx, "ack")
	}},
	{"a nack of a delivery that was never made is refused", func(ctx context.Context, in *instance) error {
		if !in.profile.able(systems.NeedNack) {
			return nil
		}
		return in.strange(ctx, "nack")
	}},
}

// strange settles a delivery that nobody has made.
func (in *instance) strange(ctx context.Context, op string) error {
	o := systems.ConsumerOptions{Name: "c1", Session: "c1#1", Address: in.address, Destination: "orders", Subscription: "billing", Window: 1}
	c, err := in.Consumer(ctx, o)
	if err != nil {
		return err
	}
	stranger := &delivery{consumer: c.(*consumer), line: line{Delivery: "a-delivery-of-nobody"}}
	if outcome, err := stranger.settle(ctx, op, "why not"); outcome != evidence.AckRefused {
		return fmt.Errorf("%s of an unknown delivery was answered %s (%v), want refused", op, outcome, err)
	}
	return c.Close(ctx)
}

// converse runs a check on an instance of its own.
func converse(ctx context.Context, s systems.System, within time.Duration, check func(context.Context, *instance) error) (err error) {
	bounded, cancel := context.WithTimeout(ctx, 4*within)
	defer cancel()
	dir, err := os.MkdirTemp("", "custody-check-")
	if err != nil {
		return fmt.Errorf("adapter: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	in, err := s.Start(bounded, conformance.Env(dir, conformance.Discard{}, nil))
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*within)
		defer cancel()
		err = errors.Join(err, in.Stop(stop))
	}()
	return check(bounded, in.(*instance))
}
