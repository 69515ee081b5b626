package amqp_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/amqp"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/rabbitmq"
	"github.com/custodymq/custody/systems/systemtest"
)

// Tests with the real server.

var update = flag.Bool("update", false, "write "+dialogueFile+" anew from a real dialogue")

const patience = 20 * time.Second

// sink keeps events in memory.
type sink struct {
	mu     sync.Mutex
	events []evidence.Event
}

func (s *sink) Record(e evidence.Event) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	return uint64(len(s.events))
}

// tap is the protocol, and keeps what its connections carried, in order.
type tap struct {
	amqp.Protocol
	mu     sync.Mutex
	said   []said
	frames []links.Frame
}

type tapped struct {
	links.Framer
	tap *tap
	to  evidence.Direction
}

func (f tapped) Next(buf []byte) (links.Frame, int, error) {
	f.tap.mu.Lock()
	defer f.tap.mu.Unlock()
	frame, n, err := f.Framer.Next(buf)
	if n > 0 {
		f.tap.said = append(f.tap.said, said{f.to, bytes.Clone(buf[:n])})
		f.tap.frames = append(f.tap.frames, frame)
	}
	return frame, n, err
}

func (p *tap) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	b, c := p.Protocol.NewConn(ix)
	return tapped{b, p, evidence.ToBroker}, tapped{c, p, evidence.ToClient}
}

func TestServer(t *testing.T) {
	system := rabbitmq.Profiles(1)[0]
	systemtest.Require(t, system)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	in, err := system.Start(ctx, systems.Env{
		Log:  func(string) (io.WriteCloser, error) { return os.Create(filepath.Join(t.TempDir(), "server.log")) },
		Sink: &sink{},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.Stop(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}()
	for name, check := range map[string]func(*rig){
		"a real client is understood":                       understandsTheClient,
		"a dropped accept leaves the others in place":       droppedAccept,
		"a dropped ack is none":                             droppedAck,
		"a dropped publish takes what follows it along":     droppedPublish,
		"deliveries are doubled, altered, late and missing": strikesOnDeliveries,
	} {
		t.Run(name, func(t *testing.T) { check(newRig(t, in.(systems.Networked).Address())) })
	}
}

// rig is a real client that reaches a real server over a link.
type rig struct {
	t       *testing.T
	ctx     context.Context
	server  string
	link    *links.Link
	tap     *tap
	conn    *client.Connection
	channel *client.Channel
	queue   string
}

func newRig(t *testing.T, server string) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, server: server, tap: &tap{}, queue: "framer-" + strings.ToLower(t.Name())}
	var err error
	r.link, err = links.Open(ctx, links.Options{Name: "c1", Upstream: server, Protocol: r.tap, Index: links.NewIndex(), Sink: &sink{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.link.Close() })
	r.connect()
	r.declare(r.queue, nil)
	return r
}

func (r *rig) connect() {
	r.t.Helper()
	conn, err := client.DialConfig("amqp://guest:guest@"+r.link.Addr(), client.Config{FrameSize: 4096, Heartbeat: -1})
	if err != nil {
		r.t.Fatal(err)
	}
	context.AfterFunc(r.ctx, func() { conn.CloseDeadline(time.Now()) })
	r.conn, r.channel = conn, must(conn.Channel())(r.t)
}

func (r *rig) declare(name string, arguments client.Table) {
	r.t.Helper()
	must(r.channel.QueueDeclare(name, false, false, false, false, arguments))(r.t)
	r.t.Cleanup(func() {
		conn := must(client.Dial("amqp://guest:guest@" + r.server))(r.t)
		defer conn.Close()
		must(must(conn.Channel())(r.t).QueueDelete(name, false, false, false))(r.t)
	})
}

func (r *rig) publish(queue, n, body string) *client.DeferredConfirmation {
	r.t.Helper()
	return must(r.channel.PublishWithDeferredConfirm("", queue, true, false, client.Publishing{
		Headers:      client.Table{"Custody-Key": "k"},
		DeliveryMode: client.Persistent,
		MessageId:    "m-" + n,
		Body:         evidence.Envelope{PublishID: "p1-" + n + "-1", BusinessID: "order-" + n, Body: []byte(body)}.Encode(),
	}))(r.t)
}

func (r *rig) confirmed(c *client.DeferredConfirmation, want bool) {
	r.t.Helper()
	if yes := must(c.WaitContext(r.ctx))(r.t); yes != want {
		r.t.Errorf("publish %d: confirmed %v, want %v", c.DeliveryTag, yes, want)
	}
}

func (r *rig) next(deliveries <-chan client.Delivery) client.Delivery {
	r.t.Helper()
	select {
	case d, ok := <-deliveries:
		if !ok {
			r.t.Fatal("the subscription ended")
		}
		return d
	case <-r.ctx.Done():
		r.t.Fatal("no delivery")
	}
	return client.Delivery{}
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// dialogue does one of everything with the real client: see understood.
func (r *rig) dialogue() {
	t := r.t
	t.Helper()
	r.declare(r.queue+"-full", client.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	r.publish(r.queue, "0", "before confirms") // nil: no confirm will come
	r.ok(r.channel.Confirm(false))
	r.confirmed(r.publish(r.queue, "1", "body"), true)
	r.confirmed(r.publish(r.queue, "2", ""), true)
	three, four := r.publish(r.queue, "3", strings.Repeat("long", 1100)), r.publish(r.queue, "4", "x")
	r.confirmed(three, true)
	r.confirmed(four, true)
	r.confirmed(r.publish("nobody-has-this", "5", "returned"), true)
	r.confirmed(r.publish(r.queue+"-full", "6", "too many"), false)

	deliveries := must(r.channel.Consume(r.queue, "c1", false, false, false, false, nil))(t)
	var d []client.Delivery
	for range 5 {
		d = append(d, r.next(deliveries))
	}
	r.ok(d[0].Nack(false, true))
	d = append(d, r.next(deliveries))
	r.ok(d[2].Ack(true))
	r.ok(r.channel.Cancel("c1", false))
	r.ok(d[3].Reject(true))
	again, found, err := r.channel.Get(r.queue, false)
	r.ok(err)
	if _, more, err := r.channel.Get(r.queue, false); !found || more || err != nil {
		t.Fatal(found, more, err)
	}
	r.ok(again.Ack(true))

	must(r.channel.Consume(r.queue+"-full", "c2", false, false, false, false, nil))(t)
	must(r.channel.QueueDelete(r.queue+"-full", false, false, false))(t)
	closed := r.channel.NotifyClose(make(chan *client.Error, 1))
	must(r.channel.PublishWithDeferredConfirm("no-such-exchange", "", false, false, client.Publishing{
		MessageId: "m-7", Body: evidence.Envelope{PublishID: "p1-7-1", BusinessID: "order-7"}.Encode(),
	}))(t)
	select {
	case <-closed:
	case <-r.ctx.Done():
		t.Fatal("the channel is still open")
	}
}

func understandsTheClient(r *rig) {
	t := r.t
	r.dialogue()
	r.ok(r.conn.Close())
	r.link.Close()
	check(t, r.tap.frames)
	if !*update || t.Failed() {
		return
	}
	var text bytes.Buffer
	for _, s := range r.tap.said {
		text.WriteString(arrows[s.to] + hex.EncodeToString(s.bytes) + "\n")
	}
	r.ok(os.WriteFile(dialogueFile, text.Bytes(), 0o600))
}

func (r *rig) arm(s links.Strike) *links.Armed {
	r.t.Helper()
	s.Label = "f"
	return must(r.link.Arm(s))(r.t)
}

func (r *rig) fired(a *links.Armed) {
	r.t.Helper()
	select {
	case <-a.Fired():
	case <-r.ctx.Done():
		r.t.Fatal("never fired")
	}
}

func droppedAccept(r *rig) {
	t := r.t
	r.ok(r.channel.Confirm(false))
	a := r.arm(links.Strike{Action: links.Drop, Kind: links.FrameAccept, Of: "order-1"})
	lost := r.publish(r.queue, "1", "x")
	r.fired(a)
	r.confirmed(r.publish(r.queue, "2", "x"), true)
	select {
	case <-lost.Done():
		t.Error("a dropped confirm arrived")
	default:
	}
}

func droppedAck(r *rig) {
	t := r.t
	r.publish(r.queue, "1", "x")
	r.publish(r.queue, "2", "x")
	deliveries := must(r.channel.Consume(r.queue, "", false, false, false, false, nil))(t)
	a := r.arm(links.Strike{Action: links.Drop, Kind: links.FrameAck, Of: "order-1"})
	for range 2 {
		r.ok(r.next(deliveries).Ack(false))
	}
	r.fired(a)
	r.ok(r.conn.Close())
	r.connect()
	again := r.next(must(r.channel.Consume(r.queue, "", true, false, false, false, nil))(t))
	if again.MessageId != "m-1" || !again.Redelivered {
		t.Errorf("came again: %s, redelivered %v", again.MessageId, again.Redelivered)
	}
}

func droppedPublish(r *rig) {
	t := r.t
	r.ok(r.channel.Confirm(false))
	a := r.arm(links.Strike{Action: links.Drop, Kind: links.FramePublish, Of: "order-1"})
	if a.Action() != links.Withhold {
		t.Errorf("a drop became %q", a.Action())
	}
	lost, behind := r.publish(r.queue, "1", "x"), r.publish(r.queue, "2", "x")
	r.fired(a)
	r.ok(a.Heal(r.ctx))
	r.confirmed(lost, false) // the connection is cut: no answer
	r.confirmed(behind, false)
}

func strikesOnDeliveries(r *rig) {
	for _, c := range []struct {
		action links.Action
		bodies []string
	}{
		{links.Duplicate, []string{"body", "body", "last"}},
		{links.Corrupt, []string{"bodx", "last"}},
		{links.Delay, []string{"body", "last"}},
		{links.Drop, []string{"last"}},
	} {
		r.t.Run(string(c.action), func(t *testing.T) {
			r := newRig(t, r.server)
			deliveries := must(r.channel.Consume(r.queue, "", false, false, false, false, nil))(t)
			a := r.arm(links.Strike{Action: c.action, Kind: links.FrameDeliver, Of: "order-1", Delay: time.Millisecond})
			r.publish(r.queue, "1", "body")
			r.publish(r.queue, "2", "last")
			for _, want := range c.bodies {
				if e := must(evidence.ParseEnvelope(r.next(deliveries).Body))(t); string(e.Body) != want {
					t.Errorf("got %q, want %q", e.Body, want)
				}
			}
			r.fired(a)
		})
	}
}
