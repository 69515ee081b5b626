package kafka_test

import (
	"context"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/kafka"
	"github.com/custodymq/custody/systems"
	adapter "github.com/custodymq/custody/systems/kafka"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

var capture = flag.Bool("capture", false, "record testdata/*.jsonl anew, from the real broker")

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

// rig is a link to the real broker.
type rig struct {
	t        *testing.T
	ctx      context.Context
	link     *links.Link
	sink     *sink
	straight *kgo.Client // to the broker, past the link
	admin    *kadm.Client
}

// newRig with one topic, which takes small messages only.
func newRig(t *testing.T, protocol links.Protocol, topic string) *rig {
	t.Helper()
	address := broker(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, sink: &sink{}}
	var err error
	r.link, err = links.Open(ctx, links.Options{Name: "a1", Upstream: address, Protocol: protocol, Index: links.NewIndex(), Sink: r.sink})
	must(t, err)
	t.Cleanup(func() { r.link.Close() })
	r.straight, err = kgo.NewClient(kgo.SeedBrokers(address))
	must(t, err)
	t.Cleanup(r.straight.Close)
	r.admin = kadm.NewClient(r.straight)
	small := "300"
	_, err = r.admin.CreateTopic(ctx, 1, 1, map[string]*string{"max.message.bytes": &small}, topic)
	must(t, err)
	return r
}

// client reaches the broker through the link only, whatever address the broker
// advertises.
func (r *rig) client(id string, opts ...kgo.Opt) *kgo.Client {
	r.t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(r.link.Addr()), kgo.ClientID(id), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, r.link.Addr())
		}),
	}, opts...)...)
	must(r.t, err)
	r.t.Cleanup(c.Close)
	return c
}

func record(topic, n, body string) *kgo.Record {
	return &kgo.Record{Topic: topic, Value: payload(n, body)}
}

func payload(n, body string) []byte {
	return evidence.Envelope{PublishID: "p1-" + n + "-1", BusinessID: "order-" + n, Body: []byte(body)}.Encode()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// poll takes n records, and fails with the test's deadline.
func (r *rig) poll(c *kgo.Client, n int) (all []*kgo.Record) {
	r.t.Helper()
	for len(all) < n {
		f := c.PollRecords(r.ctx, n-len(all))
		must(r.t, f.Err0())
		all = append(all, f.Records()...)
	}
	return all
}

// produces is one of everything that a producer does.
func (r *rig) produces(topic string) {
	p := r.client("p1#1", kgo.ProducerLinger(50*time.Millisecond))
	for _, n := range []string{"1", "2"} {
		p.Produce(r.ctx, record(topic, n, "body"), nil)
	}
	must(r.t, p.Flush(r.ctx))
	must(r.t, r.client("p1#2", kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()).ProduceSync(r.ctx, record(topic, "3", "")).FirstErr())
	loud := r.client("p1#3", kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	must(r.t, loud.ProduceSync(r.ctx, record(topic, "4", "x")).FirstErr())
	err := p.ProduceSync(r.ctx, record(topic, "5", string(make([]byte, 400)))).FirstErr()
	if err == nil {
		r.t.Error("a message over the topic's limit was accepted")
	}
	must(r.t, p.ProduceSync(r.ctx, record(topic, "6", "x")).FirstErr())
}

// consumes as two sessions of a group, of which the second goes on where the
// first committed.
func (r *rig) consumes(topic, group string, opts ...kgo.Opt) {
	opts = append(opts, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.FetchMaxWait(100*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	first := r.client("c1#1", opts...)
	all := r.poll(first, 5)
	must(r.t, first.CommitRecords(r.ctx, all[:2]...))
	must(r.t, first.LeaveGroupContext(r.ctx))
	first.Close()
	second := r.client("c1#2", opts...)
	all = r.poll(second, 3)
	must(r.t, second.CommitRecords(r.ctx, all...))
	must(r.t, second.CommitRecords(r.ctx, all...)) // again: acknowledges nothing
	must(r.t, second.LeaveGroupContext(r.ctx))
}

// fromStart lets a share group begin with what is stored already.
func (r *rig) fromStart(group string) {
	r.t.Helper()
	request, resource, config := kmsg.NewPtrIncrementalAlterConfigsRequest(), kmsg.NewIncrementalAlterConfigsRequestResource(), kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = "share.auto.offset.reset", kmsg.StringPtr("earliest")
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	resource.Configs = append(resource.Configs, config)
	request.Resources = append(request.Resources, resource)
	response, err := request.RequestWith(r.ctx, r.straight)
	must(r.t, err)
	must(r.t, kerr.ErrorForCode(response.Resources[0].ErrorCode))
}

// shares is one of every acknowledgement of a share group.
func (r *rig) shares(topic, group string) {
	r.fromStart(group)
	c := r.client("s1#1", kgo.ShareGroup(group), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(100*time.Millisecond))
	for _, status := range []kgo.AckStatus{kgo.AckAccept, kgo.AckRelease, kgo.AckReject, kgo.AckRenew, kgo.AckAccept} {
		m := r.poll(c, 1)[0]
		m.Ack(status)
		must(r.t, c.FlushAcks(r.ctx))
	}
	c.Close()
}

// commits are transactions that are committed, aborted, or left to the next
// session of the producer; a consumer reads what is committed.
func (r *rig) commits(topic string) {
	p := r.client("p1#1", kgo.TransactionalID("p1"), kgo.RecordRetries(0))
	for i, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		n := strconv.Itoa(i + 1)
		must(r.t, p.BeginTransaction())
		must(r.t, p.ProduceSync(r.ctx, record(topic, n, "body")).FirstErr())
		must(r.t, p.EndTransaction(r.ctx, end))
	}
	must(r.t, p.BeginTransaction())
	must(r.t, p.ProduceSync(r.ctx, record(topic, "4", "body")).FirstErr())
	next := r.client("p1#2", kgo.TransactionalID("p1"), kgo.RecordRetries(0)) // which aborts it
	must(r.t, next.BeginTransaction())
	must(r.t, next.ProduceSync(r.ctx, record(topic, "5", "body")).FirstErr())
	must(r.t, next.EndTransaction(r.ctx, kgo.TryCommit))
	if err := p.EndTransaction(r.ctx, kgo.TryCommit); err == nil {
		r.t.Error("a fenced producer has committed")
	}
	c := r.client("c1#1", kgo.ConsumeTopics(topic), kgo.FetchMaxWait(100*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	r.poll(c, 2)
}

func TestCapture(t *testing.T) {
	if !*capture {
		t.Skip("-capture records the dialogues with the real broker anew")
	}
	for name, dialogue := range map[string]func(r *rig, topic string){
		"classic": func(r *rig, topic string) { r.produces(topic); r.consumes(topic, topic+"-group") },
		"consumer": func(r *rig, topic string) {
			r.produces(topic)
			r.consumes(topic, topic+"-group", kgo.ServerSideBalancer())
		},
		"transactions": func(r *rig, topic string) { r.commits(topic) },
		"share":        func(r *rig, topic string) { r.produces(topic); r.shares(topic, topic+"-group") },
	} {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{Protocol: kafka.New()}
			r := newRig(t, rec, name)
			dialogue(r, name)
			r.link.Close()
			writeCapture(t, name, rec.chunks)
		})
	}
}

// broker starts the real one, and gives its address.
func broker(t *testing.T) string {
	t.Helper()
	system := adapter.Profiles(1)[0]
	systemtest.Require(t, system)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dir := t.TempDir()
	instance, err := system.Start(ctx, systems.Env{Dir: dir, Sink: &sink{}, Scale: 1, Log: func(name string) (io.WriteCloser, error) {
		return os.Create(filepath.Join(dir, name+".log"))
	}})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		must(t, instance.Stop(ctx))
	})
	return instance.(systems.Networked).Address()
}

func TestDroppedAcceptIsWithheldWithAllAfterIt(t *testing.T) {
	r := newRig(t, kafka.New(), "withheld")
	p := r.client("p1#1", kgo.DisableIdempotentWrite(), kgo.RecordRetries(0), kgo.ProduceRequestTimeout(time.Second), kgo.RequestTimeoutOverhead(time.Second))
	a := r.arm(links.Strike{Action: links.Drop, Kind: links.FrameAccept, Of: "order-1"})
	if a.Action() != links.Withhold {
		t.Errorf("a drop became %q", a.Action())
	}
	lost := make(chan error, 1)
	p.Produce(r.ctx, record("withheld", "1", "x"), func(_ *kgo.Record, err error) { lost <- err })
	r.fired(a)
	select {
	case err := <-lost:
		if err == nil {
			t.Error("a withheld answer arrived")
		}
	case <-r.ctx.Done():
		t.Fatal("the request never timed out")
	}
	must(t, a.Heal(r.ctx))
	must(t, p.ProduceSync(r.ctx, record("withheld", "2", "x")).FirstErr())
	c := r.client("c1#1", kgo.ConsumeTopics("withheld"))
	if all := r.poll(c, 2); all[0].Offset != 0 || string(all[0].Value) != string(payload("1", "x")) {
		t.Errorf("the first message is %q", all[0].Value)
	}
}

func TestCorruptedDeliveryIsStillWellFormed(t *testing.T) {
	r := newRig(t, kafka.New(), "corrupted")
	must(t, r.client("p1#1").ProduceSync(r.ctx, record("corrupted", "1", "body")).FirstErr())
	a := r.arm(links.Strike{Action: links.Corrupt, Kind: links.FrameDeliver, Of: "order-1"})
	if got := r.poll(r.client("c1#1", kgo.ConsumeTopics("corrupted")), 1)[0]; string(got.Value) != string(payload("1", "bodx")) {
		t.Errorf("got %q", got.Value)
	}
	r.fired(a)
}

func (r *rig) arm(s links.Strike) *links.Armed {
	r.t.Helper()
	s.Label = "f"
	a, err := r.link.Arm(s)
	must(r.t, err)
	return a
}

func (r *rig) fired(a *links.Armed) {
	r.t.Helper()
	select {
	case <-a.Fired():
	case <-r.ctx.Done():
		r.t.Fatal("never fired")
	}
}
