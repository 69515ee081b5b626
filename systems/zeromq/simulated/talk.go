package simulated

import (
	"context"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/zeromq"
)

var _ systems.Prober = (*instance)(nil)

// Probes lists the talks only: the other probes send bytes that no frame can
// hold.
func (in *instance) Probes() []systems.Probe { return in.system.Dialogues() }

// Probe holds a talk on connections of its own, bypassing all links.
func (in *instance) Probe(ctx context.Context, name string) (systems.Probed, error) {
	return zeromq.Converse(ctx, world{in}, name)
}

// world is where talks are held in virtual time.
type world struct{ *instance }

// Token is not checked: the simulated network admits everyone.
func (world) Token() string { return "nobody asks" }

func (w world) Rest(ctx context.Context, d time.Duration) error { return w.Sleep(ctx, d) }

func (w world) Dial(ctx context.Context) (zeromq.Line, error) {
	if err := w.Sleep(ctx, w.Jitter()); err != nil {
		return nil, err
	}
	c := &client{in: w.instance, mode: wire.AtLeastOnce, talks: true}
	if c.conn = w.connect("", c); c.conn == nil {
		return nil, fmt.Errorf("simulated: nobody listens: %w", systems.ErrUnavailable)
	}
	return line{c}, nil
}

// line is a client whose messages go to a talk undecoded.
type line struct{ *client }

func (l line) Say(head, payload []byte) {
	l.conn.pipes[evidence.ToBroker].put(pack([][]byte{head, payload}))
}

func (l line) Hear(ctx context.Context) (head, payload []byte, err error) {
	if err := l.in.Wait(ctx, func() bool { return len(l.heard) > 0 || l.err != nil }); err != nil {
		return nil, nil, err
	}
	if len(l.heard) == 0 {
		return nil, nil, l.err
	}
	x := l.heard[0]
	l.heard = l.heard[1:]
	return x.parts[0], x.parts[1], nil
}

func (l line) Close() { l.end(errClosed) }
