package rabbitmq

import (
	"context"
	"fmt"
	"maps"
	"time"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// remote is one run's part of a server that somebody else has started: the
// queues whose names begin with its prefix. Safe for concurrent use.
type remote struct{ *clients } // its profile has the version that the server says

var (
	_ systems.Networked     = (*remote)(nil)
	_ systems.Inspector     = (*readable)(nil)
	_ systems.Administrator = (*remote)(nil)
	_ systems.Reporter      = (*remote)(nil)
)

// unusedFor is how long a queue may be unused, in milliseconds, before the
// server deletes it: a run that was killed deletes nothing.
const unusedFor = int32(time.Hour / time.Millisecond)

// At gives the profile on a server that somebody else has started, in its
// virtual host "/". Without a user it is RabbitMQ's own, guest.
func (p Profile) At(e systems.Endpoint) systems.System {
	p.at = e
	p.arguments = maps.Clone(p.arguments)
	if p.arguments == nil {
		p.arguments = client.Table{}
	}
	p.arguments["x-expires"] = unusedFor
	return p
}

// reach connects to the external server and records its version.
func (p Profile) reach(ctx context.Context, env systems.Env) (systems.Instance, error) {
	s, err := dial(ctx, p.at, "administrator", p.scaled(openTimeout), func(*client.Channel) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: the server at %s must run and take its user in the virtual host / (address, user-from, password-from, tls): %w", p.at, err)
	}
	env.Sink.Record(evidence.Event{Kind: evidence.Noted, Actor: serverName, Reason: fmt.Sprintf("the server says %v %v", s.conn.Properties["product"], s.conn.Properties["version"])})
	p.reported = fmt.Sprint(s.conn.Properties["version"])
	if err := s.Close(ctx); err != nil {
		return nil, err
	}
	if err := drives(p.reported); err != nil {
		return nil, err
	}
	r := &remote{newClients(p, p.at.Address, systems.RunName()+"-")}
	if p.deadLetters {
		return &readable{r}, nil
	}
	return r, nil
}

// readable is one with queues of dead letters.
type readable struct{ *remote }

// Rows are the dead letters alone: AMQP shows nothing of what waits or is in
// hand, so that nothing is proven absent by them.
func (r *readable) Rows(ctx context.Context) (evidence.Snapshot, error) {
	rows, err := r.DeadLetters(ctx)
	if err != nil {
		return evidence.Snapshot{}, err
	}
	return evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Lagging, Rows: rows, Count: len(rows)}, nil
}

// Report adds what was learned from the running server.
func (r *remote) Report(d *systems.Description) {
	found := r.profile.Describe()
	d.Versions = found.Versions
	if d.Profile.Limits.MaxAttempts == 0 && d.Profile.Limits.DropsAfter == 0 {
		d.Profile.Limits.DropsAfter = found.Profile.Limits.DropsAfter
	}
}

// writtenWithin is how long a node may keep to itself what it knows of a new
// queue: the log of its database and the tables of its quorum queues are
// buffered for two and three seconds. A node of the harness's own is told to write.
const writtenWithin = 4 * time.Second

// BeforeStrike waits until the end of the node would leave the queues that
// there are.
func (r *remote) BeforeStrike(ctx context.Context) error {
	r.mu.Lock()
	left := time.Until(r.lastMade.Add(writtenWithin))
	r.mu.Unlock()
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Restarted makes the queues again that are not durable: they have ended with
// the server.
func (r *remote) Restarted(context.Context) error {
	r.forgetQueues()
	return nil
}

// Stop deletes the queues of the run.
func (r *remote) Stop(ctx context.Context) error {
	names := r.queues(r.named)
	for _, name := range names {
		if r.profile.deadLetters {
			names = append(names, name+deadSuffix)
		}
	}
	return r.deleteNamed(ctx, names)
}
