package kafka

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// remote is one run's share of an external broker. Safe for concurrent use.
type remote struct {
	*run
	version string // of the broker, as far as its protocol tells
}

var (
	_ systems.Remote    = Profile{}
	_ systems.Networked = (*remote)(nil)
	_ systems.Inspector = (*remote)(nil)
	_ systems.Rewinder  = (*remote)(nil)
	_ systems.Reporter  = (*remote)(nil)
)

// At returns the profile on an external broker. Settings of its configuration,
// such as group.share.record.lock.duration.ms, are its owner's.
func (p Profile) At(e systems.Endpoint) systems.System {
	p.at = e
	return p
}

// reach connects to the external broker and records its version.
func (p Profile) reach(ctx context.Context, env systems.Env) (systems.Instance, error) {
	bounded, cancel := context.WithTimeout(ctx, p.scaled(adminBound))
	defer cancel()
	refused := func(err error) error {
		return fmt.Errorf("kafka: the server at %s must be the only broker of its cluster and take its user (address, user-from, password-from, tls): %w", p.at.Address, err)
	}
	var err error
	if p.mechanism, err = p.chosenMechanism(bounded); err != nil {
		return nil, refused(err)
	}
	r, err := p.newRun(p.at.Address)
	if err != nil {
		return nil, err
	}
	version, err := r.admin.awaitSingleBroker(bounded)
	if err != nil {
		r.admin.Close()
		return nil, refused(err)
	}
	env.Sink.Record(evidence.Event{Kind: evidence.Noted, Actor: serverName, Reason: "the server speaks the protocol of Kafka " + version})
	if err := p.drives(version); err != nil {
		r.admin.Close()
		return nil, err
	}
	return &remote{r, version}, nil
}

// Report adds what was learned from the running server.
func (r *remote) Report(d *systems.Description) { d.Versions["kafka"] = r.version }

// awaitSingleBroker waits until the broker serves and returns its version as
// far as the protocol tells. Links lead to one broker, so there must be no
// other.
func (a administrator) awaitSingleBroker(ctx context.Context) (version string, err error) {
	tick := time.NewTicker(backoff)
	defer tick.Stop()
	for {
		m, err := a.BrokerMetadata(ctx)
		if err == nil && len(m.Brokers) > 1 {
			return "", fmt.Errorf("kafka: the cluster has %d brokers, but a link leads to one: use a single-node cluster", len(m.Brokers))
		}
		if err == nil {
			err = a.serves(ctx)
		}
		if err == nil {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", err
		}
	}
	versions, err := a.ApiVersions(ctx)
	for _, v := range versions {
		return v.VersionGuess(), err
	}
	return "", err
}

// Rows reads everything again: the broker may have been struck.
func (r *remote) Rows(ctx context.Context) (evidence.Snapshot, error) { return r.rows(ctx, false) }

// Stop deletes the run's topics and groups. Transactional IDs cannot be
// deleted: they expire.
func (r *remote) Stop(ctx context.Context) error {
	defer r.admin.Close()
	return r.clear(ctx)
}

// clientOptions configures how a client connects, whatever address the broker
// advertises.
func (p Profile) clientOptions(address string) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(address),
		kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) { return p.dial(ctx, network, address) }),
		kgo.RetryBackoffFn(func(int) time.Duration { return backoff }),
		kgo.MetadataMinAge(metadataAge),
		kgo.DisableClientMetrics(),
	}
	if way, chosen := mechanisms[p.mechanism]; chosen {
		opts = append(opts, kgo.SASL(way(p.at.User, p.at.Password)))
	}
	return opts
}

// mechanisms are the supported SASL mechanisms.
var mechanisms = map[string]func(user, password string) sasl.Mechanism{
	"SCRAM-SHA-512": func(user, password string) sasl.Mechanism {
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	},
	"SCRAM-SHA-256": func(user, password string) sasl.Mechanism {
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	},
	"PLAIN": func(user, password string) sasl.Mechanism {
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	},
}

// chosenMechanism is the broker's strongest supported mechanism, PLAIN last
// because it reveals the password; empty without a user. It has to be asked
// for: a broker hangs up on a client that tries an unknown one.
func (p Profile) chosenMechanism(ctx context.Context) (string, error) {
	if p.at.Password == "" {
		return "", nil
	}
	client, err := kgo.NewClient(p.clientOptions(p.at.Address)...)
	if err != nil {
		return "", err
	}
	defer client.Close()
	answer, err := kmsg.NewPtrSASLHandshakeRequest().RequestWith(ctx, client) // naming no mechanism
	if err != nil {
		return "", err
	}
	for _, m := range []string{"SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"} {
		if slices.Contains(answer.SupportedMechanisms, m) {
			return m, nil
		}
	}
	return "", fmt.Errorf("the broker accepts no supported password mechanism: %w (it offers %q)", kerr.ErrorForCode(answer.ErrorCode), answer.SupportedMechanisms)
}

func (p Profile) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if p.at.TLS == nil {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	return (&tls.Dialer{Config: p.at.TLS}).DialContext(ctx, network, address)
}
