package runner

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// handed is a delivery whose Ack succeeds.
type handed struct{ m systems.Message }

func (d handed) Message() systems.Message { return d.m }
func (handed) Attempt() (int, bool)       { return 1, true }
func (handed) Mark() evidence.Mark        { return evidence.MarkFirst }
func (handed) Ack(context.Context) (evidence.AckOutcome, error) {
	return evidence.AckConfirmed, nil
}

// locked is a business database that cannot be written, until its context ends.
type locked struct {
	database
	ends context.CancelFunc
}

func (l locked) Apply(context.Context, business.Delivery, []business.Op) (business.Outcome, error) {
	l.ends()
	return business.Failed, errors.New("database is locked")
}

// A failure of the harness's business database is not recorded as the
// application's, unless the consumer was stopped meanwhile.
func TestBusinessDatabaseThatFails(t *testing.T) {
	m := systems.Message{Destination: "orders", Payload: evidence.Envelope{PublishID: "p1-1-1", BusinessID: "order-1"}.Encode()}
	for name, stopped := range map[string]bool{"while it runs": false, "while it is stopped": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := locked{ends: func() {}}
			if stopped {
				l.ends = cancel
			}
			kept := evidence.NewMemory(evidence.Manifest{}, func() time.Duration { return time.Second }, nil)
			c, err := newConsumer(script.Consumer{Name: "c1", Destination: "orders"}, surroundings{db: l, sink: kept, bounds: bounds{call: time.Second},
				rt: tasks.NewReal(func() time.Duration { return time.Second })})
			if err != nil {
				t.Fatal(err)
			}
			err = c.handle(ctx, handed{m})
			failed := slices.ContainsFunc(kept.Events(), func(e evidence.Event) bool { return e.Kind == evidence.EffectFailed })
			if stopped {
				if !errors.Is(err, context.Canceled) || !failed {
					t.Errorf("stopped: %v, recorded as failed: %v", err, failed)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "database is locked") || errors.Is(err, systems.ErrDisconnected) || failed {
				t.Errorf("it goes on with %v, recorded as failed: %v", err, failed)
			}
		})
	}
}

// Bodies differ between producers and messages, are deterministic for a seed,
// and contain every byte value.
func TestBodies(t *testing.T) {
	body := func(name string, seed uint64, n int) []byte {
		p := newProducer(script.Producer{Name: name}, nil, "", nil, nil, bounds{}, seed, true)
		var b []byte
		for range n {
			b = make([]byte, 600)
			p.fill(b)
		}
		return b
	}
	one := body("p1", 1, 1)
	for name, other := range map[string][]byte{"another producer": body("p2", 1, 1), "another seed": body("p1", 2, 1), "another message": body("p1", 1, 2)} {
		if bytes.Equal(one, other) {
			t.Errorf("%s has the same body", name)
		}
	}
	if !bytes.Equal(one, body("p1", 1, 1)) {
		t.Error("the same seed gives another body")
	}
	var seen [256]bool
	for _, v := range one[:256] {
		seen[v] = true
	}
	if slices.Contains(seen[:], false) {
		t.Error("a byte value is missing")
	}
}
