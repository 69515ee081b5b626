package tasks

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// Both runtimes satisfy the same contract.
func TestRuntimes(t *testing.T) {
	began := time.Now()
	sim := NewSimulated(1)
	for name, world := range map[string]struct {
		Runtime
		run func(func()) error
	}{
		"real":      {NewReal(func() time.Duration { return time.Since(began) }), func(f func()) error { f(); return nil }},
		"simulated": {sim, sim.Run},
	} {
		t.Run(name, func(t *testing.T) {
			err := world.run(func() {
				from := world.Now()
				if err := world.Sleep(t.Context(), 20*time.Millisecond); err != nil || world.Now()-from < 20*time.Millisecond {
					t.Errorf("slept %v: %v", world.Now()-from, err)
				}
				ctx, cancel := world.Timeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				if err := world.Wait(ctx, func() bool { return false }); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a wait that times out ends with %v", err)
				}
				if err := world.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a sleep that times out ends with %v", err)
				}
				inner, stop := world.Timeout(ctx, time.Hour)
				defer stop()
				if inner.Err() == nil {
					t.Error("an inner timeout outlives its parent's")
				}
				said := make(chan struct{})
				world.Go(func() {
					_ = world.Sleep(t.Context(), time.Millisecond)
					close(said)
					world.Wake()
				})
				if err := world.Wait(t.Context(), func() bool {
					select {
					case <-said:
						return true
					default:
						return false
					}
				}); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSimulatedOrder(t *testing.T) {
	s := NewSimulated(1)
	var did []string
	note := func(what string) func() { return func() { did = append(did, what) } }
	err := s.Run(func() {
		s.After(2*time.Second, note("second"))
		s.After(time.Second, note("first"))
		s.After(2*time.Second, note("third"))
		s.Go(func() {
			_ = s.Sleep(t.Context(), 1500*time.Millisecond)
			did = append(did, "task")
		})
		_ = s.Sleep(t.Context(), time.Hour)
	})
	if want := []string{"first", "task", "second", "third"}; err != nil || !slices.Equal(did, want) {
		t.Errorf("did %q, %v; want %q", did, err, want)
	}
	if s.Now() < time.Hour || s.Wall().Sub(epoch) != s.Now() {
		t.Errorf("it is %v, %v", s.Now(), s.Wall())
	}
}

func TestSimulatedKill(t *testing.T) {
	s := NewSimulated(1)
	var did []string
	err := s.Run(func() {
		victim := s.Spawn(func() {
			defer func() { did = append(did, "deferred") }()
			s.OnKill(func() { did = append(did, "hook") })
			_ = s.Sleep(t.Context(), time.Hour)
			did = append(did, "went on")
		})
		frozen := s.Spawn(func() {
			_ = s.Sleep(t.Context(), time.Second)
			did = append(did, "thawed")
		})
		_ = s.Sleep(t.Context(), time.Millisecond)
		frozen.Freeze()
		victim.Kill()
		victim.Kill() // the second call does nothing
		_ = s.Sleep(t.Context(), time.Minute)
		did = append(did, "minute")
		frozen.Thaw()
		if err := s.Wait(t.Context(), frozen.Over); err != nil || !victim.Over() {
			t.Errorf("over: %v, %v", victim.Over(), err)
		}
	})
	if want := []string{"deferred", "hook", "minute", "thawed"}; err != nil || !slices.Equal(did, want) {
		t.Errorf("did %q, %v; want %q", did, err, want)
	}
}

// A deadlocked simulation reports it, as does one that panics.
func TestSimulatedEnds(t *testing.T) {
	s := NewSimulated(1)
	killed := false
	err := s.Run(func() {
		defer func() {
			p := recover()
			killed = Killed(p)
			panic(p)
		}()
		_ = s.Wait(t.Context(), func() bool { return false })
	})
	if !errors.Is(err, errDeadlock) || !killed {
		t.Errorf("nothing is due: %v, killed %v", err, killed)
	}
	s = NewSimulated(1)
	err = s.Run(func() {
		for {
			_ = s.Sleep(t.Context(), time.Nanosecond)
		}
	})
	if !errors.Is(err, errTooManySteps) {
		t.Errorf("for ever: %v", err)
	}
	s = NewSimulated(1)
	err = s.Run(func() {
		s.Go(func() { panic("in a task") })
		_ = s.Sleep(t.Context(), time.Hour)
	})
	if err == nil || !strings.Contains(err.Error(), "in a task") || s.Now() > time.Minute {
		t.Errorf("a panic: %v", err)
	}
}

func TestSimulatedJitterFollowsTheSeed(t *testing.T) {
	draw := func(seed uint64) (d []time.Duration) {
		s := NewSimulated(seed)
		for range 100 {
			d = append(d, s.Jitter())
		}
		return d
	}
	if !slices.Equal(draw(7), draw(7)) || slices.Equal(draw(7), draw(8)) {
		t.Error("the delays do not follow the seed")
	}
	if longest := slices.Max(draw(7)); longest > 3*time.Millisecond {
		t.Errorf("a delay of %v", longest)
	}
}
