package amqp_test

import (
	"context"
	"flag"
	"strings"
	"testing"
	"time"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/linktest"
	"github.com/custodymq/custody/systems/rabbitmq"
	"github.com/custodymq/custody/systems/systemtest"
)

var record = flag.Bool("record", false, "record the dialogue with the real server in testdata anew")

func TestServer(t *testing.T) {
	server := systemtest.Serve(t, rabbitmq.Profiles(1)[0])
	for name, check := range map[string]func(t *testing.T, server string){
		"a real client is understood":                       understandsTheClient,
		"a dropped accept leaves the others in place":       droppedAccept,
		"a dropped ack is none":                             droppedAck,
		"a dropped publish takes what follows it along":     droppedPublish,
		"deliveries are doubled, altered, late and missing": strikesOnDeliveries,
	} {
		t.Run(name, func(t *testing.T) { check(t, server) })
	}
}

// rig is a real client connected to a real server through a link.
type rig struct {
	*linktest.Rig
	server  string
	conn    *client.Connection
	channel *client.Channel
	queue   string
}

func newRig(t *testing.T, server string, p links.Protocol) *rig {
	t.Helper()
	r := &rig{Rig: linktest.Open(t, server, p), server: server, queue: "framer-" + strings.ToLower(t.Name())}
	r.connect()
	r.declare(r.queue, nil)
	return r
}

func (r *rig) connect() {
	r.T.Helper()
	conn, err := client.DialConfig("amqp://guest:guest@"+r.Link.Addr(), client.Config{FrameSize: 4096, Heartbeat: -1})
	if err != nil {
		r.T.Fatal(err)
	}
	context.AfterFunc(r.Ctx, func() { conn.CloseDeadline(time.Now()) })
	r.conn, r.channel = conn, must(conn.Channel())(r.T)
}

func (r *rig) declare(name string, arguments client.Table) {
	r.T.Helper()
	must(r.channel.QueueDeclare(name, false, false, false, false, arguments))(r.T)
	r.T.Cleanup(func() {
		conn := must(client.Dial("amqp://guest:guest@" + r.server))(r.T)
		defer conn.Close()
		must(must(conn.Channel())(r.T).QueueDelete(name, false, false, false))(r.T)
	})
}

func (r *rig) publish(queue, n, body string) *client.DeferredConfirmation {
	r.T.Helper()
	return must(r.channel.PublishWithDeferredConfirm("", queue, true, false, client.Publishing{
		Headers:      client.Table{"Custody-Key": "k"},
		DeliveryMode: client.Persistent,
		MessageId:    "m-" + n,
		Body:         linktest.Payload(n, body),
	}))(r.T)
}

func (r *rig) confirmed(c *client.DeferredConfirmation, want bool) {
	r.T.Helper()
	if yes := must(c.WaitContext(r.Ctx))(r.T); yes != want {
		r.T.Errorf("publish %d: confirmed %v, want %v", c.DeliveryTag, yes, want)
	}
}

func (r *rig) next(deliveries <-chan client.Delivery) client.Delivery {
	r.T.Helper()
	select {
	case d, ok := <-deliveries:
		if !ok {
			r.T.Fatal("the subscription ended")
		}
		return d
	case <-r.Ctx.Done():
		r.T.Fatal("no delivery")
	}
	return client.Delivery{}
}

// dialogue does one of everything with the real client: see understood.
func (r *rig) dialogue() {
	t := r.T
	t.Helper()
	r.declare(r.queue+"-full", client.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	r.publish(r.queue, "0", "before confirms") // nil: no confirm is expected
	r.Must(r.channel.Confirm(false))
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
	r.Must(d[0].Nack(false, true))
	d = append(d, r.next(deliveries))
	r.Must(d[2].Ack(true))
	r.Must(r.channel.Cancel("c1", false))
	r.Must(d[3].Reject(true))
	again, found, err := r.channel.Get(r.queue, false)
	r.Must(err)
	if _, more, err := r.channel.Get(r.queue, false); !found || more || err != nil {
		t.Fatal(found, more, err)
	}
	r.Must(again.Ack(true))

	must(r.channel.Consume(r.queue+"-full", "c2", false, false, false, false, nil))(t)
	must(r.channel.QueueDelete(r.queue+"-full", false, false, false))(t)
	closed := r.channel.NotifyClose(make(chan *client.Error, 1))
	must(r.channel.PublishWithDeferredConfirm("no-such-exchange", "", false, false, client.Publishing{
		MessageId: "m-7", Body: linktest.Payload("7", ""),
	}))(t)
	select {
	case <-closed:
	case <-r.Ctx.Done():
		t.Fatal("the channel is still open")
	}
}

func understandsTheClient(t *testing.T, server string) {
	recorder := &linktest.Recorder{Protocol: protocol()}
	r := newRig(t, server, recorder)
	r.dialogue()
	r.Must(r.conn.Close())
	r.Link.Close()
	check(t, recorder.Carried().Understood(t, protocol()))
	if *record && !t.Failed() {
		recorder.Carried().Write(t, dialogueFile)
	}
}

func droppedAccept(t *testing.T, server string) {
	r := newRig(t, server, protocol())
	r.Must(r.channel.Confirm(false))
	a := r.Arm(links.Strike{Action: links.Drop, Kind: links.FrameAccept, Of: "order-1"})
	lost := r.publish(r.queue, "1", "x")
	r.Fired(a)
	r.confirmed(r.publish(r.queue, "2", "x"), true)
	select {
	case <-lost.Done():
		t.Error("a dropped confirm arrived")
	default:
	}
}

func droppedAck(t *testing.T, server string) {
	r := newRig(t, server, protocol())
	r.publish(r.queue, "1", "x")
	r.publish(r.queue, "2", "x")
	deliveries := must(r.channel.Consume(r.queue, "", false, false, false, false, nil))(t)
	a := r.Arm(links.Strike{Action: links.Drop, Kind: links.FrameAck, Of: "order-1"})
	for range 2 {
		r.Must(r.next(deliveries).Ack(false))
	}
	r.Fired(a)
	r.Must(r.conn.Close())
	r.connect()
	again := r.next(must(r.channel.Consume(r.queue, "", true, false, false, false, nil))(t))
	if again.MessageId != "m-1" || !again.Redelivered {
		t.Errorf("came again: %s, redelivered %v", again.MessageId, again.Redelivered)
	}
}

func droppedPublish(t *testing.T, server string) {
	r := newRig(t, server, protocol())
	r.Must(r.channel.Confirm(false))
	a := r.Arm(links.Strike{Action: links.Drop, Kind: links.FramePublish, Of: "order-1"})
	if a.Action != links.Withhold {
		t.Errorf("a drop became %q", a.Action)
	}
	lost, behind := r.publish(r.queue, "1", "x"), r.publish(r.queue, "2", "x")
	r.Fired(a)
	r.Must(a.Heal(r.Ctx))
	r.confirmed(lost, false) // the connection is cut: no answer
	r.confirmed(behind, false)
}

func strikesOnDeliveries(t *testing.T, server string) {
	linktest.StrikeDeliveries(t, func(t *testing.T) linktest.Dialogue {
		r := newRig(t, server, protocol())
		deliveries := must(r.channel.Consume(r.queue, "", false, false, false, false, nil))(t)
		return linktest.Dialogue{
			Rig:     r.Rig,
			Publish: func(n, body string) { r.publish(r.queue, n, body) },
			Receive: func() []byte { return r.next(deliveries).Body },
		}
	})
}
