package admission

import (
	"fmt"
	"net"
	"testing"
	"time"

	"pgregory.net/rapid"
)

type conn struct{ closed bool }

func (c *conn) Close() error { c.closed = true; return nil }

func peer(host string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(host), Port: 1} }

var small = Limits{Places: 6, PerHost: 3, Offenders: 3, Penalty: time.Second, Worst: 10 * time.Second, Forgive: time.Minute}

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func enter(t *testing.T, g *Gate, host string) (*Place, *conn) {
	t.Helper()
	c := &conn{}
	p := g.Enter(peer(host), c)
	if p == nil {
		t.Fatalf("no place for %s", host)
	}
	return p, c
}

func TestTheOldestOfAnAddressGoesForANewcomer(t *testing.T) {
	g := New(small, time.Now)
	_, first := enter(t, g, "10.0.0.1")
	second, kept := enter(t, g, "10.0.0.1")
	enter(t, g, "10.0.0.1")
	_, other := enter(t, g, "10.0.0.2")
	enter(t, g, "10.0.0.1")
	if !first.closed || kept.closed || other.closed {
		t.Fatalf("closed: oldest %v, second %v, that of another address %v", first.closed, kept.closed, other.closed)
	}
	if !second.Leave() || second.Leave() {
		t.Error("a place is given back once")
	}
	if g.Taken() != 3 {
		t.Errorf("%d places are taken, want 3", g.Taken())
	}
}

func TestTheCrowdMakesRoomForOthers(t *testing.T) {
	g := New(small, time.Now)
	lost, crowd := enter(t, g, "10.0.0.1")
	enter(t, g, "10.0.0.1")
	enter(t, g, "10.0.0.1")
	_, alone := enter(t, g, "10.0.0.2")
	enter(t, g, "10.0.0.3")
	enter(t, g, "10.0.0.4")
	enter(t, g, "10.0.0.5")
	if !crowd.closed || alone.closed {
		t.Fatalf("closed: of the crowd %v, of a lone one %v", crowd.closed, alone.closed)
	}
	select {
	case <-lost.Lost():
	default:
		t.Error("the loser was not told")
	}
	if lost.Leave() {
		t.Error("a place that was lost was given back")
	}
}

func TestAPenaltyIsServedToTheEnd(t *testing.T) {
	g := New(small, time.Now)
	var guessers []*Place
	for range small.PerHost {
		p, c := enter(t, g, "10.0.0.1")
		p.Penalize()
		c.Close() // closing the peer does not shorten the penalty
		guessers = append(guessers, p)
	}
	if g.Enter(peer("10.0.0.1"), &conn{}) != nil {
		t.Error("a guesser came again before its penalties were served")
	}
	enter(t, g, "10.0.0.2")
	guessers[0].Leave()
	enter(t, g, "10.0.0.1")
}

// TestGuessersFromEverywhereKeepNobodyOut checks that a newcomer is admitted
// however many addresses guess.
func TestGuessersFromEverywhereKeepNobodyOut(t *testing.T) {
	g := New(small, time.Now)
	for i := range 2 * small.Places {
		p, _ := enter(t, g, fmt.Sprintf("10.0.0.%d", i%2+1))
		p.Penalize()
		if i >= small.PerHost*2-1 {
			break
		}
	}
	enter(t, g, "10.0.1.1")
}

func TestPenaltiesGrowAndAreForgiven(t *testing.T) {
	c := &clock{time.Unix(0, 0)}
	g := New(small, c.now)
	penalize := func(host string) (int, time.Duration) {
		p, _ := enter(t, g, host)
		defer p.Leave()
		return p.Penalize()
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		if n, wait := penalize("10.0.0.1"); n != i+1 || wait != want*time.Second {
			t.Errorf("failure %d waits %v, want %v", n, wait, want*time.Second)
		}
	}
	if n, _ := penalize("10.0.0.2"); n != 1 {
		t.Errorf("another address begins with failure %d", n)
	}
	c.t = c.t.Add(small.Forgive + 1)
	if n, wait := penalize("10.0.0.1"); n != 1 || wait != small.Penalty {
		t.Errorf("after a while: failure %d, %v", n, wait)
	}
}

func TestOffendersAreBounded(t *testing.T) {
	c := &clock{time.Unix(0, 0)}
	g := New(small, c.now)
	for i := range 100 {
		c.t = c.t.Add(time.Second)
		p, _ := enter(t, g, fmt.Sprintf("10.0.0.%d", i))
		p.Penalize()
		p.Leave()
		if len(g.offenders) > small.Offenders {
			t.Fatalf("%d offenders are remembered, limit %d", len(g.offenders), small.Offenders)
		}
	}
	p, _ := enter(t, g, "10.0.0.99")
	if n, _ := p.Penalize(); n != 2 {
		t.Errorf("the latest offender was forgotten: failure %d", n)
	}
}

func TestWhatCountsAsOneAddress(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"10.0.0.1", "::ffff:10.0.0.1", true},
		{"2001:db8::1", "2001:db8::2", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
		{"::1", "127.0.0.1", false},
	} {
		if same := hostOf(peer(c.a)) == hostOf(peer(c.b)); same != c.same {
			t.Errorf("%s and %s count as one: %v, want %v", c.a, c.b, same, c.same)
		}
	}
}

func TestBoundsHoldWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := New(small, time.Now)
		type held struct {
			p *Place
			c *conn
		}
		var all []held
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				host := rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}).Draw(t, "host")
				c := &conn{}
				p := g.Enter(peer(host), c)
				if p != nil {
					all = append(all, held{p, c})
					return
				}
				for _, q := range g.hosts[hostOf(peer(host))] {
					if !q.penalized {
						t.Fatal("refused, though one of the address could have gone")
					}
				}
			},
			"leave": func(t *rapid.T) {
				if len(all) > 0 {
					rapid.SampledFrom(all).Draw(t, "who").p.Leave()
				}
			},
			"penalize": func(t *rapid.T) {
				if len(all) > 0 {
					rapid.SampledFrom(all).Draw(t, "who").p.Penalize()
				}
			},
			"": func(t *rapid.T) {
				sum := 0
				for _, places := range g.hosts {
					sum += len(places)
					if len(places) > small.PerHost || len(places) == 0 {
						t.Fatalf("an address has %d places", len(places))
					}
					for _, p := range places {
						if p.conn.(*conn).closed {
							t.Fatal("a connection that was closed has a place")
						}
					}
				}
				if sum != g.taken || sum > small.Places || len(g.offenders) > small.Offenders {
					t.Fatalf("%d places are taken, %d are counted; %d offenders", sum, g.taken, len(g.offenders))
				}
			},
		})
	})
}
