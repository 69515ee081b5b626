package kafka

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	kafkalink "github.com/custodymq/custody/links/kafka"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

// Effects of the profiles' settings, beyond conformance.

// rig is one run on a broker shared by the tests.
type rig struct {
	t   *testing.T
	ctx context.Context
	in  *instance
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
		{"a group that is put back is given again what it has settled", "acks-all", rewound},
		{"and so is a share group", "share-group", rewound},
		{"a producer's next session fences the one before", "transactions", fenced},
		{"what was stored and not committed is never seen", "transactions", uncommitted},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			r := &rig{t: t, ctx: ctx}
			in, err := profile(t, c.profile).Start(ctx, systemtest.Env(t, systemtest.Discard{}, pool))
			r.must(err)
			r.in = in.(*instance)
			c.check(r)
			r.must(r.in.Stop(ctx))
		})
	}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) producer(session, address string) systems.Producer {
	r.t.Helper()
	p, err := r.in.Producer(r.ctx, systems.ProducerOptions{Name: "p1", Session: session, Address: address})
	r.must(err)
	r.t.Cleanup(func() { r.must(p.Close(context.Background())) })
	return p
}

func (r *rig) publish(p systems.Producer, businessID string) systems.Receipt {
	r.t.Helper()
	pending, err := p.Send(r.ctx, systems.Message{Destination: "orders", Payload: evidence.Envelope{PublishID: businessID, BusinessID: businessID}.Encode()})
	r.must(err)
	return pending.Receipt(r.ctx)
}

func (r *rig) accepted(p systems.Producer, businessIDs ...string) {
	r.t.Helper()
	for _, id := range businessIDs {
		if got := r.publish(p, id); got.Acceptance != evidence.Accepted {
			r.t.Fatalf("%s: %+v", id, got)
		}
	}
}

func (r *rig) consumer(session string) systems.Consumer {
	r.t.Helper()
	c, err := r.in.Consumer(r.ctx, systems.ConsumerOptions{Name: "c1", Session: session, Destination: "orders", Subscription: "billing", Window: 1})
	r.must(err)
	return c
}

// settles acknowledges a session's next n deliveries and returns them sorted.
func (r *rig) settles(session string, n int) (businessIDs []string) {
	r.t.Helper()
	c := r.consumer(session)
	for range n {
		d, err := c.Receive(r.ctx)
		r.must(err)
		e, err := evidence.ParseEnvelope(d.Message().Payload)
		r.must(err)
		businessIDs = append(businessIDs, e.BusinessID)
		if outcome, err := d.Ack(r.ctx); outcome != evidence.AckConfirmed {
			r.t.Fatalf("ack of %s: %v (%v)", e.BusinessID, outcome, err)
		}
	}
	r.must(c.Close(r.ctx))
	slices.Sort(businessIDs)
	return businessIDs
}

func (r *rig) equal(got []string, want ...string) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Errorf("settled %v, want %v", got, want)
	}
}

func rewound(r *rig) {
	p := r.producer("p1#1", "")
	r.accepted(p, "order-1", "order-2")
	position, err := r.in.Position(r.ctx, "orders")
	r.must(err)
	behind := time.Now().Add(time.Millisecond) // the broker counts whole milliseconds
	r.until(behind)
	r.accepted(p, "order-3", "order-4")
	r.equal(r.settles("c1#1", 4), "order-1", "order-2", "order-3", "order-4")

	r.must(r.in.Rewind(r.ctx, "orders", "billing", systems.Point{Position: position}))
	r.equal(r.settles("c1#2", 2), "order-3", "order-4")
	r.must(r.in.Rewind(r.ctx, "orders", "billing", systems.Point{Time: behind}))
	r.equal(r.settles("c1#3", 2), "order-3", "order-4")
	r.accepted(p, "order-5")
	r.equal(r.settles("c1#4", 1), "order-5")

	c := r.consumer("c1#5")
	short, cancel := context.WithTimeout(r.ctx, 2*time.Second)
	defer cancel()
	err = r.in.Rewind(short, "orders", "billing", systems.Point{Position: position})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still has members") {
		r.t.Errorf("rewound below a consumer: %v", err)
	}
	r.must(c.Close(r.ctx))
	for _, to := range []systems.Point{{}, {Time: behind, Position: position}, {Position: "end"}} {
		if err := r.in.Rewind(r.ctx, "orders", "billing", to); err == nil {
			r.t.Errorf("rewound to %+v", to)
		}
	}
}

// until waits for a time.
func (r *rig) until(at time.Time) {
	r.t.Helper()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ctx.Done():
		r.t.Fatal(r.ctx.Err())
	}
}

func fenced(r *rig) {
	first := r.producer("p1#1", "")
	r.accepted(first, "order-1")
	second := r.producer("p1#2", "")
	r.accepted(second, "order-2")
	if got := r.publish(first, "order-3"); got.Acceptance != evidence.Rejected {
		r.t.Errorf("of a session that was fenced: %+v", got)
	}
	r.accepted(second, "order-4")
	r.equal(r.settles("c1#1", 3), "order-1", "order-2", "order-4")
}

func uncommitted(r *rig) {
	link, err := links.Open(r.ctx, links.Options{Name: "p1", Upstream: r.in.Address(), Protocol: r.in.Protocol(), Index: links.NewIndex(), Sink: systemtest.Discard{}})
	r.must(err)
	defer link.Close()
	p := r.producer("p1#1", link.Addr())
	r.accepted(p, "order-1")
	lost, err := link.Arm(links.Strike{Label: "lost", Action: links.Drop, Kind: kafkalink.FrameStored, Of: "order-2"})
	r.must(err)
	if got := r.publish(p, "order-2"); got.Acceptance != evidence.Rejected {
		r.t.Errorf("of a transaction that was never committed: %+v", got)
	}
	select {
	case <-lost.Fired():
	default:
		r.t.Error("its message was not stored")
	}
	r.accepted(r.producer("p1#2", ""), "order-3")
	r.equal(r.settles("c1#1", 2), "order-1", "order-3")
	rows, err := r.in.Rows(r.ctx)
	r.must(err)
	for _, row := range rows.Rows {
		if row.BusinessID == "order-2" {
			r.t.Errorf("a row of what was not committed: %+v", row)
		}
	}
}
