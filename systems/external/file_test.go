package external

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
)

const whole = `system: redis:aof-always-claim
name: staging
address: 127.0.0.1:6379
user-from: REDIS_USER
password-from: REDIS_PASSWORD
tls: {ca: ca.pem, server-name: redis.internal}
claims:
  - {guarantee: no-accepted-loss, under: [client-crash, link]}
  - {guarantee: survives}
limits: {recovery-bound: 20s, drain-deadline: 40s}
known: [{guarantee: ack-is-final, reason: ticket 7, until: 2027-01-31}]
start: [systemctl, start, redis]
stop: [systemctl, stop, redis]
kill: [systemctl, kill, --signal=KILL, redis]
`

func TestParse(t *testing.T) {
	f, err := parse("etc/s.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	if f.System != "redis:aof-always-claim" || f.Name != "staging" || f.TLS.CA != "etc/ca.pem" || len(f.Kill) != 4 ||
		f.Claims[0].Under[1] != evidence.Link || f.Known[0].Until != "2027-01-31" || f.Limits.RecoveryBound != 20*time.Second {
		t.Errorf("%+v", f)
	}
	l := f.Limits.over(evidence.Limits{RecoveryBound: time.Second, InFlightBound: time.Second, OrderScope: "key"}, 2)
	if l != (evidence.Limits{RecoveryBound: 40 * time.Second, DrainDeadline: 80 * time.Second, InFlightBound: time.Second, OrderScope: "key"}) {
		t.Errorf("limits %+v", l)
	}
	if f, err = parse("etc/other.yml", []byte("system: nats\naddress: localhost:4222\n")); err != nil || f.Name != "other" {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestParseTellsWhatIsWrong(t *testing.T) {
	swap := func(old, with string) string { return strings.Replace(whole, old, with, 1) }
	for name, c := range map[string]struct{ text, want string }{
		"empty":                {"", "s.yaml:1: a profile is a list of FIELD: VALUE"},
		"a list":               {"- a\n", "s.yaml:1: a profile is"},
		"no yaml":              {"system: [\n", "s.yaml: line "},
		"an unknown field":     {swap("user-from", "user-form"), "s.yaml:4: user-form: a profile has no such field; did you mean user-from?"},
		"an unknown limit":     {swap("recovery-bound", "recovery-bond"), "s.yaml:10: recovery-bond: limits has no such field; did you mean recovery-bound?"},
		"an unknown of tls":    {swap("server-name", "name"), "s.yaml:6: name: tls has no such field"},
		"an unknown of known":  {swap("reason:", "why:"), "s.yaml:11: why: known has no such field"},
		"a field twice":        {whole + "name: b\n", "already"},
		"a wrong type":         {swap("[systemctl, start, redis]", "systemctl start redis"), "line 12"},
		"no period":            {swap("20s", "soon"), "line 10"},
		"a negative period":    {swap("20s", "-20s"), "s.yaml:10: limits.recovery-bound: -20s is negative"},
		"a bound of years":     {swap("20s", "262800h"), "s.yaml:10: limits.recovery-bound: 262800h0m0s is more than 24h0m0s"},
		"no system":            {swap("system: redis:aof-always-claim", ""), "s.yaml:1: system: name the adapter"},
		"no address":           {swap("127.0.0.1:6379", "here"), `s.yaml:3: address: "here" is no address; write HOST:PORT`},
		"a strange name":       {swap("name: staging", "name: a b"), "s.yaml:2: name: "},
		"no such guarantee":    {swap("no-accepted-loss", "no-accepted-los"), `s.yaml:8: claims[0].guarantee: no guarantee "no-accepted-los"; did you mean no-accepted-loss?`},
		"no such class":        {swap("client-crash", "client-crush"), `no class of fault "client-crush"; did you mean client-crash?`},
		"no such known":        {swap("ack-is-final", "ack"), `s.yaml:11: known[0].guarantee: no guarantee "ack"`},
		"no day":               {swap("2027-01-31", "soon"), `s.yaml:11: known[0].until: "soon" is no date`},
		"a user alone":         {swap("password-from: REDIS_PASSWORD\n", ""), "password-from: a user without a password"},
		"a kill alone":         {swap("start: [systemctl, start, redis]\n", ""), "give all of start, stop and kill"},
		"an unknown behaviour": {whole + "behaviour: {ack-confirm: true}\n", "s.yaml:15: ack-confirm: behaviour has no such field; did you mean ack-confirms?"},
		"no truth":             {whole + "behaviour: {ack-confirms: perhaps}\n", "line 15"},
		"dropped and kept":     {swap("recovery-bound: 20s", "max-attempts: 3, drops-after: 3"), "s.yaml:10: limits.drops-after: with max-attempts"},
		"negative deliveries":  {swap("recovery-bound: 20s", "drops-after: -1"), "s.yaml:10: limits.drops-after: -1 is negative"},
		"no such scope":        {swap("recovery-bound: 20s", "order-scope: stream"), `s.yaml:10: limits.order-scope: no scope "stream"`},
	} {
		if _, err := parse("s.yaml", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", name, err, c.want)
		}
	}
}

// TestOnlyARegularFileIsAProfile checks that opening a FIFO or a device neither
// blocks nor reads endlessly.
func TestOnlyARegularFileIsAProfile(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "p.yaml")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{fifo: "a FIFO", "/dev/zero": "a device", t.TempDir(): "a folder"} {
		if _, err := read(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("tls: [a]\nclaims: {guarantee: [x]}\n&a a: *a\n"))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = parse("s.yaml", text) })
}

// TestBoundsAreStated checks that claiming a bound requires stating it.
func TestBoundsAreStated(t *testing.T) {
	for _, c := range []struct{ guarantee, limit string }{{"answered", "answer-bound: 2s"}, {"progress", "progress-bound: 2s"}, {"bounded-queue", "max-pending: 5"}} {
		text := strings.Replace(whole, "{guarantee: survives}", "{guarantee: "+c.guarantee+"}", 1)
		check := func(text string) error {
			f, err := parse("s.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			return f.checkClaims(evidence.Profile{Limits: f.Limits.over(evidence.Limits{}, 1)})
		}
		name, _, _ := strings.Cut(c.limit, ":")
		if err := check(text); err == nil || !strings.Contains(err.Error(), "s.yaml:9: claims[1].guarantee: "+c.guarantee+" is claimed") || !strings.Contains(err.Error(), name) {
			t.Errorf("%s without its bound: %v", c.guarantee, err)
		}
		if err := check(strings.Replace(text, "limits: {", "limits: {"+c.limit+", ", 1)); err != nil {
			t.Errorf("%s with its bound: %v", c.guarantee, err)
		}
	}
	if _, err := parse("s.yaml", []byte(strings.Replace(whole, "limits: {", "limits: {max-pending: -1, ", 1))); err == nil {
		t.Error("a negative bound is taken")
	}
}

// TestBehaviour checks that everything the judgement depends on can be given, and
// that contradicting claims are rejected.
func TestBehaviour(t *testing.T) {
	text := strings.Replace(whole, "{guarantee: survives}", "{guarantee: ack-is-final, under: [broker-crash]}", 1)
	base := evidence.Profile{AckConfirms: true, KeepsRows: true, Limits: evidence.Limits{MaxAttempts: 5}}
	f, err := parse("s.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	err = f.checkClaims(f.Behaviour.over(base))
	if err == nil || !strings.Contains(err.Error(), "s.yaml:9: claims[1].under: ack-is-final under broker-crash promises") {
		t.Errorf("a claim without its ground: %v", err)
	}
	f, err = parse("s.yaml", []byte(strings.Replace(text, "limits: {", "limits: {drops-after: 4, ", 1)+"behaviour: {confirm-is-durable: true, keeps-rows: false, marks-again: true, keeps-subscribers: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := f.Behaviour.over(base)
	if err := f.checkClaims(p); err != nil {
		t.Error(err)
	}
	if !p.AckConfirms || !p.ConfirmIsDurable || p.KeepsRows || !p.MarksAgain || !p.KeepsSubscribers {
		t.Errorf("%+v", p)
	}
	if l := f.Limits.over(base.Limits, 1); l.DropsAfter != 4 || l.MaxAttempts != 0 {
		t.Errorf("%+v", l)
	}
}
