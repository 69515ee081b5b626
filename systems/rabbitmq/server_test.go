package rabbitmq

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

// Effects of the profiles' settings, beyond conformance.

// rig is one run on a server shared by the tests.
type rig struct {
	t    *testing.T
	ctx  context.Context
	pool *process.Pool
	in   *instance
}

func profile(t *testing.T, name string) Profile {
	t.Helper()
	for _, s := range Profiles(1) {
		if p := s.(Profile); p.name == name {
			return p
		}
	}
	t.Fatalf("no profile %s", name)
	return Profile{}
}

func TestServer(t *testing.T) {
	systemtest.Require(t, Profiles(1)[0])
	pool := process.NewPool()
	t.Cleanup(func() {
		if err := pool.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		name, profile string
		check         func(*rig)
	}{
		{"without a queue a mandatory publish is declined", "mandatory", mandatoryIsDeclined},
		{"without a queue any other is confirmed and gone", "unroutable", unroutableIsConfirmed},
		{"a full queue declines", "max-length-reject", fullQueueDeclines},
		{"a full queue drops its oldest message", "max-length-drop-head", fullQueueDrops},
		{"a message expires", "classic", expires},
		{"a queue has one logical subscriber", "classic", oneSubscriber},
		{"what comes again too often is dropped", "delivery-limit", dropped},
		{"or dead-lettered, redriven, discarded", "delivery-limit-dlx", deadLettered},
		{"a run leaves no queue behind, and others alone", "classic", leavesNothing},
		{"a delivery count survives a restart", "quorum", countSurvives},
		{"a quorum queue survives a kill right after it was made", "quorum", survivesKill},
		{"a classic queue forgets transient messages in a kill", "classic-transient", forgetsTransient},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			r := &rig{t: t, ctx: ctx, pool: pool}
			r.in = r.start(c.profile)
			c.check(r)
			r.must(r.in.Stop(ctx))
		})
	}
}

func (r *rig) start(name string) *instance {
	r.t.Helper()
	in, err := profile(r.t, name).Start(r.ctx, systemtest.Env(r.t, systemtest.Discard{}, r.pool))
	r.must(err)
	return in.(*instance)
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) producer() systems.Producer {
	r.t.Helper()
	p, err := r.in.Producer(r.ctx, systems.ProducerOptions{Name: "p1", Session: "p1#1"})
	r.must(err)
	r.t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

func (r *rig) consumer() systems.Consumer {
	r.t.Helper()
	c, err := r.in.Consumer(r.ctx, systems.ConsumerOptions{Name: "c1", Session: "c1#1", Destination: "orders", Subscription: "billing", Window: 1})
	r.must(err)
	r.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (r *rig) publish(p systems.Producer, n string, ttl time.Duration) systems.Receipt {
	r.t.Helper()
	e := evidence.Envelope{PublishID: "p1-" + n + "-1", BusinessID: "order-" + n}
	pending, err := p.Send(r.ctx, systems.Message{Destination: "orders", MessageID: "m-" + n, Payload: e.Encode(), TTL: ttl})
	r.must(err)
	return pending.Receipt(r.ctx)
}

func (r *rig) accepted(p systems.Producer, n string) {
	r.t.Helper()
	if got := r.publish(p, n, 0); got.Acceptance != evidence.Accepted {
		r.t.Fatalf("publish: %+v", got)
	}
}

func (r *rig) receive(c systems.Consumer, want string) systems.Delivery {
	r.t.Helper()
	d, err := c.Receive(r.ctx)
	r.must(err)
	if d.Message().MessageID != want {
		r.t.Fatalf("received %s, want %s", d.Message().MessageID, want)
	}
	return d
}

func (r *rig) rows() evidence.Snapshot {
	r.t.Helper()
	s, err := r.in.Rows(r.ctx)
	r.must(err)
	return s
}

func (r *rig) eventually(what string, holds func() bool) {
	r.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			r.t.Fatalf("never: %s", what)
		}
	}
}

func mandatoryIsDeclined(r *rig) {
	p := r.producer()
	for range 3 {
		if got := r.publish(p, "1", 0); got.Acceptance != evidence.Declined || got.ClientResult == "ok" {
			r.t.Errorf("%+v, want declined", got)
		}
	}
	c := r.consumer()
	r.accepted(p, "1")
	r.receive(c, "m-1")
}

func unroutableIsConfirmed(r *rig) {
	r.accepted(r.producer(), "1")
	if s := r.rows(); s.Count != 0 || s.Trust != evidence.Exact {
		r.t.Errorf("stored: %+v", s)
	}
}

// fullQueueDeclines polls because a quorum queue applies reject-publish with a
// delay, so that a few more publishes may be accepted.
func fullQueueDeclines(r *rig) {
	p := r.producer()
	r.eventually("a publish is declined", func() bool {
		got := r.publish(p, "1", 0)
		return got.Acceptance == evidence.Declined
	})
}

func fullQueueDrops(r *rig) {
	p := r.producer()
	for _, n := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"} {
		r.accepted(p, n)
	}
	if s := r.rows(); s.Count != 3 || s.Trust != evidence.CountsOnly {
		r.t.Errorf("stored: %+v, want a count of 3", s)
	}
}

func expires(r *rig) {
	if got := r.publish(r.producer(), "1", 50*time.Millisecond); got.Acceptance != evidence.Accepted {
		r.t.Fatalf("%+v", got)
	}
	r.eventually("it is gone", func() bool { return r.rows().Count == 0 })
}

func oneSubscriber(r *rig) {
	r.consumer()
	_, err := r.in.Consumer(r.ctx, systems.ConsumerOptions{Name: "c2", Session: "c2#1", Destination: "orders", Subscription: "shipping", Window: 1})
	if err == nil || errors.Is(err, systems.ErrUnavailable) {
		r.t.Errorf("a second logical subscriber: %v, want a refusal that trying again does not mend", err)
	}
}

// exhaust rejects a message until it is no longer delivered.
func (r *rig) exhaust(c systems.Consumer, id string, attempts int) {
	r.t.Helper()
	for n := 1; n <= attempts; n++ {
		d := r.receive(c, id)
		if got, known := d.Attempt(); got != n || !known || (d.Mark() == evidence.MarkRedelivered) != (n > 1) {
			r.t.Errorf("delivery %d counts as %d, marked %v", n, got, d.Mark())
		}
		if outcome, err := d.(systems.Rejecter).Nack(r.ctx, ""); outcome != evidence.AckSent {
			r.t.Fatal(outcome, err)
		}
	}
}

func dropped(r *rig) {
	p, c := r.producer(), r.consumer()
	r.accepted(p, "1")
	r.exhaust(c, "m-1", 2)
	r.eventually("it is gone", func() bool { return r.rows().Count == 0 })
}

func deadLettered(r *rig) {
	p, c := r.producer(), r.consumer()
	r.accepted(p, "1")
	r.exhaust(c, "m-1", deliveryLimit+1)
	isDead := func() bool { s := r.rows(); return s.Trust == evidence.Exact && len(s.Rows) == 1 }
	r.eventually("it is a dead letter", isDead)
	row := r.rows().Rows[0]
	if row.State != evidence.RowDead || row.PublishID != "p1-1-1" || row.Destination != "orders" || row.Reason != "delivery_limit" {
		r.t.Errorf("dead letter %+v", row)
	}
	if err := r.in.Redrive(r.ctx, "m-9"); err == nil {
		r.t.Error("redrove what is not there")
	}
	r.must(r.in.Redrive(r.ctx, "m-1"))
	r.exhaust(c, "m-1", deliveryLimit+1)
	r.eventually("it is a dead letter again", isDead)
	r.must(r.in.Discard(r.ctx, "m-1"))
	r.eventually("nothing is left", func() bool { return r.rows().Count == 0 })
}

func leavesNothing(r *rig) {
	other := r.start("classic")
	r.accepted(r.producer(), "1")
	p, err := other.Producer(r.ctx, systems.ProducerOptions{Session: "p1#1"})
	r.must(err)
	r.accepted(p, "2")
	r.must(p.Close(r.ctx))
	r.must(other.Stop(r.ctx))
	if other.server == r.in.server {
		r.t.Fatal("two runs share a server at the same time")
	}
	third := r.start("classic") // on the second's server
	if third.server != other.server {
		r.t.Error("an untouched server was not used again")
	}
	counts, err := third.console.count(r.ctx, "custody-")
	if err != nil || len(counts) != 0 {
		r.t.Errorf("left behind: %v, %v", counts, err)
	}
	r.must(third.Stop(r.ctx))
	if s := r.rows(); s.Count != 1 {
		r.t.Errorf("the first run has %d messages, want 1", s.Count)
	}
}

func countSurvives(r *rig) {
	p, c := r.producer(), r.consumer()
	r.accepted(p, "1")
	r.receive(c, "m-1")
	r.must(errors.Join(r.in.Shutdown(r.ctx), r.in.Restart(r.ctx)))
	d := r.receive(r.consumer(), "m-1")
	if n, _ := d.Attempt(); n < 2 || d.Mark() != evidence.MarkRedelivered {
		r.t.Errorf("delivered again as attempt %d, marked %q", n, d.Mark())
	}
}

func survivesKill(r *rig) {
	r.accepted(r.producer(), "1")
	r.must(errors.Join(r.in.Kill(r.ctx), r.in.Restart(r.ctx)))
	r.receive(r.consumer(), "m-1")
}

func forgetsTransient(r *rig) {
	r.accepted(r.producer(), "1")
	r.must(errors.Join(r.in.Kill(r.ctx), r.in.Restart(r.ctx)))
	if s := r.rows(); s.Count != 0 {
		r.t.Errorf("stored: %+v", s)
	}
}
