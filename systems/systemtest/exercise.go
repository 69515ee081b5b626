// Package systemtest is the conformance suite of adapters: what an adapter must
// do before a verdict about its system means anything.
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
// an instance of its own; what the system lacks is skipped with its reason. A
// system that is not Installed is skipped with instructions to get it, or fails
// if the environment variable CUSTODY_REQUIRE is set. Call process.RunRole in
// TestMain first if the system needs it.
func Exercise(t *testing.T, s systems.System) {
	Require(t, s)
	before := goleak.IgnoreCurrent()
	servers := process.NewPool()
	for _, o := range obligations {
		t.Run(o.name, func(t *testing.T) {
			ignore := goleak.IgnoreCurrent()
			r := start(t, s, servers)
			o.check(r)
			r.stop()
			if servers.Idle() > 0 {
				return // its goroutines run on; they are checked at the end
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

// Require is Needs for what a system's Installed reports.
func Require(t testing.TB, s systems.System) {
	t.Helper()
	if need, ok := s.(systems.Installed); ok {
		Needs(t, need.Installed())
	}
}

// Needs skips the test if the machine lacks something, or fails it if the
// environment variable CUSTODY_REQUIRE is set.
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

// Serve runs a Networked system until the end of a test that is not about the
// adapter, and returns the server's address.
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
	networked, _ := systems.As[systems.Networked](instance)
	return networked.Address()
}

// obligations of an adapter, ordered so that the first failure is the most
// informative.
var obligations = []struct {
	name  string
	check func(*rig)
}{
	{"the description is complete and matches the interfaces", described},
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

func described(r *rig) {
	d := r.system.Describe()
	if d.System == "" || d.Profile.Name == "" || d.Profile.Summary == "" {
		r.t.Errorf("system %q, profile %q, summary %q: each has a text", d.System, d.Profile.Name, d.Profile.Summary)
	}
	if len(d.Versions) == 0 {
		r.t.Error("no versions: a verdict is about one version of a system")
	}
	for _, c := range d.Claims {
		if c.Source == "" || c.Owner == "" {
			r.t.Errorf("claim of %s: owner %q, source %q: say who promises it and where", c.Guarantee, c.Owner, c.Source)
		}
	}
	l := d.Profile.Limits
	if l.RecoveryBound <= l.RedeliveryPeriod {
		r.t.Errorf("recovery bound %v is not longer than the redelivery period %v", l.RecoveryBound, l.RedeliveryPeriod)
	}
	if longest := max(l.RecoveryBound, l.RedeliveryPeriod, l.DeleteBound, l.InFlightBound); l.DrainDeadline <= longest {
		r.t.Errorf("drain deadline %v does not exceed every bound (%v)", l.DrainDeadline, longest)
	}
	for _, need := range systems.Needs() {
		met := systems.Meets(need, r.system, r.instance)
		if need == systems.NeedLookup {
			_, met = r.producer().(systems.Resolver)
		}
		if slices.Contains([]systems.Need{systems.NeedProbes, systems.NeedStoreLink, systems.NeedStandby, systems.NeedMoves}, need) {
			continue // optional for adapters
		}
		// Lacks may name what is implemented, for other profiles of the
		// adapter.
		if _, lacks := d.Lacks[need]; !met && !lacks {
			r.t.Errorf("%s is not implemented, and Lacks does not say why", need)
		}
	}
	for need, reason := range d.Lacks {
		if reason == "" {
			r.t.Errorf("%s is lacked without a reason", need)
		}
	}
}

func delivered(r *rig) {
	consumer := r.consumer(4)
	producer := r.producer()
	sent := []systems.Message{
		r.message("order-1", "first"),
		r.message("order-2", ""),
		r.message("order-3", string(make([]byte, 64<<10))),
	}
	sent[0].Key, sent[0].Headers = "customer-7", map[string]string{"Region": "north", "trace": "a r: c"}
	pending := make([]systems.Pending, len(sent))
	for i, m := range sent {
		pending[i] = r.send(producer, m) // send all before waiting for any answer
	}
	receipts := make(map[string]systems.Receipt)
	for i, m := range sent {
		receipt := r.accepted(pending[i])
		if again := pending[i].Receipt(r.ctx); again != receipt {
			r.t.Errorf("the receipt changed from %+v to %+v", receipt, again)
		}
		receipts[businessOf(m)] = receipt
	}
	// In any order: order is a claim of its own.
	for range sent {
		d := r.receive(consumer)
		got := d.Message()
		i := slices.IndexFunc(sent, func(m systems.Message) bool { return businessOf(m) == businessOf(got) })
		if i < 0 {
			r.t.Fatalf("delivered was %q, which nobody sent or which came before", businessOf(got))
		}
		m := sent[i]
		if string(got.Payload) != string(m.Payload) || digestOf(got) != digestOf(m) {
			r.t.Errorf("message %d was delivered with key %q, headers %v, %d bytes of payload; sent were %q, %v, %d bytes",
				i+1, got.Key, got.Headers, len(got.Payload), m.Key, m.Headers, len(m.Payload))
		}
		if got.Destination != m.Destination {
			r.t.Errorf("delivered from %q, sent to %q", got.Destination, m.Destination)
		}
		if receipt := receipts[businessOf(m)]; receipt.MessageID != "" && got.MessageID != receipt.MessageID {
			r.t.Errorf("accepted as %q, delivered as %q", receipt.MessageID, got.MessageID)
		}
		r.marked(d, 1)
		r.settle(d)
	}
}

func declined(r *rig) {
	producer := r.producer()
	pending := r.send(producer, r.message("order-1", "to nobody"))
	if !r.declines() {
		r.accepted(pending)
		return
	}
	if receipt := pending.Receipt(r.ctx); receipt.Acceptance != evidence.Declined || receipt.ClientResult == systems.OK || receipt.ClientResult == "" {
		r.t.Errorf("publish with no consumer online: %+v, want declined, with what the application was told", receipt)
	} else if receipt.Cause != evidence.CauseNoConsumer {
		r.t.Errorf("publish with no consumer online was declined for %q, want %q", receipt.Cause, evidence.CauseNoConsumer)
	}
	r.onlySentinel(producer, r.consumer(1))
}

// keptSubscriber checks KeepsSubscribers, which decides what counts as a loss:
// if wrongly set it accuses the system, if wrongly unset it hides a loss.
func keptSubscriber(r *rig) {
	consumer := r.consumer(1)
	r.close(consumer)
	producer := r.producer()
	pending := r.send(producer, r.message("order-1", "to nobody yet"))
	if !r.system.Describe().Profile.KeepsSubscribers {
		// Any answer of the system will do. Without one, the message may reach it
		// only after the next session has.
		if receipt := pending.Receipt(r.ctx); receipt.Acceptance != evidence.Unknown && receipt.HeldBy != evidence.HeldByClient {
			r.onlySentinel(producer, r.consumer(1))
		}
		return
	}
	r.accepted(pending)
	r.settle(r.next(r.consumer(1), "order-1", nil))
}

func fannedOut(r *rig) {
	r.needs(systems.NeedFanOut)
	var consumers []systems.Consumer
	for i, name := range []string{"billing", "stock"} {
		o := r.consumerOptions(r.session("c"+strconv.Itoa(i+1)), r.address, 1)
		o.Name, o.Subscription = "c"+strconv.Itoa(i+1), name
		consumers = append(consumers, r.open(o))
	}
	r.accepted(r.send(r.producer(), r.message("order-1", "for both")))
	for _, c := range consumers {
		r.settle(r.next(c, "order-1", nil))
	}
}

// notMore is how long to wait for a message that must not arrive: well below any
// profile's redelivery time.
const notMore = 150 * time.Millisecond

func windowed(r *rig) {
	r.needs(systems.NeedWindow)
	consumer, producer := r.consumer(2), r.producer()
	for i := range 3 {
		r.accepted(r.send(producer, r.message(fmt.Sprintf("order-%d", i+1), "")))
	}
	first, second := r.receive(consumer), r.receive(consumer)
	short, cancel := context.WithTimeout(r.ctx, notMore)
	defer cancel()
	if d, err := consumer.Receive(short); err == nil {
		r.t.Fatalf("with a window of two and two unacknowledged, %s came too", businessOf(d.Message()))
	}
	r.settle(first)
	third := r.receive(consumer)
	r.settle(second)
	r.settle(third)
}

func competing(r *rig) {
	const messages = 20
	producer := r.producer()
	consumers := []systems.Consumer{r.consumer(1), r.competitor(1)}
	ctx, cancel := context.WithCancel(r.ctx)
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
		r.accepted(r.send(producer, r.message(fmt.Sprintf("order-%d", i+1), "")))
	}
	settled := make(map[string]bool)
	for len(settled) < messages {
		select {
		case got := <-results:
			if got.err != nil {
				cancel()
				working.Wait()
				r.t.Fatalf("a competing consumer failed: %v", got.err)
			}
			settled[got.id] = true
		case <-r.ctx.Done():
			r.t.Fatalf("%d of %d messages were settled within %v", len(settled), messages, within)
		}
	}
	cancel()
	working.Wait()
	for _, consumer := range consumers {
		r.close(consumer)
	}
	if r.system.Describe().WaitsForAbsent {
		r.onlySentinelAmong(producer, r.consumer(1), r.competitor(1))
		return
	}
	r.onlySentinel(producer, r.consumer(1))
}

func receiveAndAck(ctx context.Context, c systems.Consumer) (businessID string, err error) {
	d, err := c.Receive(ctx)
	if err != nil {
		return "", err
	}
	_, err = d.Ack(ctx)
	return businessOf(d.Message()), err
}

func connected(r *rig) {
	connector := ability[systems.Connector](r, r.system, systems.NeedConnector)
	if _, err := connector.Connect("no credentials"); err == nil {
		r.t.Error("connected without credentials")
	}
	clients, err := connector.Connect(connector.Credentials(r.instance))
	r.must("connect", err)
	if c, ok := clients.(io.Closer); ok {
		r.onStop(func() { r.must("close what was connected", c.Close()) })
	}
	consumer, err := clients.Consumer(r.ctx, r.consumerOptions(r.session("c1"), r.address, 1))
	r.must("open a consumer's session", err)
	r.onStop(func() { r.close(consumer) })
	r.onlySentinel(r.producer(), consumer)
}

func redelivered(r *rig) {
	profile := r.system.Describe().Profile
	if profile.Redelivers == evidence.RedeliverNever {
		r.t.Skip("this profile never redelivers")
	}
	r.needs(systems.NeedRedelivery)
	consumer := r.consumer(1)
	r.accepted(r.send(r.producer(), r.message("order-1", "again")))
	first := r.receive(consumer)
	if profile.Redelivers != evidence.RedeliverTimeout {
		r.close(consumer)
		consumer = r.consumer(1)
	}
	second := r.receive(consumer)
	r.sameAgain(first, second)
	r.settle(second)
}

func nacked(r *rig) {
	r.needs(systems.NeedNack)
	consumer := r.consumer(1)
	r.accepted(r.send(r.producer(), r.message("order-1", "back")))
	first := r.receive(consumer)
	rejecter, ok := first.(systems.Rejecter)
	if !ok {
		r.t.Fatal("the delivery is no Rejecter, and Lacks does not name nack")
	}
	if outcome, err := rejecter.Nack(r.ctx, "not now"); outcome != evidence.AckConfirmed && outcome != evidence.AckSent {
		r.t.Fatalf("nack: %v, %v", outcome, err)
	}
	second := r.receive(consumer)
	r.sameAgain(first, second)
	r.settle(second)
}

func cancelled(r *rig) {
	consumer := r.consumer(1)
	producer := r.producer()
	waiting, cancel := context.WithCancel(r.ctx)
	result := make(chan error, 1)
	go func() {
		_, err := consumer.Receive(waiting)
		result <- err
	}()
	cancel()
	r.await("Receive after its context ended", result, context.Canceled)
	// The cancelled call must not have lost a message.
	for i := range 3 {
		r.accepted(r.send(producer, r.message(fmt.Sprintf("order-%d", i+1), "")))
		d := r.receive(consumer)
		if id := businessOf(d.Message()); id != fmt.Sprintf("order-%d", i+1) {
			r.t.Errorf("received %s as message %d", id, i+1)
		}
		r.settle(d)
	}
}

func cancelledBefore(r *rig) {
	producer := r.producer()
	consumer := r.consumer(1)
	over, cancel := context.WithCancel(r.ctx)
	cancel()
	if _, err := r.instance.Producer(over, systems.ProducerOptions{Name: "p2", Session: "p2#1", Address: r.address}); err == nil {
		r.t.Error("a producer's session was opened with a context that had ended")
	} else if !errors.Is(err, context.Canceled) {
		r.t.Errorf("opening a producer's session with a context that had ended: %v", err)
	}
	pending, err := producer.Send(over, r.message("order-1", "never"))
	if err != nil {
		r.t.Fatalf("send with a context that had ended: %v: that is a receipt, not an error", err)
	}
	if receipt := pending.Receipt(r.ctx); receipt.Acceptance != evidence.Rejected {
		r.t.Errorf("send with a context that had ended: %+v, want rejected: no byte has left", receipt)
	}
	r.onlySentinel(producer, consumer)
}

func cancelledAfter(r *rig) {
	r.needs(systems.NeedAnswer)
	r.needs(systems.NeedPause)
	process := r.process()
	producer := r.producer()
	defer r.subscribe()()
	r.accepted(r.send(producer, r.message("order-1", "the session works")))
	r.must("pause", process.Pause(r.ctx))
	pending := r.send(producer, r.message("order-2", "on its way"))
	over, cancel := context.WithCancel(r.ctx)
	cancel()
	if receipt := pending.Receipt(over); receipt.Acceptance != evidence.Unknown || receipt.ClientResult == systems.OK || receipt.ClientResult == "" {
		r.t.Errorf("cancelled while the system was stopped: %+v, want unknown, with what the application was told", receipt)
	}
	r.must("continue", process.Continue(r.ctx))
}

func refused(r *rig) {
	ability[systems.Networked](r, r.instance, systems.NeedLinks)
	nobody, err := process.FreePort()
	r.must("find a port where nobody listens", err)
	defer nobody.Close()
	r.unreachable("a port where nobody listens", nobody.Address)
	if _, err := r.instance.Consumer(r.ctx, r.consumerOptions("c9#1", nobody.Address, 1)); !errors.Is(err, systems.ErrUnavailable) {
		r.t.Errorf("subscribe where nobody listens: %v, want ErrUnavailable", err)
	}
}

func answerLost(r *rig) {
	r.needs(systems.NeedAnswer)
	link := r.link()
	consumer := r.consumer(1)
	producer := r.producerAt(link.Addr())
	lost, err := link.Arm(links.Strike{Label: "lost", Action: links.Drop, Kind: links.FrameAccept})
	r.must("arm", err)
	pending := r.send(producer, r.message("order-1", "stored, not answered"))
	select {
	case <-lost.Fired():
	case <-r.ctx.Done():
		r.t.Fatal("no answer to the publish passed the link")
	}
	over, cancel := context.WithCancel(r.ctx)
	cancel()
	if receipt := pending.Receipt(over); receipt.Acceptance != evidence.Unknown {
		r.t.Errorf("the answer was lost: %+v, want unknown", receipt)
	}
	// It was stored nevertheless, and once: the client did not retry.
	d := r.receive(consumer)
	if id := businessOf(d.Message()); id != "order-1" {
		r.t.Errorf("received %s, want order-1", id)
	}
	r.settle(d)
	if lost.(*links.Armed).Action == links.Withhold { // nothing further is answered on that connection
		producer = r.producer()
	}
	r.onlySentinel(producer, consumer)
}

// cut cuts connections while the system is up: a client that reconnects would
// succeed at once.
func cut(r *rig) {
	link := r.link()
	producer, consumer := r.producerAt(link.Addr()), r.consumerAt(link.Addr(), 1)
	r.accepted(r.send(producer, r.message("order-1", "the session works")))
	r.settle(r.receive(consumer))
	before := r.sink.count(evidence.LinkConnected)
	result := make(chan error, 1)
	go func() {
		_, err := consumer.Receive(r.ctx)
		result <- err
	}()
	link.Reset("cut")
	r.fired = append(r.fired, evidence.Link)
	r.await("Receive when its connection was cut", result, systems.ErrDisconnected)
	if receipt := r.send(producer, r.message("order-2", "nowhere to go")).Receipt(r.ctx); receipt.Acceptance != evidence.Rejected && receipt.Acceptance != evidence.Unknown {
		r.t.Errorf("publish on a connection that was cut: %+v", receipt)
	}
	if receipt := r.send(producer, r.message("order-3", "nowhere to go")).Receipt(r.ctx); receipt.Acceptance != evidence.Rejected {
		r.t.Errorf("publish on a session that is known to be gone: %+v, want rejected", receipt)
	}
	if _, err := consumer.Receive(r.ctx); !errors.Is(err, systems.ErrDisconnected) {
		r.t.Errorf("Receive again on a session that is gone: %v, want ErrDisconnected", err)
	}
	r.onlySentinel(r.producer(), r.consumer(1))
	if after := r.sink.count(evidence.LinkConnected); after != before {
		r.t.Errorf("the client made %d connections of its own", after-before)
	}
}

func closed(r *rig) {
	consumer := r.consumer(1)
	producer := r.producer()
	result := make(chan error, 1)
	go func() {
		_, err := consumer.Receive(r.ctx)
		result <- err
	}()
	r.close(consumer)
	r.await("Receive on a closed session", result, systems.ErrDisconnected)
	r.close(producer)
	pending, err := producer.Send(r.ctx, r.message("order-1", "too late"))
	if err != nil {
		r.t.Fatalf("send on a closed session: %v: that is a receipt, not an error", err)
	}
	if receipt := pending.Receipt(r.ctx); receipt.Acceptance != evidence.Rejected {
		r.t.Errorf("send on a closed session: %+v, want rejected", receipt)
	}
	r.onlySentinel(r.producer(), r.consumer(1))
}

func killed(r *rig) {
	process := r.process()
	producer, consumer := r.producer(), r.consumer(1)
	r.accepted(r.send(producer, r.message("order-1", "the session works")))
	r.settle(r.receive(consumer))
	result := make(chan error, 1)
	go func() {
		_, err := consumer.Receive(r.ctx)
		result <- err
	}()
	r.must("kill", process.Kill(r.ctx))
	r.fired = append(r.fired, evidence.BrokerCrash)
	r.await("Receive when the system was killed", result, systems.ErrDisconnected)
	if _, err := consumer.Receive(r.ctx); !errors.Is(err, systems.ErrDisconnected) {
		r.t.Errorf("Receive again on a session that is gone: %v, want ErrDisconnected", err)
	}
	dead := r.send(producer, r.message("order-2", "to a dead system")).Receipt(r.ctx)
	if dead.Acceptance != evidence.Rejected && dead.Acceptance != evidence.Unknown {
		r.t.Errorf("publish to a dead system: %+v", dead)
	}
	r.unreachable("a dead system", r.address)

	r.must("restart", process.Restart(r.ctx))
	late := r.send(producer, r.message("order-3", "on a dead session")).Receipt(r.ctx)
	if late.Acceptance != evidence.Rejected {
		r.t.Errorf("publish on a session that ended before a restart: %+v, want rejected: no session comes back", late)
	}
	r.onlySentinel(r.producer(), r.consumer(1))
}

func restarted(r *rig) {
	process := r.process()
	ends := []struct {
		class evidence.Class
		name  string
		end   func(context.Context) error
	}{
		{evidence.BrokerRestart, "shutdown", process.Shutdown},
		{evidence.BrokerCrash, "kill", process.Kill},
	}
	for _, e := range ends {
		id, keeps := "order-"+e.name, r.claims(evidence.NoAcceptedLoss, e.class)
		if keeps {
			leave := r.subscribe()
			r.accepted(r.send(r.producer(), r.message(id, "kept")))
			leave()
		}
		before := r.address
		r.must(e.name, e.end(r.ctx))
		r.fired = append(r.fired, e.class)
		r.must("restart", process.Restart(r.ctx))
		if networked, ok := systems.As[systems.Networked](r.instance); ok && networked.Address() != before {
			r.t.Errorf("after %s and restart the address is %s, before it was %s", e.name, networked.Address(), before)
		}
		if keeps {
			consumer := r.consumer(1)
			r.settle(r.next(consumer, id, nil))
			r.close(consumer)
		}
	}
	r.onlySentinel(r.producer(), r.consumer(1))
	if started, exited := r.sink.count(evidence.ProcessStarted), r.sink.count(evidence.ProcessExited); started != exited+1 {
		r.t.Errorf("recorded were %d starts and %d exits of a process that runs", started, exited)
	}
}

func rows(r *rig) {
	inspector := ability[systems.Inspector](r, r.instance, systems.NeedRows)
	consumer := r.consumer(1)
	m := r.message("order-1", "in a row")
	m.Key = "customer-7"
	receipt := r.accepted(r.send(r.producer(), m))
	if receipt.Acceptance == evidence.Unknown && receipt.HeldBy == evidence.HeldByNobody && r.system.Describe().Profile.Redelivers != evidence.RedeliverNever {
		// Nothing confirmed its arrival.
		r.eventually("the message is stored", func() bool { return r.rows(inspector).Count > 0 })
	}
	snapshot := r.rows(inspector)
	if r.system.Describe().Profile.Redelivers == evidence.RedeliverNever && receipt.HeldBy < evidence.HeldByStore {
		// Nothing is stored: there is no row before or after.
		r.settle(r.receive(consumer))
		if after := r.rows(inspector); snapshot.Count != 0 || after.Count != 0 {
			r.t.Errorf("%d rows before the delivery and %d after it, of a message held by %v and never sent again", snapshot.Count, after.Count, receipt.HeldBy)
		}
		return
	}
	if snapshot.Source != evidence.SourceBroker || snapshot.Count != 1 {
		r.t.Fatalf("one message is stored, the snapshot of %q counts %d", snapshot.Source, snapshot.Count)
	}
	if snapshot.Trust != evidence.CountsOnly {
		row, want := snapshot.Rows[0], evidence.StoredRow{
			State: evidence.RowPending, BusinessID: "order-1", PublishID: evidence.PublishID("p1", 1, 1),
			MessageID: receipt.MessageID, Destination: m.Destination, Digest: digestOf(m),
		}
		row.Partition, row.Subscription, row.Attempts, row.Version = "", "", 0, 0 // depends on the store
		if want.MessageID == "" {                                                 // the answer gave no ID; the store may
			row.MessageID = ""
		}
		if row != want {
			r.t.Errorf("the row is %+v, want %+v", row, want)
		}
	}
	r.settle(r.receive(consumer))
	r.eventually("the settled row is gone or processed", func() bool {
		for _, row := range r.rows(inspector).Rows {
			if row.State == evidence.RowPending {
				return false
			}
		}
		return true
	})
	if !r.system.Describe().Profile.KeepsRows {
		r.eventually("the store is empty", func() bool { return r.rows(inspector).Count == 0 })
	}
}
