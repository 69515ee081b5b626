package kafka_test

import (
	"context"
	"flag"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/linktest"
	adapter "github.com/custodymq/custody/systems/kafka"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var recording = flag.Bool("record", false, "record the dialogues with the real broker in testdata anew")

// rig is a link to the real broker.
type rig struct {
	*linktest.Rig
	straight *kgo.Client // bypasses the link
	admin    *kadm.Client
}

// newRig creates one topic, which accepts only small messages.
func newRig(t *testing.T, p links.Protocol, topic string) *rig {
	t.Helper()
	address := systemtest.Serve(t, adapter.Profiles(1)[0])
	r := &rig{Rig: linktest.Open(t, address, p)}
	var err error
	r.straight, err = kgo.NewClient(kgo.SeedBrokers(address))
	r.Must(err)
	t.Cleanup(r.straight.Close)
	r.admin = kadm.NewClient(r.straight)
	small := "300"
	_, err = r.admin.CreateTopic(r.Ctx, 1, 1, map[string]*string{"max.message.bytes": &small}, topic)
	r.Must(err)
	return r
}

// client reaches the broker through the link only, whatever address the broker
// advertises.
func (r *rig) client(id string, opts ...kgo.Opt) *kgo.Client {
	r.T.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(r.Link.Addr()), kgo.ClientID(id), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, r.Link.Addr())
		}),
	}, opts...)...)
	r.Must(err)
	r.T.Cleanup(c.Close)
	return c
}

func record(topic, n, body string) *kgo.Record {
	return &kgo.Record{Topic: topic, Value: linktest.Payload(n, body)}
}

// poll receives n records, within the test's deadline.
func (r *rig) poll(c *kgo.Client, n int) (all []*kgo.Record) {
	r.T.Helper()
	for len(all) < n {
		f := c.PollRecords(r.Ctx, n-len(all))
		r.Must(f.Err0())
		all = append(all, f.Records()...)
	}
	return all
}

// produces does one of everything a producer does.
func (r *rig) produces(topic string) {
	p := r.client("p1#1", kgo.ProducerLinger(50*time.Millisecond))
	for _, n := range []string{"1", "2"} {
		p.Produce(r.Ctx, record(topic, n, "body"), nil)
	}
	r.Must(p.Flush(r.Ctx))
	r.Must(r.client("p1#2", kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()).ProduceSync(r.Ctx, record(topic, "3", "")).FirstErr())
	loud := r.client("p1#3", kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	r.Must(loud.ProduceSync(r.Ctx, record(topic, "4", "x")).FirstErr())
	err := p.ProduceSync(r.Ctx, record(topic, "5", string(make([]byte, 400)))).FirstErr()
	if err == nil {
		r.T.Error("a message over the topic's limit was accepted")
	}
	r.Must(p.ProduceSync(r.Ctx, record(topic, "6", "x")).FirstErr())
}

// consumes as two sessions of a group, the second continuing where the first
// committed.
func (r *rig) consumes(topic, group string, opts ...kgo.Opt) {
	opts = append(opts, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.FetchMaxWait(100*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	first := r.client("c1#1", opts...)
	all := r.poll(first, 5)
	r.Must(first.CommitRecords(r.Ctx, all[:2]...))
	r.Must(first.LeaveGroupContext(r.Ctx))
	first.Close()
	second := r.client("c1#2", opts...)
	all = r.poll(second, 3)
	r.Must(second.CommitRecords(r.Ctx, all...))
	r.Must(second.CommitRecords(r.Ctx, all...)) // again: acknowledges nothing new
	r.Must(second.LeaveGroupContext(r.Ctx))
}

// fromStart makes a share group begin with what is stored.
func (r *rig) fromStart(group string) {
	r.T.Helper()
	request, resource, config := kmsg.NewPtrIncrementalAlterConfigsRequest(), kmsg.NewIncrementalAlterConfigsRequestResource(), kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = "share.auto.offset.reset", kmsg.StringPtr("earliest")
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	resource.Configs = append(resource.Configs, config)
	request.Resources = append(request.Resources, resource)
	response, err := request.RequestWith(r.Ctx, r.straight)
	r.Must(err)
	r.Must(kerr.ErrorForCode(response.Resources[0].ErrorCode))
}

// shares does one of every acknowledgement of a share group.
func (r *rig) shares(topic, group string) {
	r.fromStart(group)
	c := r.client("s1#1", kgo.ShareGroup(group), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(100*time.Millisecond))
	for _, status := range []kgo.AckStatus{kgo.AckAccept, kgo.AckRelease, kgo.AckReject, kgo.AckRenew, kgo.AckAccept} {
		m := r.poll(c, 1)[0]
		m.Ack(status)
		r.Must(c.FlushAcks(r.Ctx))
	}
	c.Close()
}

// commits runs transactions that are committed, aborted, or left open to the
// next session; a consumer reads committed.
func (r *rig) commits(topic string) {
	p := r.client("p1#1", kgo.TransactionalID("p1"), kgo.RecordRetries(0))
	for i, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		n := strconv.Itoa(i + 1)
		r.Must(p.BeginTransaction())
		r.Must(p.ProduceSync(r.Ctx, record(topic, n, "body")).FirstErr())
		r.Must(p.EndTransaction(r.Ctx, end))
	}
	r.Must(p.BeginTransaction())
	r.Must(p.ProduceSync(r.Ctx, record(topic, "4", "body")).FirstErr())
	next := r.client("p1#2", kgo.TransactionalID("p1"), kgo.RecordRetries(0)) // which aborts it
	r.Must(next.BeginTransaction())
	r.Must(next.ProduceSync(r.Ctx, record(topic, "5", "body")).FirstErr())
	r.Must(next.EndTransaction(r.Ctx, kgo.TryCommit))
	if err := p.EndTransaction(r.Ctx, kgo.TryCommit); err == nil {
		r.T.Error("a fenced producer has committed")
	}
	c := r.client("c1#1", kgo.ConsumeTopics(topic), kgo.FetchMaxWait(100*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	r.poll(c, 2)
}

func TestRecord(t *testing.T) {
	if !*recording {
		t.Skip("with -record")
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
			recorder := &linktest.Recorder{Protocol: protocol()}
			r := newRig(t, recorder, name)
			dialogue(r, name)
			r.Link.Close()
			c := recorder.Carried()
			c.Write(t, "testdata/"+name+".capture")
			r.Must(os.WriteFile("testdata/"+name+".txt", []byte(told(t, c)), 0o600))
		})
	}
}

func TestDroppedAcceptIsWithheldWithAllAfterIt(t *testing.T) {
	r := newRig(t, protocol(), "withheld")
	p := r.client("p1#1", kgo.DisableIdempotentWrite(), kgo.RecordRetries(0), kgo.ProduceRequestTimeout(time.Second), kgo.RequestTimeoutOverhead(time.Second))
	a := r.Arm(links.Strike{Action: links.Drop, Kind: links.FrameAccept, Of: "order-1"})
	if a.Action != links.Withhold {
		t.Errorf("a drop became %q", a.Action)
	}
	lost := make(chan error, 1)
	p.Produce(r.Ctx, record("withheld", "1", "x"), func(_ *kgo.Record, err error) { lost <- err })
	r.Fired(a)
	select {
	case err := <-lost:
		if err == nil {
			t.Error("a withheld answer arrived")
		}
	case <-r.Ctx.Done():
		t.Fatal("the request never timed out")
	}
	r.Must(a.Heal(r.Ctx))
	r.Must(p.ProduceSync(r.Ctx, record("withheld", "2", "x")).FirstErr())
	c := r.client("c1#1", kgo.ConsumeTopics("withheld"))
	if all := r.poll(c, 2); all[0].Offset != 0 || string(all[0].Value) != string(linktest.Payload("1", "x")) {
		t.Errorf("the first message is %q", all[0].Value)
	}
}

func TestCorruptedDeliveryIsStillWellFormed(t *testing.T) {
	r := newRig(t, protocol(), "corrupted")
	r.Must(r.client("p1#1").ProduceSync(r.Ctx, record("corrupted", "1", "body")).FirstErr())
	a := r.Arm(links.Strike{Action: links.Corrupt, Kind: links.FrameDeliver, Of: "order-1"})
	if got := r.poll(r.client("c1#1", kgo.ConsumeTopics("corrupted")), 1)[0]; string(got.Value) != string(linktest.Payload("1", "bodx")) {
		t.Errorf("got %q", got.Value)
	}
	r.Fired(a)
}
