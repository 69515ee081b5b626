package nats

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

// What the settings of each profile change.

func named(t *testing.T, name string) Profile {
	t.Helper()
	for _, s := range Profiles(1) {
		if p := s.(Profile); p.name == name {
			return p
		}
	}
	t.Fatalf("no profile %s", name)
	return Profile{}
}

func TestTheServerHasTheSettingsOfEachProfile(t *testing.T) {
	for _, s := range Profiles(1) {
		p := s.(Profile)
		t.Run(p.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			env := systemtest.Env(t, systemtest.Discard{}, nil)
			started, err := p.Start(ctx, env)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := started.Stop(ctx); err != nil {
					t.Errorf("stop: %v", err)
				}
			}()
			options, err := server.ProcessConfigFile(filepath.Join(env.Dir, "nats-server.conf"))
			if err != nil {
				t.Fatal(err)
			}
			if options.SyncAlways != (p.sync == syncAlways) || p.sync == syncDefault && options.SyncInterval != 2*time.Minute {
				t.Errorf("synced always: %v, every %v", options.SyncAlways, options.SyncInterval)
			}
			in := started.(*instance)
			subscribe(t, ctx, in, 1)
			err = in.administer(ctx, func(js jetstream.JetStream) error { return checkStream(ctx, t, js, p) })
			if p.core != errors.Is(err, jetstream.ErrStreamNotFound) || !p.core && err != nil {
				t.Errorf("the stream: %v", err)
			}
		})
	}
}

func checkStream(ctx context.Context, t *testing.T, js jetstream.JetStream, p Profile) error {
	stream, err := js.Stream(ctx, streamName)
	if err != nil {
		return err
	}
	c := stream.CachedInfo().Config
	if c.Storage != p.storage || c.PersistMode != p.persist || c.Retention != p.retention() || c.MaxAge != p.maxAge || p.duplicates > 0 && c.Duplicates != p.duplicates {
		t.Errorf("the stream is %+v", c)
	}
	consumer, err := stream.Consumer(ctx, systems.SubscriberName("billing", "orders"))
	if err != nil {
		return err
	}
	if c := consumer.CachedInfo().Config; c.AckPolicy != p.acks || max(c.MaxDeliver, 0) != p.maxDeliver {
		t.Errorf("the consumer is %+v", c)
	}
	return nil
}

func TestDerivedClaimsLeaveTheirTableAlone(t *testing.T) {
	table := claims{{"a", anyFault, "x"}, {"b", anyFault, "y"}}
	if got := table.without("a"); len(got) != 1 || got[0].guarantee != "b" {
		t.Errorf("without a: %v", got)
	}
	got := table.notUnder(endOfServer, "b")
	if !slices.Equal(got[0].under, anyFault) || slices.Contains(got[1].under, evidence.BrokerCrash) || !slices.Contains(got[1].under, evidence.Link) {
		t.Errorf("b not under the end of the server: %v", got)
	}
	if len(table) != 2 || table[0].guarantee != "a" || !slices.Equal(table[1].under, anyFault) || !slices.Contains(anyFault, evidence.BrokerCrash) {
		t.Errorf("the table is now %v, and any fault %v", table, anyFault)
	}
}

func count(t *testing.T, ctx context.Context, in *instance) int {
	t.Helper()
	s, err := in.Rows(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s.Count
}

// eventually polls under the deadline of the test.
func eventually(t *testing.T, ctx context.Context, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("it never came about that %s", what)
		}
	}
}

func receive(t *testing.T, ctx context.Context, c systems.Consumer) systems.Delivery {
	t.Helper()
	d, err := c.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestASingleAcknowledgementIsSent(t *testing.T) {
	ctx, in := startProfile(t, named(t, "single-ack"))
	p, c := open(t, ctx, in), subscribe(t, ctx, in, 1)
	publish(t, ctx, p, systems.Message{})
	d := receive(t, ctx, c)
	if outcome, err := d.Ack(ctx); outcome != evidence.AckSent || err != nil {
		t.Errorf("got %v, %v; want sent", outcome, err)
	}
	eventually(t, ctx, "the acknowledged row is gone", func() bool { return count(t, ctx, in) == 0 })
	if err := c.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if outcome, err := d.Ack(ctx); outcome != evidence.AckUnknown || !errors.Is(err, systems.ErrDisconnected) {
		t.Errorf("on a closed session: %v, %v; want unknown, disconnected", outcome, err)
	}
}

func TestWithAckNoneADeliveryIsTheLastOfAMessage(t *testing.T) {
	ctx, in := startProfile(t, named(t, "ack-none"))
	p := open(t, ctx, in)
	if r := publish(t, ctx, p, systems.Message{}); r.Acceptance != evidence.Accepted || count(t, ctx, in) != 0 {
		t.Errorf("a publish that no consumer wants: %+v, and it is kept; want accepted, and dropped", r)
	}
	c := subscribe(t, ctx, in, 1)
	publish(t, ctx, p, systems.Message{})
	if n := count(t, ctx, in); n != 1 {
		t.Errorf("%d rows before the delivery, want 1", n)
	}
	receive(t, ctx, c)
	eventually(t, ctx, "the delivered row is gone", func() bool { return count(t, ctx, in) == 0 })
}

func TestMemoryIsLostWithTheServer(t *testing.T) {
	ctx, in := startProfile(t, named(t, "memory"))
	before := publish(t, ctx, open(t, ctx, in), systems.Message{})
	if before.Acceptance != evidence.Accepted || before.HeldBy != evidence.HeldByBrokerMemory {
		t.Errorf("got %+v, want accepted, held by the broker's memory", before)
	}
	if err := errors.Join(in.Shutdown(ctx), in.Restart(ctx)); err != nil {
		t.Fatal(err)
	}
	if n := count(t, ctx, in); n != 0 {
		t.Errorf("%d rows after an orderly restart, want none", n)
	}
	// No later message reuses the ID of a lost one.
	if after := publish(t, ctx, open(t, ctx, in), systems.Message{}); after.Acceptance != evidence.Accepted || after.MessageID == before.MessageID {
		t.Errorf("before the restart %+v, after it %+v", before, after)
	}
}

func TestARetryIsOneRowWithinTheDuplicateWindow(t *testing.T) {
	profile := named(t, "dedup-window")
	profile.duplicates = time.Second
	ctx, in := startProfile(t, profile)
	p := open(t, ctx, in)
	first := publish(t, ctx, p, systems.Message{})
	if again := publish(t, ctx, p, systems.Message{}); again.MessageID != first.MessageID || !again.Duplicate {
		t.Errorf("first %+v, again %+v", first, again)
	}
	eventually(t, ctx, "a retry after the window is another message", func() bool {
		return publish(t, ctx, p, systems.Message{}).MessageID != first.MessageID
	})
	if n := count(t, ctx, in); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

// A failure of TestARestartForgetsTheDuplicateWindowOfConsumedMessages means that
// the finding in docs/findings.md is obsolete.
func TestARestartForgetsTheDuplicateWindowOfConsumedMessages(t *testing.T) {
	ctx, in := startProfile(t, named(t, "dedup-window"))
	p, c := open(t, ctx, in), subscribe(t, ctx, in, 1)
	first := publish(t, ctx, p, systems.Message{})
	if outcome, err := receive(t, ctx, c).Ack(ctx); outcome != evidence.AckConfirmed {
		t.Fatalf("acknowledge: %v, %v", outcome, err)
	}
	if again := publish(t, ctx, p, systems.Message{}); again.MessageID != first.MessageID || count(t, ctx, in) != 0 {
		t.Errorf("a retry of a consumed message: %+v, want a duplicate of %+v", again, first)
	}
	if err := errors.Join(in.Shutdown(ctx), in.Restart(ctx)); err != nil {
		t.Fatal(err)
	}
	if again := publish(t, ctx, open(t, ctx, in), systems.Message{}); again.MessageID == first.MessageID || count(t, ctx, in) != 1 {
		t.Errorf("a retry after an orderly restart, within the window: %+v; it was another message of %+v", again, first)
	}
}

func TestAMessagePastItsLastAttemptStaysAndIsOfferedToNobody(t *testing.T) {
	profile := named(t, "max-deliver")
	ctx, in := startProfile(t, profile)
	c := subscribe(t, ctx, in, 1)
	publish(t, ctx, open(t, ctx, in), systems.Message{})
	for i := range profile.maxDeliver {
		d := receive(t, ctx, c)
		if n, known := d.Attempt(); n != i+1 || !known {
			t.Errorf("attempt %d counts itself as %d", i+1, n)
		}
		if outcome, err := d.(systems.Rejecter).Nack(ctx, "never"); outcome != evidence.AckConfirmed {
			t.Fatalf("nack: %v, %v", outcome, err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 2*ackWait)
	defer cancel()
	if d, err := c.Receive(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after its last attempt: %v, %v", d, err)
	}
	if n := count(t, ctx, in); n != 1 {
		t.Errorf("%d rows, want the one that nobody is offered", n)
	}
}

func TestTheAgeLimitSweepsWhatNobodyConsumed(t *testing.T) {
	profile := named(t, "max-age")
	profile.maxAge = time.Second
	ctx, in := startProfile(t, profile)
	published := time.Now()
	publish(t, ctx, open(t, ctx, in), systems.Message{TTL: time.Minute}) // the earlier deadline wins
	eventually(t, ctx, "the old row is gone", func() bool { return count(t, ctx, in) == 0 })
	if took := time.Since(published); took < profile.maxAge {
		t.Errorf("swept after %v, its age limit is %v", took, profile.maxAge)
	}
}

func TestCoreNATSDeliversToOneListenerAndKeepsNothing(t *testing.T) {
	ctx, in := startProfile(t, named(t, "core"))
	p := open(t, ctx, in)
	send := func(id string) {
		t.Helper()
		r := publish(t, ctx, p, systems.Message{Payload: evidence.Envelope{PublishID: "p1-1-1", BusinessID: id}.Encode()})
		if r.Acceptance != evidence.Unknown || r.HeldBy != evidence.HeldByNobody || r.ClientResult != "ok" {
			t.Errorf("publish %s: %+v, want unknown, with ok told", id, r)
		}
	}
	send("to-nobody")
	// A connection is processed in order: once this is answered, the message is
	// dropped.
	if err := p.(*producer).conn.FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	members := []systems.Consumer{subscribe(t, ctx, in, 1), subscribe(t, ctx, in, 1)}
	const messages = 20
	for i := range messages {
		send(fmt.Sprintf("order-%d", i+1))
	}
	heard := make(chan string, 2*messages)
	listening, stop := context.WithCancel(ctx)
	ended := make(chan error, len(members))
	for _, m := range members {
		go func() {
			for {
				d, err := m.Receive(listening)
				if err != nil {
					ended <- err
					return
				}
				e, _ := evidence.ParseEnvelope(d.Message().Payload)
				outcome, _ := d.Ack(listening)
				heard <- fmt.Sprint(e.BusinessID, " ", outcome)
			}
		}()
	}
	got := make(map[string]int)
	for range messages {
		select {
		case id := <-heard:
			got[id]++
		case <-ctx.Done():
			t.Fatalf("heard %d of %d", len(got), messages)
		}
	}
	stop()
	for range members {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("receive: %v", err)
		}
	}
	if len(got) != messages || len(heard) > 0 || got["order-1 sent"] != 1 {
		t.Errorf("heard %v and %d more", got, len(heard))
	}
	if n := count(t, ctx, in); n != 0 {
		t.Errorf("%d rows of core NATS", n)
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if r := publish(t, ctx, p, systems.Message{}); r.Acceptance != evidence.Rejected {
		t.Errorf("publish on a closed session: %+v, want rejected", r)
	}
}
