package kafka

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// conn understands the two directions of one connection. Requests are read by
// one goroutine and responses by another; what they share is in asked.
type conn struct {
	shared *shared
	index  *links.Index
	asked  *links.Pending[int32, question]
	from   positions // of the fetch session, as the last Fetch left it
}

// positions are the offsets from which a Fetch asks for each partition. A
// broker answers with whole batches, which may begin earlier.
type positions map[place]int64

// maxPositions bounds the partitions of a fetch session.
const maxPositions = 1 << 12

// The acknowledgements of share groups (KIP-932); 0 is a gap: no message.
const (
	shareAccept  = 1
	shareRelease = 2
	shareReject  = 3
	shareRenew   = 4
)

// shareKinds in the order in which they name a request that holds several.
var shareKinds = []struct {
	acknowledgement int8
	kind, answer    string
}{
	{shareAccept, links.FrameAck, links.FrameAckConfirm},
	{shareRelease, links.FrameNack, links.FrameNackConfirm},
	{shareReject, FrameReject, links.FrameNackConfirm},
	{shareRenew, FrameRenew, links.FrameNackConfirm},
}

// request understands what a client sends.
func (c *conn) request(frame []byte) (links.Frame, error) {
	key, version, correlation, client, body, err := requestHead(frame)
	if err != nil {
		return links.Frame{}, err
	}
	request := kmsg.RequestForKey(key)
	if request == nil || version < 0 {
		return links.Frame{}, fmt.Errorf("kafka: no request %d of version %d", key, version)
	}
	request.SetVersion(version)
	q := question{request: request, session: client}
	if !understood(request) {
		c.asked.Add(correlation, q)
		return links.Frame{}, nil
	}
	if version > request.MaxVersion() {
		return links.Frame{}, fmt.Errorf("kafka: %s in version %d, %d is the newest that is understood", kmsg.NameForKey(key), version, request.MaxVersion())
	}
	if request.IsFlexible() {
		if body, err = skipTags(body); err != nil {
			return links.Frame{}, err
		}
	}
	if err := request.ReadFrom(body); err != nil {
		return links.Frame{}, fmt.Errorf("kafka: read a %s: %w", kmsg.NameForKey(key), err)
	}
	kind, err := c.asks(&q)
	if err != nil {
		return links.Frame{}, err
	}
	if produce, ok := request.(*kmsg.ProduceRequest); !ok || produce.Acks != 0 {
		// The body would keep the relay's buffer alive, which is used again.
		q.request = kmsg.RequestForKey(key)
		q.request.SetVersion(version)
		c.asked.Add(correlation, q)
	}
	return links.Frame{Kind: kind, Items: q.items}, nil
}

// understood are the requests whose bodies are read, for themselves or for
// their answers.
func understood(r kmsg.Request) bool {
	switch r.(type) {
	case *kmsg.ProduceRequest, *kmsg.FetchRequest, *kmsg.MetadataRequest, *kmsg.OffsetCommitRequest,
		*kmsg.JoinGroupRequest, *kmsg.LeaveGroupRequest, *kmsg.ConsumerGroupHeartbeatRequest, *kmsg.InitProducerIDRequest, *kmsg.EndTxnRequest,
		*kmsg.ShareGroupHeartbeatRequest, *kmsg.ShareFetchRequest, *kmsg.ShareAcknowledgeRequest:
		return true
	}
	return false
}

// asks gives a request's kind, and notes in q what its answer will be about.
func (c *conn) asks(q *question) (kind string, err error) {
	switch r := q.request.(type) {
	case *kmsg.ProduceRequest:
		q.kind = links.FrameAccept
		if r.TransactionID != nil {
			q.kind, q.txn = FrameStored, c.shared.transaction(*r.TransactionID)
		}
		c.produced(r, q)
		return links.FramePublish, nil
	case *kmsg.InitProducerIDRequest:
		if r.TransactionalID != nil {
			q.txn = c.shared.transaction(*r.TransactionalID)
		}
		return "", nil
	case *kmsg.EndTxnRequest:
		return c.ends(r, q), nil
	case *kmsg.FetchRequest:
		q.kind = links.FrameDeliver
		q.from, err = c.position(r)
		return FrameFetch, err
	case *kmsg.OffsetCommitRequest:
		return c.commits(r, q), nil
	case *kmsg.JoinGroupRequest:
		q.kind = links.FrameSubscribed
		return links.FrameSubscribe, nil
	case *kmsg.LeaveGroupRequest:
		q.kind = FrameLeft
		return FrameLeave, nil
	case *kmsg.ConsumerGroupHeartbeatRequest:
		return q.heartbeat(r.MemberEpoch), nil
	case *kmsg.ShareGroupHeartbeatRequest:
		return q.heartbeat(r.MemberEpoch), nil
	case *kmsg.ShareFetchRequest:
		q.kind = links.FrameDeliver
		kind, err = c.settles(q, shareFetchBatches(r))
		if kind == "" {
			kind = FrameFetch
		}
		return kind, err
	case *kmsg.ShareAcknowledgeRequest:
		return c.settles(q, shareAcknowledgeBatches(r))
	}
	return "", nil
}

// heartbeat of a group with the coordinator's protocol: epoch 0 joins, a
// negative one leaves.
func (q *question) heartbeat(epoch int32) string {
	switch {
	case epoch == 0:
		q.kind = links.FrameSubscribed
		return links.FrameSubscribe
	case epoch < 0:
		q.kind = FrameLeft
		return FrameLeave
	}
	return ""
}

func (c *conn) produced(r *kmsg.ProduceRequest, q *question) {
	q.sent = make(map[place][]sent)
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			at := place{c.shared.topic(t.Topic, t.TopicID), t.Partitions[j].Partition}
			for delta, value := range recordsOf(t.Partitions[j].Records, nil) {
				item := ofPayload(value)
				q.sent[at] = append(q.sent[at], sent{delta, item})
				q.items = append(q.items, item)
			}
		}
	}
}

// ends lists what a transaction has stored. The publisher's answer hangs on the
// answer to this request, so that it is the accept.
func (c *conn) ends(r *kmsg.EndTxnRequest, q *question) string {
	q.txn = c.shared.transaction(r.TransactionalID)
	q.items = q.txn.open()
	if !r.Commit {
		q.kind = FrameAborted
		return FrameAbort
	}
	q.kind = links.FrameAccept
	return FrameCommit
}

// position follows a fetch session (KIP-227): epoch 0 begins one, a negative
// one is none, and any other request tells only what is new.
func (c *conn) position(r *kmsg.FetchRequest) (positions, error) {
	from := make(positions)
	if r.SessionEpoch > 0 {
		maps.Copy(from, c.from)
	}
	for i := range r.ForgottenTopics {
		t := &r.ForgottenTopics[i]
		for _, partition := range t.Partitions {
			delete(from, place{c.shared.topic(t.Topic, t.TopicID), partition})
		}
	}
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			from[place{c.shared.topic(t.Topic, t.TopicID), t.Partitions[j].Partition}] = t.Partitions[j].FetchOffset
		}
	}
	if len(from) > maxPositions {
		return nil, fmt.Errorf("kafka: a fetch of more than %d partitions", maxPositions)
	}
	c.from = from
	return from, nil
}

// commits lists what a commit acknowledges: all that its session was given
// before the offset and has not committed yet. One of nothing new has no kind.
func (c *conn) commits(r *kmsg.OffsetCommitRequest, q *question) string {
	given := c.shared.session(q.session)
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			q.items = append(q.items, given.committed(place{c.shared.topic(t.Topic, t.TopicID), p.Partition}, p.Offset)...)
		}
	}
	if len(q.items) == 0 {
		return ""
	}
	q.kind = links.FrameAckConfirm
	return links.FrameAck
}

// shareBatch is a run of offsets with their acknowledgements: one for each, or
// one for all.
type shareBatch struct {
	topic       [16]byte
	partition   int32
	first, last int64
	types       []int8
}

func shareFetchBatches(r *kmsg.ShareFetchRequest) (all []shareBatch) {
	for i := range r.Topics {
		for j := range r.Topics[i].Partitions {
			p := &r.Topics[i].Partitions[j]
			for _, b := range p.AcknowledgementBatches {
				all = append(all, shareBatch{r.Topics[i].TopicID, p.Partition, b.FirstOffset, b.LastOffset, b.AcknowledgeTypes})
			}
		}
	}
	return all
}

func shareAcknowledgeBatches(r *kmsg.ShareAcknowledgeRequest) (all []shareBatch) {
	for i := range r.Topics {
		for j := range r.Topics[i].Partitions {
			p := &r.Topics[i].Partitions[j]
			for _, b := range p.AcknowledgementBatches {
				all = append(all, shareBatch{r.Topics[i].TopicID, p.Partition, b.FirstOffset, b.LastOffset, b.AcknowledgeTypes})
			}
		}
	}
	return all
}

// maxSettled bounds the messages that one request of a share group settles.
const maxSettled = 1 << 12

// settles reads the acknowledgements of a share group. A request that settles
// in several ways is named by the first of shareKinds, and lists the messages
// of that one only.
func (c *conn) settles(q *question, batches []shareBatch) (kind string, err error) {
	settled := make(map[int8][]evidence.FrameItem)
	count := int64(0)
	for _, b := range batches {
		if b.first < 0 || b.last < b.first || b.last-b.first >= maxSettled-count {
			return "", fmt.Errorf("kafka: acknowledgements of the offsets %d to %d: %d at once are the most", b.first, b.last, maxSettled)
		}
		count += b.last - b.first + 1
		at := place{c.shared.topic("", b.topic), b.partition}
		for offset := b.first; offset <= b.last && len(b.types) > 0; offset++ {
			t := b.types[min(offset-b.first, int64(len(b.types)-1))]
			settled[t] = append(settled[t], c.index.Find(at.at(offset)))
		}
	}
	for _, k := range shareKinds {
		if items := settled[k.acknowledgement]; len(items) > 0 {
			q.items, q.kind = items, k.answer
			return k.kind, nil
		}
	}
	return "", nil
}

// response understands what a broker sends.
func (c *conn) response(frame []byte) (links.Frame, error) {
	if len(frame) < 4 {
		return links.Frame{}, errShort
	}
	correlation, body := int32(binary.BigEndian.Uint32(frame)), frame[4:]
	q, known := c.asked.Lookup(correlation)
	if !known {
		return links.Frame{}, fmt.Errorf("kafka: an answer to request %d, which nobody sent", correlation)
	}
	if !understood(q.request) {
		return links.Frame{}, nil
	}
	response := q.request.ResponseKind()
	var err error
	if response.IsFlexible() {
		if body, err = skipTags(body); err != nil {
			return links.Frame{}, err
		}
	}
	if err := response.ReadFrom(body); err != nil {
		return links.Frame{}, fmt.Errorf("kafka: read the answer to a %s: %w", kmsg.NameForKey(q.request.Key()), err)
	}
	return c.answers(q, response), nil
}

func (c *conn) answers(q question, response kmsg.Response) links.Frame {
	f := links.Frame{Kind: q.kind, Items: q.items}
	switch r := response.(type) {
	case *kmsg.MetadataResponse:
		c.shared.learn(r)
	case *kmsg.ProduceResponse:
		f.Items, f.Status = c.stored(q, r)
		if q.txn != nil && f.Status == links.Yes {
			q.txn.stored(f.Items)
		}
	case *kmsg.InitProducerIDResponse:
		if q.txn != nil && r.ErrorCode == 0 {
			q.txn.ended() // the broker aborts what an earlier session has left open
		}
	case *kmsg.EndTxnResponse:
		if f.Status = worst("", r.ErrorCode); f.Status == links.Yes {
			q.txn.ended()
		}
	case *kmsg.FetchResponse:
		return c.fetched(q, r)
	case *kmsg.OffsetCommitResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				f.Status = worst(f.Status, r.Topics[i].Partitions[j].ErrorCode)
			}
		}
	case *kmsg.JoinGroupResponse:
		f.Status = worst("", r.ErrorCode)
	case *kmsg.LeaveGroupResponse:
		f.Status = worst("", r.ErrorCode)
	case *kmsg.ConsumerGroupHeartbeatResponse:
		f.Status = worst("", r.ErrorCode)
	case *kmsg.ShareGroupHeartbeatResponse:
		f.Status = worst("", r.ErrorCode)
	case *kmsg.ShareFetchResponse:
		return c.shareFetched(q, r)
	case *kmsg.ShareAcknowledgeResponse:
		f.Status = worst("", r.ErrorCode)
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				f.Status = worst(f.Status, r.Topics[i].Partitions[j].ErrorCode)
			}
		}
	}
	if f.Kind == "" {
		return links.Frame{}
	}
	return f
}

// worst is what an answer says once one more part of it has said this.
func worst(says string, code int16) string {
	if code == 0 {
		if says == "" {
			return links.Yes
		}
		return says
	}
	var known *kerr.Error
	if errors.As(kerr.ErrorForCode(code), &known) {
		return known.Message
	}
	return fmt.Sprintf("ERROR_%d", code)
}

// stored reads where the messages of a Produce came to stand.
func (c *conn) stored(q question, r *kmsg.ProduceResponse) (items []evidence.FrameItem, says string) {
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			says = worst(says, p.ErrorCode)
			at := place{c.shared.topic(t.Topic, t.TopicID), p.Partition}
			for _, m := range q.sent[at] {
				item := m.item
				if p.ErrorCode == 0 && p.BaseOffset >= 0 {
					item.MessageID = at.at(p.BaseOffset + m.delta)
					// A known ID names an earlier try, whose payload is stored.
					if c.index.Find(item.MessageID).PublishID == "" {
						c.index.Learn(item)
					}
				}
				items = append(items, item)
			}
		}
	}
	return items, says
}

// fetched lists the messages that a consumer was given: from the offset that it
// asked for on.
func (c *conn) fetched(q question, r *kmsg.FetchResponse) links.Frame {
	given := c.shared.session(q.session)
	var items []evidence.FrameItem
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			at := place{c.shared.topic(t.Topic, t.TopicID), p.Partition}
			for offset, value := range recordsOf(p.RecordBatches, aborted(p.AbortedTransactions)) {
				if offset >= q.from[at] {
					item := c.given(at, offset, value)
					given.arrived(at, offset, item)
					items = append(items, item)
				}
			}
		}
	}
	return delivery(items)
}

// aborted gives the transactions that a client which reads what is committed
// leaves out, in the order of their beginnings.
func aborted(told []kmsg.FetchResponseTopicPartitionAbortedTransaction) []abort {
	var all []abort
	for i := range told {
		all = append(all, abort{told[i].ProducerID, told[i].FirstOffset})
	}
	slices.SortFunc(all, func(a, b abort) int { return cmp.Compare(a.first, b.first) })
	return all
}

func delivery(items []evidence.FrameItem) links.Frame {
	if len(items) == 0 {
		return links.Frame{} // a long poll that ended
	}
	return links.Frame{Kind: links.FrameDeliver, Items: items}
}

// shareFetched lists the messages that a member of a share group acquired; an
// answer without any confirms the acknowledgements of its request.
func (c *conn) shareFetched(q question, r *kmsg.ShareFetchResponse) links.Frame {
	says := worst("", r.ErrorCode)
	var items []evidence.FrameItem
	for i := range r.Topics {
		for j := range r.Topics[i].Partitions {
			p := &r.Topics[i].Partitions[j]
			says = worst(says, p.AcknowledgeErrorCode)
			at := place{c.shared.topic("", r.Topics[i].TopicID), p.Partition}
			for offset, value := range recordsOf(p.Records, nil) {
				if acquired(p, offset) {
					items = append(items, c.given(at, offset, value))
				}
			}
		}
	}
	if len(items) == 0 && len(q.items) > 0 {
		return links.Frame{Kind: q.kind, Items: q.items, Status: says}
	}
	return delivery(items)
}

// acquired looks an offset up among the ranges of an answer, which are in order.
func acquired(p *kmsg.ShareFetchResponseTopicPartition, offset int64) bool {
	ranges := p.AcquiredRecords
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].LastOffset >= offset })
	return i < len(ranges) && ranges[i].FirstOffset <= offset
}

// given is a message on its way to a consumer.
func (c *conn) given(at place, offset int64, value []byte) evidence.FrameItem {
	item := ofPayload(value)
	item.MessageID = at.at(offset)
	c.index.Learn(item)
	return item
}

func ofPayload(payload []byte) evidence.FrameItem {
	e, err := evidence.ParseEnvelope(payload)
	if err != nil {
		return evidence.FrameItem{}
	}
	return evidence.FrameItem{BusinessID: e.BusinessID, PublishID: e.PublishID}
}
