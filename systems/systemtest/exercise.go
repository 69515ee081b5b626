// Package systemtest is the conformance suite of adapters: what a system's
// package must do before a verdict about that system means anything.
package systemtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// Exercise runs the suite against one system. Each obligation is a subtest with
// an instance of its own; what the system lacks is skipped with the reason it
// gives. A system that is not Installed is skipped, with how to get it; where
// the environment variable CUSTODY_REQUIRE is set, that is a failure. Call
// process.RunRole in TestMain first if the system needs it.
func Exercise(t *testing.T, s systems.System) {
	Require(t, s)
	before := goleak.IgnoreCurrent()
	servers := process.NewPool()
	for _, o := range obligations {
		t.Run(o.name, func(t *testing.T) {
			ignore := goleak.IgnoreCurrent()
			b := start(t, s, servers)
			o.check(b)
			b.stop()
			if servers.Idle() > 0 {
				return // its goroutines live on with it, and are looked for at the end
			}
			if err := goleak.Find(ignore); err != nil {
				t.Errorf("stopped, but not everything was released: %v", err)
			}
		})
	}
	if err := servers.Close(t.Context()); err != nil {
		t.Errorf("end the servers that were kept between subtests: %v", err)
	}
	if err := goleak.Find(before); err != nil {
		t.Errorf("all stopped, but not everything was released: %v", err)
	}
}

// Require is Needs of a system: what its Installed says.
func Require(t testing.TB, s systems.System) {
	t.Helper()
	if need, ok := s.(systems.Installed); ok {
		Needs(t, need.Installed())
	}
}

// Needs skips the test if the machine lacks something; where the environment
// variable CUSTODY_REQUIRE is set, it fails.
func Needs(t testing.TB, missing error) {
	t.Helper()
	switch {
	case missing == nil:
	case os.Getenv("CUSTODY_REQUIRE") != "":
		t.Fatalf("required, but: %v", missing)
	default:
		t.Skip(missing)
	}
}

// Serve runs a system, which has to be Networked, until the end of a test that
// is not about the adapter. It gives the server's address.
func Serve(t *testing.T, s systems.System) (address string) {
	t.Helper()
	Require(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	instance, err := s.Start(ctx, Env(t, Discard{}, nil))
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := instance.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return instance.(systems.Networked).Address()
}

// obligations of an adapter, in the order in which a failure is best read.
var obligations = []struct {
	name  string
	check func(*bench)
}{
	{"the description is whole and matches the abilities", described},
	{"an accepted message is delivered as it was sent", delivered},
	{"what nobody is there to receive is Declined and not stored, or Lacks names decline", declined},
	{"a logical subscriber outlives its sessions exactly where the profile says so", keptSubscriber},
	{"each logical subscriber is given every message, or Lacks names fan-out", fannedOut},
	{"a consumer is handed no more than its window, or Lacks names window", windowed},
	{"competing consumers settle every message between them", competing},
	{"clients connected with credentials alone reach the instance", connected},
	{"an unsettled message comes again under the same ID", redelivered},
	{"a rejected delivery comes again", nacked},
	{"a cancelled call returns and the session goes on", cancelled},
	{"a call cancelled before it began is Rejected, and nothing was stored", cancelledBefore},
	{"a publish cancelled after it left is Unknown", cancelledAfter},
	{"a refused connection on the only try is unavailable or Rejected", refused},
	{"a publish whose answer is lost is Unknown", answerLost},
	{"a session whose connection is cut never comes back", cut},
	{"closing a session ends what waits on it", closed},
	{"a killed system disconnects, and nothing is retried behind the caller", killed},
	{"a restart keeps the address and the data", restarted},
	{"the rows show what is pending", rows},
}

func described(b *bench) {
	d := b.system.Describe()
	if d.System == "" || d.Profile.Name == "" || d.Profile.Summary == "" {
		b.t.Errorf("system %q, profile %q, summary %q: each has a text", d.System, d.Profile.Name, d.Profile.Summary)
	}
	if len(d.Versions) == 0 {
		b.t.Error("no versions: a verdict is about one version of a system")
	}
	for _, c := range d.Claims {
		if c.Source == "" || c.Owner == "" {
			b.t.Errorf("claim of %s: owner %q, source %q: say who promises it and where", c.Guarantee, c.Owner, c.Source)
		}
	}
	l := d.Profile.Limits
	if l.RecoveryBound <= l.RedeliveryPeriod {
		b.t.Errorf("recovery bound %v is not longer than the redelivery period %v", l.RecoveryBound, l.RedeliveryPeriod)
	}
	if longest := max(l.RecoveryBound, l.RedeliveryPeriod, l.DeleteBound, l.InFlightBound); l.DrainDeadline <= longest {
		b.t.Errorf("drain deadline %v does not exceed every bound (%v)", l.DrainDeadline, longest)
	}
	for _, need := range systems.Needs() {
		met := systems.Meets(need, b.system, b.instance)
		if need == systems.NeedLookup {
			_, met = b.producer().(systems.Resolver)
		}
		if need == systems.NeedProbes {
			continue // an adapter may have some, and owes none
		}
		// Lacks may name what is implemented: for other profiles of the adapter.
		if _, lacks := d.Lacks[need]; !met && !lacks {
			b.t.Errorf("%s is not implemented, and Lacks does not say why", need)
		}
	}
	for need, reason := range d.Lacks {
		if reason == "" {
			b.t.Errorf("%s is lacked without a reason", need)
		}
	}
}

func delivered(b *bench) {
	consumer := b.consumer(4)
	producer := b.producer()
	sent := []systems.Message{
		b.message("order-1", "first"),
		b.message("order-2", ""),
		b.message("order-3", string(make([]byte, 64<<10))),
	}
	sent[0].Key, sent[0].Headers = "customer-7", map[string]string{"Region": "north", "trace": "a b: c"}
	pending := make([]systems.Pending, len(sent))
	for i, m := range sent {
		pending[i] = b.send(producer, m) // all before any answer is waited for
	}
	receipts := make(map[string]systems.Receipt)
	for i, m := range sent {
		receipt := b.accepted(pending[i])
		if again := pending[i].Receipt(b.ctx); again != receipt {
			b.t.Errorf("the receipt changed from %+v to %+v", receipt, again)
		}
		receipts[businessOf(m)] = receipt
	}
	// In any order: that one is kept is a claim of its own.
	for range sent {
		d := b.receive(consumer)
		got := d.Message()
		i := slices.IndexFunc(sent, func(m systems.Message) bool { return businessOf(m) == businessOf(got) })
		if i < 0 {
			b.t.Fatalf("delivered was %q, which nobody sent or which came before", businessOf(got))
		}
		m := sent[i]
		if string(got.Payload) != string(m.Payload) || digestOf(got) != digestOf(m) {
			b.t.Errorf("message %d was delivered with key %q, headers %v, %d bytes of payload; sent were %q, %v, %d bytes",
				i+1, got.Key, got.Headers, len(got.Payload), m.Key, m.Headers, len(m.Payload))
		}
		if got.Destination != m.Destination {
			b.t.Errorf("delivered from %q, sent to %q", got.Destination, m.Destination)
		}
		if receipt := receipts[businessOf(m)]; receipt.MessageID != "" && got.MessageID != receipt.MessageID {
			b.t.Errorf("accepted as %q, delivered as %q", receipt.MessageID, got.MessageID)
		}
		b.marked(d, 1)
		b.settle(d)
	}
}

func declined(b *bench) {
	producer := b.producer()
	pending := b.send(producer, b.message("order-1", "to nobody"))
	if !b.declines() {
		b.accepted(pending)
		return
	}
	if r := pending.Receipt(b.ctx); r.Acceptance != evidence.Declined || r.ClientResult == "ok" || r.ClientResult == "" {
		b.t.Errorf("publish with no consumer online: %+v, want declined, with what the application is told", r)
	} else if r.Cause != evidence.CauseNoConsumer {
		b.t.Errorf("publish with no consumer online was declined for %q, want %q", r.Cause, evidence.CauseNoConsumer)
	}
	b.onlySentinel(producer, b.consumer(1))
}

// keptSubscriber: KeepsSubscribers is what a loss is judged by. Said without
// being so it accuses the system, and left out it hides a loss.
func keptSubscriber(b *bench) {
	consumer := b.consumer(1)
	b.close(consumer)
	producer := b.producer()
	pending := b.send(producer, b.message("order-1", "to nobody yet"))
	if !b.system.Describe().Profile.KeepsSubscribers {
		pending.Receipt(b.ctx) // whatever it is
		b.onlySentinel(producer, b.consumer(1))
		return
	}
	b.accepted(pending)
	b.settle(b.next(b.consumer(1), "order-1", nil))
}

func fannedOut(b *bench) {
	b.needs(systems.NeedFanOut)
	var consumers []systems.Consumer
	for i, name := range []string{"billing", "stock"} {
		o := b.consumerOptions(b.session("c"+strconv.Itoa(i+1)), b.address, 1)
		o.Name, o.Subscription = "c"+strconv.Itoa(i+1), name
		consumers = append(consumers, b.open(o))
	}
	b.accepted(b.send(b.producer(), b.message("order-1", "for both")))
	for _, c := range consumers {
		b.settle(b.next(c, "order-1", nil))
	}
}

// notMore is how long a message that must not come is waited for: well below
// the time after which a profile here hands out again what it has handed out.
const notMore = 150 * time.Millisecond

func windowed(b *bench) {
	b.needs(systems.NeedWindow)
	consumer, producer := b.consumer(2), b.producer()
	for i := range 3 {
		b.accepted(b.send(producer, b.message(fmt.Sprintf("order-%d", i+1), "")))
	}
	first, second := b.receive(consumer), b.receive(consumer)
	short, cancel := context.WithTimeout(b.ctx, notMore)
	defer cancel()
	if d, err := consumer.Receive(short); err == nil {
		b.t.Fatalf("with a window of two and two unacknowledged, %s came too", businessOf(d.Message()))
	}
	b.settle(first)
	third := b.receive(consumer)
	b.settle(second)
	b.settle(third)
}

func competing(b *bench) {
	const messages = 20
	producer := b.producer()
	consumers := []systems.Consumer{b.consumer(1), b.competitor(1)}
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	type result struct {
		id  string
		err error
	}
	results := make(chan result)
	var working sync.WaitGroup
	for _, consumer := range consumers {
		working.Go(func() {
			for ctx.Err() == nil {
				id, err := receiveAndAck(ctx, consumer)
				select {
				case results <- result{id, err}:
				case <-ctx.Done():
				}
			}
		})
	}
	for i := range messages {
		b.accepted(b.send(producer, b.message(fmt.Sprintf("order-%d", i+1), "")))
	}
	settled := make(map[string]bool)
	for len(settled) < messages {
		select {
		case r := <-results:
			if r.err != nil {
				cancel()
				working.Wait()
				b.t.Fatalf("a competing consumer failed: %v", r.err)
			}
			settled[r.id] = true
		case <-b.ctx.Done():
			b.t.Fatalf("%d of %d messages were settled within %v", len(settled), messages, within)
		}
	}
	cancel()
	working.Wait()
	for _, consumer := range consumers {
		b.close(consumer)
	}
	if b.system.Describe().WaitsForAbsent {
		b.onlySentinelAmong(producer, b.consumer(1), b.competitor(1))
		return
	}
	b.onlySentinel(producer, b.consumer(1))
}

func receiveAndAck(ctx context.Context, c systems.Consumer) (businessID string, err error) {
	d, err := c.Receive(ctx)
	if err != nil {
		return "", err
	}
	_, err = d.Ack(ctx)
	return businessOf(d.Message()), err
}

func connected(b *bench) {
	connector := ability[systems.Connector](b, b.system, systems.NeedConnector)
	if _, err := connector.Connect("no credentials"); err == nil {
		b.t.Error("connected without credentials")
	}
	clients, err := connector.Connect(connector.Credentials(b.instance))
	b.must("connect", err)
	if c, ok := clients.(io.Closer); ok {
		b.onStop(func() { b.must("close what was connected", c.Close()) })
	}
	consumer, err := clients.Consumer(b.ctx, b.consumerOptions(b.session("c1"), b.address, 1))
	b.must("open a consumer's session", err)
	b.onStop(func() { b.close(consumer) })
	b.onlySentinel(b.producer(), consumer)
}

func redelivered(b *bench) {
	profile := b.system.Describe().Profile
	if profile.Redelivers == evidence.RedeliverNever {
		b.t.Skip("this profile never redelivers")
	}
	b.needs(systems.NeedRedelivery)
	consumer := b.consumer(1)
	b.accepted(b.send(b.producer(), b.message("order-1", "again")))
	first := b.receive(consumer)
	if profile.Redelivers != evidence.RedeliverTimeout {
		b.close(consumer)
		consumer = b.consumer(1)
	}
	second := b.receive(consumer)
	b.sameAgain(first, second)
	b.settle(second)
}

func nacked(b *bench) {
	b.needs(systems.NeedNack)
	consumer := b.consumer(1)
	b.accepted(b.send(b.producer(), b.message("order-1", "back")))
	first := b.receive(consumer)
	rejecter, ok := first.(systems.Rejecter)
	if !ok {
		b.t.Fatal("the delivery is no Rejecter, and Lacks does not name nack")
	}
	if outcome, err := rejecter.Nack(b.ctx, "not now"); outcome != evidence.AckConfirmed && outcome != evidence.AckSent {
		b.t.Fatalf("nack: %v, %v", outcome, err)
	}
	second := b.receive(consumer)
	b.sameAgain(first, second)
	b.settle(second)
}

func cancelled(b *bench) {
	consumer := b.consumer(1)
	producer := b.producer()
	waiting, cancel := context.WithCancel(b.ctx)
	result := make(chan error, 1)
	go func() {
		_, err := consumer.Receive(waiting)
		result <- err
	}()
	cancel()
	b.await("Receive after its context ended", result, context.Canceled)
	// What the cancelled call had asked for is not lost with it.
	for i := range 3 {
		b.accepted(b.send(producer, b.message(fmt.Sprintf("order-%d", i+1), "")))
		d := b.receive(consumer)
		if id := businessOf(d.Message()); id != fmt.Sprintf("order-%d", i+1) {
			b.t.Errorf("received %s as message %d", id, i+1)
		}
		b.settle(d)
	}
}

func cancelledBefore(b *bench) {
	producer := b.producer()
	consumer := b.consumer(1)
	over, cancel := context.WithCancel(b.ctx)
	cancel()
	if _, err := b.instance.Producer(over, systems.ProducerOptions{Name: "p2", Session: "p2#1", Address: b.address}); err == nil {
		b.t.Error("a producer's session was opened with a context that had ended")
	} else if !errors.Is(err, context.Canceled) {
		b.t.Errorf("opening a producer's session with a context that had ended: %v", err)
	}
	pending, err := producer.Send(over, b.message("order-1", "never"))
	if err != nil {
		b.t.Fatalf("send with a context that had ended: %v: that is a receipt, not an error", err)
	}
	if r := pending.Receipt(b.ctx); r.Acceptance != evidence.Rejected {
		b.t.Errorf("send with a context that had ended: %+v, want rejected: no byte has left", r)
	}
	b.onlySentinel(producer, consumer)
}

func cancelledAfter(b *bench) {
	b.needs(systems.NeedAnswer)
	b.needs(systems.NeedPause)
	process := b.process()
	producer := b.producer()
	defer b.subscribe()()
	b.accepted(b.send(producer, b.message("order-1", "the session works")))
	b.must("pause", process.Pause(b.ctx))
	pending := b.send(producer, b.message("order-2", "on its way"))
	over, cancel := context.WithCancel(b.ctx)
	cancel()
	if r := pending.Receipt(over); r.Acceptance != evidence.Unknown || r.ClientResult == "ok" || r.ClientResult == "" {
		b.t.Errorf("cancelled while the system was stopped: %+v, want unknown, with what the application is told", r)
	}
	b.must("continue", process.Continue(b.ctx))
}

func refused(b *bench) {
	ability[systems.Networked](b, b.instance, systems.NeedLinks)
	nobody, err := process.FreePort()
	b.must("find a port where nobody listens", err)
	defer nobody.Close()
	b.unreachable("a port where nobody listens", nobody.Address)
	if _, err := b.instance.Consumer(b.ctx, b.consumerOptions("c9#1", nobody.Address, 1)); !errors.Is(err, systems.ErrUnavailable) {
		b.t.Errorf("subscribe where nobody listens: %v, want ErrUnavailable", err)
	}
}

func answerLost(b *bench) {
	b.needs(systems.NeedAnswer)
	link := b.link()
	consumer := b.consumer(1)
	producer := b.producerAt(link.Addr())
	lost, err := link.Arm(links.Strike{Label: "lost", Action: links.Drop, Kind: links.FrameAccept})
	b.must("arm", err)
	pending := b.send(producer, b.message("order-1", "stored, not answered"))
	select {
	case <-lost.Fired():
	case <-b.ctx.Done():
		b.t.Fatal("no answer to the publish passed the link")
	}
	over, cancel := context.WithCancel(b.ctx)
	cancel()
	if r := pending.Receipt(over); r.Acceptance != evidence.Unknown {
		b.t.Errorf("the answer was lost: %+v, want unknown", r)
	}
	// It was stored all the same, and once: the client has not tried again.
	d := b.receive(consumer)
	if id := businessOf(d.Message()); id != "order-1" {
		b.t.Errorf("received %s, want order-1", id)
	}
	b.settle(d)
	if lost.(*links.Armed).Action == links.Withhold { // nothing more is answered on that connection
		producer = b.producer()
	}
	b.onlySentinel(producer, consumer)
}

// cut strikes the connections while the system lives: a client that reconnects
// would find it at once.
func cut(b *bench) {
	link := b.link()
	producer, consumer := b.producerAt(link.Addr()), b.consumerAt(link.Addr(), 1)
	b.accepted(b.send(producer, b.message("order-1", "the session works")))
	b.settle(b.receive(consumer))
	before := b.sink.count(evidence.LinkConnected)
	result := make(chan error, 1)
	go func() {
		_, err := consumer.Receive(b.ctx)
		result <- err
	}()
	link.Reset("cut")
	b.fired = append(b.fired, evidence.Link)
	b.await("Receive when its connection was cut", result, systems.ErrDisconnected)
	if r := b.send(producer, b.message("order-2", "nowhere to go")).Receipt(b.ctx); r.Acceptance != evidence.Rejected && r.Acceptance != evidence.Unknown {
		b.t.Errorf("publish on a connection that was cut: %+v", r)
	}
	if r := b.send(producer, b.message("order-3", "nowhere to go")).Receipt(b.ctx); r.Acceptance != evidence.Rejected {
		b.t.Errorf("publish on a session that is known to be gone: %+v, want rejected", r)
	}
	if _, err := consumer.Receive(b.ctx); !errors.Is(err, systems.ErrDisconnected) {
		b.t.Errorf("Receive again on a session that is gone: %v, want ErrDisconnected", err)
	}
	b.onlySentinel(b.producer(), b.consumer(1))
	if after := b.sink.count(evidence.LinkConnected); after != before {
		b.t.Errorf("%d connections were made behind the caller's back", after-before)
	}
}

func closed(b *bench) {
	consumer := b.consumer(1)
	producer := b.producer()
	result := make(chan error, 1)
	go func() {
		_, err := consumer.Receive(b.ctx)
		result <- err
	}()
	b.close(consumer)
	b.await("Receive on a closed session", result, systems.ErrDisconnected)
	b.close(producer)
	pending, err := producer.Send(b.ctx, b.message("order-1", "too late"))
	if err != nil {
		b.t.Fatalf("send on a closed session: %v: that is a receipt, not an error", err)
	}
	if r := pending.Receipt(b.ctx); r.Acceptance != evidence.Rejected {
		b.t.Errorf("send on a closed session: %+v, want rejected", r)
	}
	b.onlySentinel(b.producer(), b.consumer(1))
}

func killed(b *bench) {
	process := b.process()
	producer, consumer := b.producer(), b.consumer(1)
	b.accepted(b.send(producer, b.message("order-1", "the session works")))
	b.settle(b.receive(consumer))
	result := make(chan error, 1)
	go func() {
		_, err := consumer.Receive(b.ctx)
		result <- err
	}()
	b.must("kill", process.Kill(b.ctx))
	b.fired = append(b.fired, evidence.BrokerCrash)
	b.await("Receive when the system was killed", result, systems.ErrDisconnected)
	if _, err := consumer.Receive(b.ctx); !errors.Is(err, systems.ErrDisconnected) {
		b.t.Errorf("Receive again on a session that is gone: %v, want ErrDisconnected", err)
	}
	dead := b.send(producer, b.message("order-2", "to a dead system")).Receipt(b.ctx)
	if dead.Acceptance != evidence.Rejected && dead.Acceptance != evidence.Unknown {
		b.t.Errorf("publish to a dead system: %+v", dead)
	}
	b.unreachable("a dead system", b.address)

	b.must("restart", process.Restart(b.ctx))
	late := b.send(producer, b.message("order-3", "on a dead session")).Receipt(b.ctx)
	if late.Acceptance != evidence.Rejected {
		b.t.Errorf("publish on a session that ended before a restart: %+v, want rejected: no session comes back", late)
	}
	b.onlySentinel(b.producer(), b.consumer(1))
}

func restarted(b *bench) {
	process := b.process()
	ends := []struct {
		class evidence.Class
		name  string
		end   func(context.Context) error
	}{
		{evidence.BrokerRestart, "shutdown", process.Shutdown},
		{evidence.BrokerCrash, "kill", process.Kill},
	}
	for _, e := range ends {
		id, keeps := "order-"+e.name, b.claims(evidence.NoAcceptedLoss, e.class)
		if keeps {
			leave := b.subscribe()
			b.accepted(b.send(b.producer(), b.message(id, "kept")))
			leave()
		}
		before := b.address
		b.must(e.name, e.end(b.ctx))
		b.fired = append(b.fired, e.class)
		b.must("restart", process.Restart(b.ctx))
		if networked, ok := b.instance.(systems.Networked); ok && networked.Address() != before {
			b.t.Errorf("after %s and restart the address is %s, before it was %s", e.name, networked.Address(), before)
		}
		if keeps {
			consumer := b.consumer(1)
			b.settle(b.next(consumer, id, nil))
			b.close(consumer)
		}
	}
	b.onlySentinel(b.producer(), b.consumer(1))
	if started, exited := b.sink.count(evidence.ProcessStarted), b.sink.count(evidence.ProcessExited); started != exited+1 {
		b.t.Errorf("recorded were %d starts and %d exits of a process that runs", started, exited)
	}
}

func rows(b *bench) {
	inspector := ability[systems.Inspector](b, b.instance, systems.NeedRows)
	consumer := b.consumer(1)
	m := b.message("order-1", "in a row")
	m.Key = "customer-7"
	receipt := b.accepted(b.send(b.producer(), m))
	if receipt.Acceptance == evidence.Unknown && receipt.HeldBy == evidence.HeldByNobody && b.system.Describe().Profile.Redelivers != evidence.RedeliverNever {
		// Nobody has said that it arrived.
		b.eventually("the message is stored", func() bool { return b.rows(inspector).Count > 0 })
	}
	snapshot := b.rows(inspector)
	if b.system.Describe().Profile.Redelivers == evidence.RedeliverNever && receipt.HeldBy < evidence.HeldByStore {
		// Nobody stores it: then there is no row of it, before or after.
		b.settle(b.receive(consumer))
		if after := b.rows(inspector); snapshot.Count != 0 || after.Count != 0 {
			b.t.Errorf("%d rows before the delivery and %d after it, of a message held by %v and never sent again", snapshot.Count, after.Count, receipt.HeldBy)
		}
		return
	}
	if snapshot.Source != evidence.SourceBroker || snapshot.Count != 1 {
		b.t.Fatalf("one message is stored, the snapshot of %q counts %d", snapshot.Source, snapshot.Count)
	}
	if snapshot.Trust != evidence.CountsOnly {
		row, want := snapshot.Rows[0], evidence.StoredRow{
			State: evidence.RowPending, BusinessID: "order-1", PublishID: evidence.PublishID("p1", 1, 1),
			MessageID: receipt.MessageID, Destination: m.Destination, Digest: digestOf(m),
		}
		row.Partition, row.Subscription, row.Attempts, row.Version = "", "", 0, 0 // as each store has them
		if want.MessageID == "" {                                                 // the answer named none; the store may
			row.MessageID = ""
		}
		if row != want {
			b.t.Errorf("the row is %+v, want %+v", row, want)
		}
	}
	b.settle(b.receive(consumer))
	b.eventually("the settled row is gone or processed", func() bool {
		for _, row := range b.rows(inspector).Rows {
			if row.State == evidence.RowPending {
				return false
			}
		}
		return true
	})
	if !b.system.Describe().Profile.KeepsRows {
		b.eventually("the store is empty", func() bool { return b.rows(inspector).Count == 0 })
	}
}
