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

// remote is one run's queues on an external server, which share a prefix. Safe
// for concurrent use.
type remote struct{ *clients } // its profile holds the server's version

var (
	_ systems.Networked     = (*remote)(nil)
	_ systems.Inspector     = (*readable)(nil)
	_ systems.Administrator = (*remote)(nil)
	_ systems.Reporter      = (*remote)(nil)
)

// unusedFor is the milliseconds after which the server deletes an unused queue,
// such as those of a run that was killed.
const unusedFor = int32(time.Hour / time.Millisecond)

// At returns the profile on an external server, in the virtual host "/". The
// default user is RabbitMQ's own, guest.
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
	env.Sink.Record(evidence.Event{Kind: evidence.Noted, Actor: serverName, Reason: fmt.Sprintf("the server reports %v %v", s.conn.Properties["product"], s.conn.Properties["version"])})
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

// readable is a remote with dead-letter queues.
type readable struct{ *remote }

// Rows lists dead letters only. AMQP shows neither queued nor unacknowledged
// messages, so that absence proves nothing.
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

// writtenWithin bounds the delay with which a node writes a new queue's
// metadata: the logs of its database and of quorum queues are buffered for two
// and three seconds. A node started here is told to flush.
const writtenWithin = 4 * time.Second

// BeforeStrike waits until existing queues would survive the node's end.
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

// Restarted lets transient queues, which ended with the server, be declared
// again.
func (r *remote) Restarted(context.Context) error {
	r.forgetQueues()
	return nil
}

// Stop deletes the run's queues.
func (r *remote) Stop(ctx context.Context) error {
	names := r.queues(r.named)
	for _, name := range names {
		if r.profile.deadLetters {
			names = append(names, name+deadSuffix)
		}
	}
	return r.deleteNamed(ctx, names)
}
