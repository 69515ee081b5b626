package tinybroker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/custodymq/custody/examples/tinybroker"
)

func receive(t *testing.T, s *tinybroker.Subscription) tinybroker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, err := s.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAttemptsAreBounded(t *testing.T) {
	b := tinybroker.New(time.Millisecond, 2)
	s := b.Subscribe("orders", 1)
	bad := b.Publish("orders", []byte("bad"))
	good := b.Publish("orders", []byte("good"))
	for _, want := range []tinybroker.Delivery{{ID: bad, Attempt: 1}, {ID: bad, Attempt: 2}, {ID: good, Attempt: 1}} {
		if d := receive(t, s); d.ID != want.ID || d.Attempt != want.Attempt {
			t.Fatalf("got message %s, attempt %d; want %s, %d", d.ID, d.Attempt, want.ID, want.Attempt)
		}
	}
	if dead := b.Dead("orders"); len(dead) == 0 || dead[0].ID != bad || string(dead[0].Body) != "bad" {
		t.Errorf("set aside: %+v", dead)
	}
}

func TestSettling(t *testing.T) {
	b := tinybroker.New(time.Hour, 5)
	s, other := b.Subscribe("orders", 1), b.Subscribe("orders", 1)
	b.Publish("orders", nil)
	first := receive(t, s)
	if err := other.Ack(first); !errors.Is(err, tinybroker.ErrLate) {
		t.Errorf("another's delivery: %v", err)
	}
	if err := s.Nack(first); err != nil {
		t.Error(err)
	}
	second := receive(t, other)
	if second.ID != first.ID || second.Attempt != 2 {
		t.Errorf("after a nack: %+v", second)
	}
	if err := s.Ack(first); !errors.Is(err, tinybroker.ErrLate) {
		t.Errorf("a delivery given back: %v", err)
	}
	if err := other.Ack(second); err != nil {
		t.Error(err)
	}
	if err := other.Ack(second); !errors.Is(err, tinybroker.ErrLate) {
		t.Errorf("settled twice: %v", err)
	}
}

func TestWindow(t *testing.T) {
	b := tinybroker.New(time.Hour, 5)
	s := b.Subscribe("orders", 1)
	b.Publish("orders", nil)
	b.Publish("orders", nil)
	held := receive(t, s)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := s.Receive(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("beyond the window: %+v, %v", d, err)
	}
	if err := s.Ack(held); err != nil {
		t.Error(err)
	}
	receive(t, s)
}
