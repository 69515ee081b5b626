package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// scripted is an adapter in shell: answers are the cases of a case statement,
// where $id is that of the call.
func scripted(t *testing.T, b bounds, answers string) clients {
	t.Helper()
	const loop = `say() { printf '%s\n' "$1"; }
ok() { say '{"id":'"$id"',"ok":'"${1:-{\}}"'}'; }
fail() { say '{"id":'"$id"',"error":{"kind":"'"$1"'","text":"because"}}'; }
left() { say '{"event":"left","of":'"$id"'}'; }
while read -r line; do
  case "$line" in *'"op":"cancel"'*) ;; *) id=${line#*:}; id=${id%%,*};; esac
  case "$line" in
`
	file := filepath.Join(t.TempDir(), "adapter.sh")
	text := loop + answers + "\n  *) ok;;\n  esac\ndone\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := start([]string{"/bin/sh", file}, os.Stderr, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.close(context.Background()) }) // what broke it is what a test is about
	return clients{c, profile{Abilities: []systems.Need{systems.NeedNack, systems.NeedLookup}}}
}

var patient = bounds{call: time.Minute, grace: time.Minute, pulse: time.Minute}

// TestReceipts: what is known of a send that is not answered as hoped.
func TestReceipts(t *testing.T) {
	for name, c := range map[string]struct {
		send, cancel string // the answers to both
		want         evidence.Acceptance
		told, broken string
	}{
		"accepted":                     {send: `left; ok '{"acceptance":"accepted","heldBy":"store","messageId":"m"}'`, want: evidence.Accepted, told: systems.OK},
		"declined by a policy":         {send: `left; ok '{"acceptance":"declined","cause":"limit","told":"full"}'`, want: evidence.Declined, told: "full"},
		"unavailable, and never left":  {send: `fail unavailable`, want: evidence.Rejected, told: "because"},
		"disconnected, and never left": {send: `fail disconnected`, want: evidence.Rejected, told: "because"},
		"disconnected after it left":   {send: `left; fail disconnected`, want: evidence.Unknown, told: "because"},
		"cancelled after it left":      {send: `left`, cancel: `fail cancelled`, want: evidence.Unknown, told: "canceled"},
		"cancelled before it left":     {send: `:`, cancel: `fail cancelled`, want: evidence.Rejected, told: "canceled"},
		"answered though cancelled":    {send: `:`, cancel: `left; ok '{"acceptance":"accepted","heldBy":"store"}'`, want: evidence.Accepted, told: systems.OK},
		"the adapter itself failed":    {send: `fail failed`, want: evidence.Unknown, told: "because", broken: "send: failed: because"},
		"the adapter died":             {send: `exit 7`, want: evidence.Unknown, told: "code 7", broken: "it exited with code 7"},
		"accepted before it left":      {send: `ok '{"acceptance":"accepted","heldBy":"store"}'`, want: evidence.Unknown, told: "left", broken: "without the event left before"},
		"accepted by nobody":           {send: `left; ok '{"acceptance":"accepted"}'`, want: evidence.Unknown, told: "heldBy", broken: `the answer to send: the object: the field "heldBy" is missing`},
		"no such acceptance":           {send: `left; ok '{"acceptance":"yes"}'`, want: evidence.Unknown, told: "none of", broken: `acceptance: "yes" is none of unknown, accepted, declined, rejected`},
		"left what is no send":         {send: `id=99; left`, want: evidence.Unknown, told: "left", broken: "event left of call 99"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := scripted(t, patient, `*'"op":"send"'*) `+c.send+`;; *'"op":"cancel"'*) `+c.cancel+`;;`)
			p, err := k.Producer(t.Context(), systems.ProducerOptions{Name: "p1", Session: "p1#1"})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pending, err := p.Send(ctx, systems.Message{Destination: "orders", Payload: []byte("x")})
			if err != nil {
				t.Fatal(err)
			}
			if c.cancel != "" {
				cancel()
			}
			r := pending.Receipt(ctx)
			if r.Acceptance != c.want || !strings.Contains(r.ClientResult, c.told) {
				t.Errorf("%+v, want %v, told %q", r, c.want, c.told)
			}
			broken := k.close(t.Context())
			if c.broken == "" && broken != nil || c.broken != "" && (broken == nil || !strings.Contains(broken.Error(), c.broken)) {
				t.Errorf("broken by %v, want %q", broken, c.broken)
			}
		})
	}
}

// TestBroken: what breaks the conversation is told to whoever waits, as a failure
// to measure.
func TestBroken(t *testing.T) {
	short := bounds{call: time.Minute, grace: 2 * time.Second, pulse: 2 * time.Second}
	for name, c := range map[string]struct {
		answers, want string
		bounds        bounds
	}{
		"no JSON":                   {`*consumer*) ok; say "hello";;`, "write logs to standard error", patient},
		"an unknown event":          {`*consumer*) ok; say '{"event":"gnoe"}';;`, `no event "gnoe"`, patient},
		"a delivery of nothing":     {`*consumer*) ok; say '{"event":"delivery","session":"c1#1","delivery":"1"}';;`, `event delivery: the object: the field "message" is missing`, patient},
		"a delivery without body":   {`*consumer*) ok; say '{"event":"delivery","session":"c1#1","delivery":"1","message":{"destination":"q"}}';;`, `event delivery: message: the field "payload" is missing`, patient},
		"a delivery to nobody":      {`*consumer*) ok; say '{"event":"delivery","session":"c2#1","delivery":"1","message":{"destination":"q","payload":""}}';;`, `session "c2#1", which was never opened`, patient},
		"the same delivery twice":   {`*consumer*) ok; d='{"event":"delivery","session":"c1#1","delivery":"1","message":{"destination":"q","payload":""}}'; say "$d"; say "$d";;`, `delivery "1" of session c1#1 is not settled`, patient},
		"no base64":                 {`*consumer*) ok; say '{"event":"delivery","session":"c1#1","delivery":"1","message":{"destination":"q","payload":"?"}}';;`, "base64", patient},
		"answered twice":            {`*consumer*) ok; ok;;`, "each call is answered once", patient},
		"it dies":                   {`*consumer*) ok; echo out of memory >&2; exit 3;;`, "it exited with code 3; its standard error ends: out of memory", patient},
		"it stands still":           {`*consumer*) ok;; *ping*) ;;`, "no answer to a ping within 2s", short},
		"a fault that nobody armed": {`*consumer*) ok; say '{"event":"fired","label":"f"}';;`, `the fault "f", which was never armed`, patient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := scripted(t, c.bounds, c.answers)
			consumer, err := k.Consumer(t.Context(), systems.ConsumerOptions{Name: "c1", Session: "c1#1", Destination: "q", Subscription: "s", Window: 4})
			for err == nil {
				_, err = consumer.Receive(t.Context())
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want one line with %q", err, c.want)
			}
			if errors.Is(err, systems.ErrDisconnected) || errors.Is(err, systems.ErrUnavailable) {
				t.Errorf("%v: taken for a failure of the system", err)
			}
			if broken := k.close(t.Context()); broken == nil || !strings.Contains(broken.Error(), c.want) {
				t.Errorf("the end says %v", broken)
			}
		})
	}
}

// TestACallThatIsNotAnswered ends by its bound, and then with the adapter.
func TestACallThatIsNotAnswered(t *testing.T) {
	b := bounds{call: 100 * time.Millisecond, grace: 100 * time.Millisecond, pulse: time.Minute}
	k := scripted(t, b, `*rows*) ;; *'"op":"cancel"'*) ;;`)
	_, err := inspector{k.conn}.Rows(t.Context())
	if err == nil || !strings.Contains(err.Error(), "rows was cancelled, and is not answered within 100ms") {
		t.Errorf("%v", err)
	}
	<-k.child.Exited()
}

// TestItEndsAtTheEndOfItsInput: an adapter that does not is killed.
func TestItEndsAtTheEndOfItsInput(t *testing.T) {
	k := scripted(t, bounds{call: time.Minute, grace: 100 * time.Millisecond, pulse: time.Minute}, "")
	if err := k.close(t.Context()); err != nil {
		t.Error(err)
	}
	c, err := start(Command("sh -c 'sleep 600; true'"), nil, bounds{call: time.Minute, grace: 100 * time.Millisecond, pulse: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.close(t.Context()); err == nil || !strings.Contains(err.Error(), "it does not exit within 100ms of the end of its input") {
		t.Errorf("%v", err)
	}
	<-c.child.Exited()
}

// TestSessions: what is told of one that is gone, and that none comes back.
func TestSessions(t *testing.T) {
	k := scripted(t, patient, `*consumer*) ok; say '{"event":"gone","session":"c1#1","reason":"cut"}';; *producer*) fail unavailable;;`)
	c, err := k.Consumer(t.Context(), systems.ConsumerOptions{Name: "c1", Session: "c1#1", Destination: "q", Subscription: "s"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := c.Receive(t.Context()); !errors.Is(err, systems.ErrDisconnected) || !strings.Contains(err.Error(), "cut") {
			t.Errorf("receive on a session that is gone: %v", err)
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := k.Producer(t.Context(), systems.ProducerOptions{Name: "p1", Session: "p1#1"}); !errors.Is(err, systems.ErrUnavailable) {
		t.Errorf("a session that cannot be opened: %v", err)
	}
}

// TestHostKeepsToTheSchema: what the host writes is what the schema promises to
// adapters.
func TestHostKeepsToTheSchema(t *testing.T) {
	seen := filepath.Join(t.TempDir(), "seen")
	k := scripted(t, patient, `*) printf '%s\n' "$line" >>`+seen+`
	  case "$line" in
	  *'"op":"send"'*) left; ok '{"acceptance":"accepted","heldBy":"store"}';;
	  *consumer*) ok; say '{"event":"delivery","session":"c1#1","delivery":"1","message":{"destination":"q","payload":"aGVsbG8="}}';;
	  *ack*) ok '{"outcome":"confirmed"}';;
	  *lookup*) ok '{"acceptance":"accepted","standing":"stored"}';;
	  *'"op":"rows"'*) ok '{"trust":"exact","rows":[{"state":"pending","message":{"destination":"q","payload":""}}]}';;
	  *dead-letters*) ok '{"rows":[]}';;
	  *'"op":"position"'*) ok '{"position":"7"}';;
	  *) ok;; esac;;`)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := k.Producer(ctx, systems.ProducerOptions{Name: "p1", Session: "p1#1", Address: "127.0.0.1:1", Mode: systems.AtMostOnce})
	must(err)
	m := systems.Message{Destination: "q", MessageID: "m", Key: "k", Headers: map[string]string{"a": "b"}, Payload: []byte("hello"), TTL: 1500 * time.Millisecond}
	pending, err := p.Send(ctx, m)
	must(err)
	if r := pending.Receipt(ctx); r.Acceptance != evidence.Accepted {
		t.Fatalf("%+v", r)
	}
	_, err = p.(systems.Resolver).Lookup(ctx, "order-1")
	must(err)
	c, err := k.Consumer(ctx, systems.ConsumerOptions{Name: "c1", Session: "c1#1", Destination: "q", Subscription: "s", Window: 3, Seat: 2})
	must(err)
	d, err := c.Receive(ctx)
	must(err)
	if string(d.Message().Payload) != "hello" {
		t.Errorf("delivered %q", d.Message().Payload)
	}
	if outcome, err := d.(systems.Rejecter).Nack(ctx, "not now"); outcome != evidence.AckConfirmed {
		t.Error(outcome, err)
	}
	if outcome, err := d.Ack(ctx); outcome != evidence.AckConfirmed {
		t.Error(outcome, err)
	}
	s, err := inspector{k.conn}.Rows(ctx)
	must(err)
	if s.Count != 1 || len(s.Rows) != 1 {
		t.Errorf("%+v", s)
	}
	_, err = administrator{k.conn}.DeadLetters(ctx)
	must(err)
	must(administrator{k.conn}.Redrive(ctx, "m"))
	must(administrator{k.conn}.Discard(ctx, "m"))
	at, err := rewinder{k.conn}.Position(ctx, "q")
	must(err)
	must(rewinder{k.conn}.Rewind(ctx, "q", "s", systems.Point{Position: at}))
	must(rewinder{k.conn}.Rewind(ctx, "q", "s", systems.Point{Time: time.Now()}))
	must(clock{k.conn}.SetClock(ctx, -time.Hour))
	heal, err := storeFaulter{k.conn}.ArmStore(ctx, systems.StoreFault{Label: "f", Verb: "slow", N: 3, Every: true, Delay: time.Second, After: true, Operation: "insert"}, func(systems.StoreFired) {})
	must(err)
	must(heal(ctx))
	must(k.call(ctx, "connect", credentials{"default", "/tmp", "127.0.0.1:1", 2}, nil))
	must(k.call(ctx, "prepare", prepare{Profile: "default", Dir: "/tmp", Port: 9, Scale: 1, Seed: 1}, nil))
	must(p.Close(ctx))
	must(k.close(ctx))
	text, err := os.ReadFile(seen)
	must(err)
	ops := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		var c struct {
			Op string `json:"op"`
		}
		must(json.Unmarshal([]byte(line), &c))
		ops[c.Op] = true
		if err := check("call."+c.Op, []byte(line)); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	var schema struct {
		Defs map[string]any `json:"$defs"`
	}
	must(json.Unmarshal(Schema, &schema))
	for name := range schema.Defs {
		if op, is := strings.CutPrefix(name, "call."); is && !ops[op] && op != "cancel" && op != "describe" && op != "ready" && op != "ping" {
			t.Errorf("the schema has an op %s, and the host does not use it", op)
		}
	}
}
