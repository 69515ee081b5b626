package defects_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/defects"
)

func TestTheListIsWhole(t *testing.T) {
	var judged []string
	for _, g := range guarantees.Guarantees() {
		judged = append(judged, g.Name)
	}
	seen := map[string]bool{}
	for _, d := range defects.All() {
		if seen[d.Name] {
			t.Errorf("%s stands twice", d.Name)
		}
		seen[d.Name] = true
		for _, g := range append([]string{d.Breaks}, d.Follows...) {
			if !slices.Contains(judged, g) {
				t.Errorf("%s names %q, which no checker judges", d.Name, g)
			}
		}
		if d.Shown != "" {
			if _, err := scenarios.Find(d.Shown); err != nil {
				t.Errorf("%s: %v", d.Name, err)
			}
		}
		if d.Text == "" || d.SeenIn == "" {
			t.Errorf("%s says too little", d.Name)
		}
	}
	if _, ok := defects.Find("no-such-defect"); ok {
		t.Error("a defect was found that is not in the list")
	}
}

// honest is a system of one message with prescribed answers, which records its
// calls.
type honest struct {
	receipt systems.Receipt
	sent    []systems.Message
	acked   []string
	nacked  []string
	handed  int
}

func (h *honest) Producer(context.Context, systems.ProducerOptions) (systems.Producer, error) {
	return h, nil
}
func (h *honest) Consumer(context.Context, systems.ConsumerOptions) (systems.Consumer, error) {
	return h, nil
}
func (h *honest) Close(context.Context) error { return nil }
func (h *honest) Send(_ context.Context, m systems.Message) (systems.Pending, error) {
	h.sent = append(h.sent, m)
	return h, nil
}
func (h *honest) Receipt(ctx context.Context) systems.Receipt {
	if h.receipt.Acceptance == evidence.Unknown {
		<-ctx.Done()
	}
	return h.receipt
}
func (h *honest) Lookup(context.Context, string) (systems.Resolution, error) {
	return systems.Resolution{Reason: "not-seen"}, nil
}
func (h *honest) Receive(context.Context) (systems.Delivery, error) {
	h.handed++
	return handed{h, string(rune('a' + h.handed - 1))}, nil
}

type handed struct {
	h  *honest
	id string
}

func (d handed) Message() systems.Message { return systems.Message{MessageID: d.id} }
func (d handed) Attempt() (int, bool)     { return 2, true }
func (d handed) Mark() evidence.Mark      { return evidence.MarkRedelivered }
func (d handed) Ack(context.Context) (evidence.AckOutcome, error) {
	d.h.acked = append(d.h.acked, d.id)
	return evidence.AckConfirmed, nil
}
func (d handed) Nack(context.Context, string) (evidence.AckOutcome, error) {
	d.h.nacked = append(d.h.nacked, d.id)
	return evidence.AckConfirmed, nil
}

// story is one publish, two deliveries acknowledged, and a third rejected.
func story(t *testing.T, h *honest, c systems.Clients) (receipt systems.Receipt, third systems.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	p, err := c.Producer(ctx, systems.ProducerOptions{})
	s, err2 := c.Consumer(ctx, systems.ConsumerOptions{})
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if _, ok := p.(systems.Resolver); !ok {
		t.Error("the producer can no longer look up")
	}
	pending, err := p.Send(ctx, systems.Message{MessageID: "chosen"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d, err := s.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Ack(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if third, err = s.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := third.(systems.Rejecter).Nack(ctx, "no"); err != nil {
		t.Fatal(err)
	}
	return pending.Receipt(ctx), third
}

func TestEachMisbehavesAndOnlyAsItSays(t *testing.T) {
	type seen struct {
		acceptance evidence.Acceptance
		ids        []string // of what was sent
		acked      []string
		nacked     []string
		mark       evidence.Mark
	}
	look := func(t *testing.T, a evidence.Acceptance, wrap func(systems.Clients) systems.Clients) seen {
		h := &honest{receipt: systems.Receipt{Acceptance: a}}
		r, d := story(t, h, wrap(h))
		s := seen{r.Acceptance, nil, h.acked, h.nacked, d.Mark()}
		for _, m := range h.sent {
			s.ids = append(s.ids, m.MessageID)
		}
		return s
	}
	good := seen{evidence.Accepted, []string{"chosen"}, []string{"a", "b"}, []string{"c"}, evidence.MarkRedelivered}
	cases := []struct {
		defect string
		says   evidence.Acceptance
		change func(*seen)
	}{
		{"client-reads-declined-as-sent", evidence.Declined, func(s *seen) { s.acceptance = evidence.Accepted }},
		{"client-reports-unknown-as-accepted", evidence.Unknown, func(s *seen) { s.acceptance = evidence.Accepted }},
		{"client-takes-unknown-for-rejected", evidence.Unknown, func(s *seen) { s.acceptance = evidence.Rejected }},
		{"client-retries-with-new-id", evidence.Accepted, func(s *seen) { s.ids = []string{""} }},
		{"client-hides-a-retry", evidence.Unknown, func(s *seen) { s.ids = []string{"chosen", ""} }},
		{"client-swallows-answers", evidence.Accepted, func(s *seen) { s.acceptance = evidence.Unknown }},
		{"client-acknowledges-on-receipt", evidence.Accepted, func(s *seen) { s.acked = []string{"a", "b", "c"} }},
		{"client-acknowledges-after-a-failure", evidence.Accepted, func(s *seen) { s.acked, s.nacked = []string{"a", "b", "c"}, nil }},
		{"client-acknowledges-another-delivery", evidence.Accepted, func(s *seen) { s.acked = []string{"a"} }},
		{"client-loses-acknowledgements", evidence.Accepted, func(s *seen) { s.acked = nil }},
		{"client-hides-the-redelivery-mark", evidence.Accepted, func(s *seen) { s.mark = evidence.MarkFirst }},
	}
	for _, c := range cases {
		t.Run(c.defect, func(t *testing.T) {
			d, ok := defects.Find(c.defect)
			if !ok {
				t.Fatal("it is not in the list")
			}
			want := good
			want.acceptance = c.says
			if got := look(t, c.says, func(h systems.Clients) systems.Clients { return h }); !reflect.DeepEqual(got, want) {
				t.Errorf("without the defect: %+v, want %+v", got, want)
			}
			c.change(&want)
			if got := look(t, c.says, d.Clients); !reflect.DeepEqual(got, want) {
				t.Errorf("with the defect: %+v, want %+v", got, want)
			}
		})
	}
	wrappers := slices.DeleteFunc(defects.All(), func(d defects.Defect) bool { return d.AcksEarly }) // has no wrapper
	if len(cases) != len(wrappers) {
		t.Errorf("%d of %d defects are tested", len(cases), len(wrappers))
	}
}
