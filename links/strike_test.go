package links_test

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

const three = "publish a\npublish b\npublish c\n"

func TestActionsThatGoOn(t *testing.T) {
	for _, c := range []struct {
		action  links.Action
		arrives string
		carried []string
	}{
		{links.Drop, "publish a\npublish c\n", []string{"publish a", "publish b struck=drop", "publish c"}},
		{links.Duplicate, "publish a\npublish b\npublish b\npublish c\n", []string{"publish a", "publish b", "publish b struck=duplicate", "publish c"}},
		{links.Corrupt, "publish a\nPUBLISH B\npublish c\n", []string{"publish a", "publish b struck=corrupt", "publish c"}},
		{links.Delay, three, []string{"publish a", "publish b struck=delay", "publish c"}},
	} {
		t.Run(string(c.action), func(t *testing.T) {
			r := newRig(t)
			client, broker := r.connect()
			a := r.arm(links.Strike{Action: c.action, Kind: "publish", Of: "b", Delay: time.Millisecond})
			client.send(three)
			broker.gets(c.arrives)
			fired(t, a)
			if got := r.sink.of(evidence.FrameCarried); !slices.Equal(got, c.carried) {
				t.Errorf("carried %q, want %q", got, c.carried)
			}
			want := []string{"publish b fault=f struck=" + string(c.action)}
			if got := r.sink.of(evidence.FaultFired); !slices.Equal(got, want) || a.Count() != 1 {
				t.Errorf("fired %q, %d times, want %q", got, a.Count(), want)
			}
			broker.send("deliver x\n")
			client.gets("deliver x\n")
		})
	}
}

func TestHoldKeepsOrderAndTheOtherDirectionLives(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	a := r.arm(links.Strike{Action: links.Hold, Kind: "publish", Of: "b"})
	client.send(three)
	fired(t, a)
	broker.gets("publish a\n")
	broker.getsNothing()
	broker.send("deliver x\n")
	client.gets("deliver x\n")
	client.Close() // the half-close does not overtake held frames
	broker.getsNothing()
	heal(t, a)
	if err := broker.ends("publish b\npublish c\n"); err != nil {
		t.Error(err)
	}
}

func TestReleaseWithoutForwardDiscardsAndCuts(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	a := r.arm(links.Strike{Action: links.Hold, Kind: "publish", Of: "b"})
	client.send(three)
	fired(t, a)
	broker.gets("publish a\n")
	a.Release(false)
	if err := broker.ends(""); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("broker saw %v, want a reset", err)
	}
	client.ends("")
}

func TestHoldAfterStopsBothDirections(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	a := r.arm(links.Strike{Action: links.HoldAfter, Kind: "publish", Of: "b"})
	client.send(three)
	fired(t, a)
	broker.gets("publish a\npublish b\n")
	broker.send("deliver x\n")
	client.getsNothing()
	broker.getsNothing()
	a.Release(true)
	client.gets("deliver x\n")
	broker.gets("publish c\n")
}

func TestCuts(t *testing.T) {
	for _, c := range []struct {
		action  links.Action
		arrives string
		reset   bool
	}{
		{links.CutBefore, "publish a\n", true},
		{links.CutAfter, "publish a\npublish b\n", false},
	} {
		t.Run(string(c.action), func(t *testing.T) {
			r := newRig(t)
			client, broker := r.connect()
			a := r.arm(links.Strike{Action: c.action, Kind: "publish", N: 2})
			client.send(three)
			for _, end := range []struct {
				peer *peer
				want string
			}{{broker, c.arrives}, {client, ""}} {
				if err := end.peer.ends(end.want); errors.Is(err, syscall.ECONNRESET) != c.reset {
					t.Errorf("a peer saw %v, want a reset: %v", err, c.reset)
				}
				end.peer.Close()
			}
			fired(t, a)
			if e := r.sink.await(t, evidence.LinkDisconnected, 1); e.Reason != strings.Replace(string(c.action), "-", " ", 1)+" publish" {
				t.Errorf("reason %q", e.Reason)
			}
		})
	}
}

func TestDropOfAPositionalReplyWithholdsAllAfterIt(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	if _, err := r.link.Arm(links.Strike{Action: links.Duplicate, Kind: "reply"}); !errors.As(err, new(*links.ErrIllegal)) {
		t.Fatalf("duplicate of a positional reply: %v", err)
	}
	a := r.arm(links.Strike{Action: links.Drop, Kind: "reply", N: 2})
	if a.Action != links.Withhold {
		t.Fatalf("action %q", a.Action)
	}
	broker.send("reply a\nreply b\nreply c\n")
	client.gets("reply a\n")
	r.sink.await(t, evidence.FaultFired, 2)
	client.getsNothing()
	client.send("publish a\n")
	broker.gets("publish a\n")
	heal(t, a)
	client.ends("")
	want := []string{"reply b fault=f struck=withhold", "reply c fault=f struck=withhold"}
	if got := r.sink.of(evidence.FaultFired); !slices.Equal(got, want) {
		t.Errorf("fired %q, want %q", got, want)
	}
}

func TestWhichMessageIsStruck(t *testing.T) {
	const sent = "ack 1\nhello\nack 2,3\npublish 9\nack 4\nack 5,6,7\nack 8\nack 2\n"
	for _, c := range []struct {
		name   string
		strike links.Strike
		struck []string
	}{
		{"the first", links.Strike{}, []string{"ack 1"}},
		{"the one that completes the third", links.Strike{N: 3}, []string{"ack 2,3"}},
		{"messages, not frames", links.Strike{N: 6}, []string{"ack 5,6,7"}},
		{"of a business ID", links.Strike{Of: "2"}, []string{"ack 2,3"}},
		{"its second", links.Strike{Of: "2", N: 2}, []string{"ack 2"}},
		{"every", links.Strike{Repeat: links.Every}, []string{"ack 1", "ack 2,3", "ack 4", "ack 5,6,7", "ack 8", "ack 2"}},
		{"every third", links.Strike{Repeat: links.Every, N: 3}, []string{"ack 2,3", "ack 5,6,7", "ack 2"}},
		{"all from the fifth on", links.Strike{Repeat: links.UntilHealed, N: 5}, []string{"ack 5,6,7", "ack 8", "ack 2"}},
		{"none", links.Strike{N: 99}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			client, broker := r.connect()
			c.strike.Action, c.strike.Kind = links.Drop, "ack"
			a := r.arm(c.strike)
			client.send(sent + "bye\n")
			arrives := sent
			var want []string
			for _, frame := range c.struck {
				arrives = strings.Replace(arrives, frame+"\n", "", 1)
				want = append(want, frame+" fault=f struck=drop")
			}
			broker.gets(arrives + "bye\n")
			if got := r.sink.of(evidence.FaultFired); !slices.Equal(got, want) || a.Count() != len(want) {
				t.Errorf("fired %q, want %q", got, want)
			}
		})
	}
}

func TestStrikesCountOverConnectionsAndEndWithHeal(t *testing.T) {
	r := newRig(t)
	first, firstBroker := r.connect()
	second, secondBroker := r.connect()
	a := r.arm(links.Strike{Action: links.Drop, Kind: "publish", N: 2, Repeat: links.UntilHealed})
	first.send("publish a\n")
	firstBroker.gets("publish a\n")
	second.send("publish b\n")
	fired(t, a)
	heal(t, a)
	heal(t, a)
	second.send("publish c\n")
	secondBroker.gets("publish c\n")
	if e := r.sink.await(t, evidence.FaultFired, 1); e.Conn != 2 || e.Link != "c1" || e.To != evidence.ToBroker {
		t.Errorf("%+v", e)
	}
}

func TestArmRefuses(t *testing.T) {
	r := newRig(t)
	for name, s := range map[string]links.Strike{
		"unknown action":  {Action: "melt", Kind: "ack"},
		"unknown kind":    {Action: links.Drop, Kind: "lookup"},
		"wrong direction": {Action: links.Drop, Kind: "ack", To: evidence.ToClient},
		"no duration":     {Action: links.Delay, Kind: "ack"},
		"negative count":  {Action: links.Drop, Kind: "ack", N: -1},
		"unknown repeat":  {Action: links.Drop, Kind: "ack", Repeat: "often"},
	} {
		if _, err := r.link.Arm(s); err == nil {
			t.Errorf("%s: armed", name)
		}
	}
	r.link.Close()
	if _, err := r.link.Arm(links.Strike{Action: links.Drop, Kind: "ack"}); !errors.Is(err, links.ErrClosed) {
		t.Errorf("on a closed link: %v", err)
	}
}

// A peer that stops reading blocks nothing else.
func TestPeerThatStopsReading(t *testing.T) {
	for name, end := range map[string]func(*rig, *links.Armed){
		"reset": func(r *rig, a *links.Armed) { r.link.Reset("r") },
		"down":  func(r *rig, a *links.Armed) { _, _ = r.link.Down("d") },
		"close": func(r *rig, a *links.Armed) { r.link.Close() },
		"release": func(r *rig, a *links.Armed) {
			fired(r.t, a)
			a.Release(false)
		},
		"heal, then close": func(r *rig, a *links.Armed) {
			fired(r.t, a)
			heal(r.t, a)
			r.link.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			client, broker := r.connect()
			a := r.arm(links.Strike{Action: links.Hold, Kind: "deliver", Of: "x"})
			broker.send("deliver x\n")
			flood := []byte(strings.Repeat("publish a\n", 1000))
			client.SetWriteDeadline(time.Now().Add(silence))
			for {
				if _, err := client.Write(flood); err != nil {
					if !errors.Is(err, syscall.ECONNRESET) && !isTimeout(err) {
						t.Fatal(err)
					}
					break
				}
			}
			end(r, a)
			r.sink.await(t, evidence.LinkDisconnected, 1)
		})
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

func TestUnobservedBytesPassAndAreNoted(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	client.send("publish a\n!binary")
	broker.gets("publish a\n!binary")
	client.send("publish b\n")
	broker.gets("publish b\n")
	if got := r.sink.of(evidence.FrameCarried); !slices.Equal(got, []string{"publish a"}) {
		t.Errorf("carried %q", got)
	}
	if e := r.sink.await(t, evidence.Noted, 1); !strings.Contains(e.Reason, "unobserved") {
		t.Errorf("%+v", e)
	}
}

func TestFrameOverTheLimitPassesUnobserved(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	long := strings.Repeat("x", links.MaxFrame+2)
	go io.WriteString(client.Conn, long)
	if _, err := io.CopyN(io.Discard, broker.Conn, int64(len(long))); err != nil {
		t.Fatal(err)
	}
	r.sink.await(t, evidence.Noted, 1)
}
