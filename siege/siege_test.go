package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/process"
)

func TestMain(m *testing.M) {
	process.RunRole(map[string]func() process.Role{attackersRole: attackers})
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built != "" {
			os.RemoveAll(filepath.Dir(built))
		}
		os.Exit(code)
	}))
}

var built string

// command builds the broker once, the way make does.
func command(t *testing.T) string {
	t.Helper()
	if built != "" {
		return built
	}
	folder, err := os.MkdirTemp("", "siege-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "custody")
	build := exec.Command("go", "build", "-o", path, "../cmd/custody")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		os.RemoveAll(folder)
		t.Fatalf("%v: %s", err, said)
	}
	built = path
	return path
}

// limited returns the memory limit for a test: none where none can be set, unless
// CUSTODY_REQUIRE demands one.
func limited(t *testing.T) string {
	t.Helper()
	l, err := NewLimit(1 << 30)
	switch {
	case err == nil:
		l.Close()
		return "1GiB"
	case os.Getenv("CUSTODY_REQUIRE") != "":
		t.Fatal(err)
	}
	t.Log("without a limit:", err)
	return "0"
}

func besiege(t *testing.T, o options) (exit int, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var out strings.Builder
	exit, err := run(ctx, o, &out)
	if err != nil {
		fmt.Fprintln(&out, err)
	}
	return exit, out.String()
}

func TestAShortSiege(t *testing.T) {
	exit, said := besiege(t, options{
		broker: command(t), out: t.TempDir(), memory: limited(t), lasting: 10 * time.Second, kill: 3 * time.Second, rate: 50, seed: 1,
		attacks: "flood-unread,sessions-come-and-go,guesses,huge-frames-announced",
	})
	t.Log(said)
	if exit != 0 {
		t.Errorf("exit code %d", exit)
	}
}

// TestABrokerThatEndsByItselfHasNotHeld checks that the siege fails a broker that
// ends by itself, whatever the other figures say.
func TestABrokerThatEndsByItselfHasNotHeld(t *testing.T) {
	ends := filepath.Join(t.TempDir(), "ends")
	if err := os.WriteFile(ends, []byte("#!/bin/sh\nexec timeout -s KILL 3 "+command(t)+" \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	exit, said := besiege(t, options{broker: ends, out: t.TempDir(), memory: "0", lasting: time.Minute, rate: 50, attacks: "guesses"})
	if exit != 1 || !strings.Contains(said, "ended by itself") {
		t.Errorf("exit code %d:\n%s", exit, said)
	}
}

func TestASiegeThatCannotBeLaidIsNoVerdict(t *testing.T) {
	used := t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o := options{broker: "/bin/true", memory: "0", lasting: time.Minute, rate: 1, attacks: "guesses"}
	for name, c := range map[string]struct {
		change func(*options)
		exit   int
		want   string
	}{
		"no broker":         {func(o *options) { o.broker = "/no/such" }, 3, "make build"},
		"one that is none":  {func(*options) {}, 3, "did not become ready"},
		"a used folder":     {func(o *options) { o.out = used }, 3, "not empty"},
		"no such attack":    {func(o *options) { o.attacks = "charm" }, 2, `"charm"`},
		"too short":         {func(o *options) { o.lasting = time.Second }, 2, "at least"},
		"no size of memory": {func(o *options) { o.memory = "much" }, 2, `"much"`},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.out = t.TempDir()
			c.change(&o)
			if exit, said := besiege(t, o); exit != c.exit || !strings.Contains(said, c.want) {
				t.Errorf("exit code %d, want %d, with %q in:\n%s", exit, c.exit, c.want, said)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	const came = "sent 0\naccepted 0 m-1\ndelivered 0 m-1\nsettled 0\n"
	all := Custody{Sent: 1, Accepted: 1, Delivered: 1, Settled: 1}
	for name, c := range map[string]struct {
		journal string
		want    func(*Custody)
	}{
		"whole":              {came, func(*Custody) {}},
		"delivered again":    {came + "delivered 0 m-1\n", func(c *Custody) { c.Again = 1 }},
		"lost":               {came + "sent 1\naccepted 1 m-2\n", func(c *Custody) { c.Sent, c.Accepted, c.Lost, c.Examples = 2, 2, 1, []string{"lost 1"} }},
		"kept":               {came + "sent 1\naccepted 1 m-2\nkept 1 dead\n", func(c *Custody) { c.Sent, c.Accepted, c.Kept = 2, 2, 1 }},
		"unknown is no loss": {came + "sent 1\nunknown 1\n", func(c *Custody) { c.Sent, c.Unknown = 2, 1 }},
		"unknown that came":  {came + "sent 1\nunknown 1\ndelivered 1\n", func(c *Custody) { c.Sent, c.Unknown, c.Delivered = 2, 1, 2 }},
		"refused that came": {came + "sent 1\nrefused 1\ndelivered 1\n", func(c *Custody) {
			c.Sent, c.Refused, c.Delivered, c.Invented, c.Examples = 2, 1, 2, 1, []string{"invented 1"}
		}},
		"came before its answer": {"sent 0\ndelivered 0 m-1\naccepted 0 m-1\nsettled 0\n", func(*Custody) {}},
		"never sent":             {came + "delivered 7 m-9\n", func(c *Custody) { c.Delivered, c.Invented, c.Examples = 2, 1, []string{"invented 7"} }},
		"altered":                {came + "altered 0 m-1\n", func(c *Custody) { c.Invented, c.Examples = 1, []string{"invented 0"} }},
		"unanswered":             {came + "sent 1\nunanswered 1\n", func(c *Custody) { c.Sent, c.Unanswered, c.Examples = 2, 1, []string{"unanswered 1"} }},
	} {
		t.Run(name, func(t *testing.T) {
			want := all
			c.want(&want)
			if got, err := Judge(strings.NewReader(c.journal)); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, want)
			}
		})
	}
	for _, bad := range []string{"vanished 1\n", "sent\n", "sent x\n"} {
		if _, err := Judge(strings.NewReader("sent 0\n" + bad)); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestWhatFiguresShow(t *testing.T) {
	held := func() Figures {
		return Figures{Limit: 1 << 30, Custody: Custody{Accepted: 1, Delivered: 1}, UnderWay: map[string]int64{"guesses": 1}}
	}
	for name, c := range map[string]struct {
		change             func(*Figures)
		faults, unmeasured string
	}{
		"all is well":        {func(*Figures) {}, "", ""},
		"lost":               {func(f *Figures) { f.Custody.Lost = 2 }, "2 accepted messages are lost", ""},
		"invented":           {func(f *Figures) { f.Custody.Invented = 1 }, "1 messages were invented", ""},
		"kept back":          {func(f *Figures) { f.Custody.Kept = 1 }, "undelivered", ""},
		"unanswered":         {func(f *Figures) { f.Custody.Unanswered = 1 }, "not answered", ""},
		"killed for memory":  {func(f *Figures) { f.Used.OOMKills = 1 }, "killed for memory", ""},
		"memory is kept":     {func(f *Figures) { f.After = 600 << 20 }, "600 MiB are held", ""},
		"ended":              {func(f *Figures) { f.Broke = []string{"ended by itself"} }, "ended by itself", ""},
		"nothing came":       {func(f *Figures) { f.Custody.Delivered = 0 }, "", "no honest message"},
		"an attack was none": {func(f *Figures) { f.UnderWay["guesses"] = 0 }, "", "guesses never came under way"},
	} {
		t.Run(name, func(t *testing.T) {
			f := held()
			c.change(&f)
			for got, want := range map[string]string{strings.Join(f.Faults(), ";"): c.faults, strings.Join(f.Unmeasured(), ";"): c.unmeasured} {
				if (want == "") != (got == "") || !strings.Contains(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
}

// TestTheLimitHolds checks that the kernel enforces the limit and counts its
// kills.
func TestTheLimitHolds(t *testing.T) {
	if limited(t) == "0" {
		t.Skip("no limit can be set here")
	}
	l, err := NewLimit(32 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	path, args := l.Command("/bin/sh", "-c", "head -c 200000000 /dev/zero | tail -c 200000000 >/dev/null")
	greedy := exec.Command(path, args...)
	greedy.Stdout, greedy.Stderr = io.Discard, io.Discard
	_ = greedy.Run() // the shell itself may or may not survive
	used, err := l.Used()
	if err != nil || used.OOMKills == 0 || used.Peak > 32<<20 {
		t.Errorf("used %+v, %v", used, err)
	}
}
