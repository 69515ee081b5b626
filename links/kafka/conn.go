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

// conn interprets both directions of a connection. Requests and responses are
// read by one goroutine each; they share asked.
type conn struct {
	shared *shared
	index  *links.Index
	asked  *links.Pending[int32, pendingRequest]
	from   positions // of the fetch session, after the last Fetch
}

// positions are a Fetch's offsets by partition. A broker answers with whole
// batches, which may begin earlier.
type positions map[topicPartition]int64

// maxPositions bounds a fetch session's partitions.
const maxPositions = 1 << 12

// Acknowledgement types of share groups (KIP-932); 0 is a gap.
const (
	shareAccept  = 1
	shareRelease = 2
	shareReject  = 3
	shareRenew   = 4
)

// shareKinds by precedence: a request with several types gets the first.
var shareKinds = []struct {
	acknowledgement int8
	kind, answer    string
}{
	{shareAccept, links.FrameAck, links.FrameAckConfirm},
	{shareRelease, links.FrameNack, links.FrameNackConfirm},
	{shareReject, FrameReject, links.FrameNackConfirm},
	{shareRenew, FrameRenew, links.FrameNackConfirm},
}

// request interprets a client's request.
func (c *conn) request(frame []byte) (links.Frame, error) {
	key, version, correlation, client, body, err := requestHead(frame)
	if err != nil {
		return links.Frame{}, err
	}
	request := kmsg.RequestForKey(key)
	if request == nil || version < 0 {
		return links.Frame{}, fmt.Errorf("kafka: unknown request %d of version %d", key, version)
	}
	request.SetVersion(version)
	q := pendingRequest{request: request, session: client}
	if !understood(request) {
		c.asked.Add(correlation, q)
		return links.Frame{}, nil
	}
	if version > request.MaxVersion() {
		return links.Frame{}, fmt.Errorf("kafka: %s in version %d, newer than the supported %d", kmsg.NameForKey(key), version, request.MaxVersion())
	}
	if request.IsFlexible() {
		if body, err = skipTags(body); err != nil {
			return links.Frame{}, err
		}
	}
	if err := request.ReadFrom(body); err != nil {
		return links.Frame{}, fmt.Errorf("kafka: parse %s: %w", kmsg.NameForKey(key), err)
	}
	kind, err := c.classify(&q)
	if err != nil {
		return links.Frame{}, err
	}
	if produce, ok := request.(*kmsg.ProduceRequest); !ok || produce.Acks != 0 {
		// The body would retain the relay's buffer, which is reused.
		q.request = kmsg.RequestForKey(key)
		q.request.SetVersion(version)
		c.asked.Add(correlation, q)
	}
	return links.Frame{Kind: kind, Items: q.items}, nil
}

// understood reports whether a request's body is needed, for itself or for its
// answer.
func understood(r kmsg.Request) bool {
	switch r.(type) {
	case *kmsg.ProduceRequest, *kmsg.FetchRequest, *kmsg.MetadataRequest, *kmsg.OffsetCommitRequest,
		*kmsg.JoinGroupRequest, *kmsg.LeaveGroupRequest, *kmsg.ConsumerGroupHeartbeatRequest, *kmsg.InitProducerIDRequest, *kmsg.EndTxnRequest,
		*kmsg.ShareGroupHeartbeatRequest, *kmsg.ShareFetchRequest, *kmsg.ShareAcknowledgeRequest:
		return true
	}
	return false
}

// classify returns a request's kind, and fills in q for its answer.
func (c *conn) classify(q *pendingRequest) (kind string, err error) {
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
		return c.endTxn(r, q), nil
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
		kind, err = c.readAcks(q, shareFetchBatches(r))
		if kind == "" {
			kind = FrameFetch
		}
		return kind, err
	case *kmsg.ShareAcknowledgeRequest:
		return c.readAcks(q, shareAcknowledgeBatches(r))
	}
	return "", nil
}

// heartbeat classifies one of a group with the new protocol: epoch 0 joins, a
// negative one leaves.
func (q *pendingRequest) heartbeat(epoch int32) string {
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

func (c *conn) produced(r *kmsg.ProduceRequest, q *pendingRequest) {
	q.sent = make(map[topicPartition][]sent)
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			at := topicPartition{c.shared.topic(t.Topic, t.TopicID), t.Partitions[j].Partition}
			for delta, value := range recordsOf(t.Partitions[j].Records, nil) {
				item := ofPayload(value)
				q.sent[at] = append(q.sent[at], sent{delta, item})
				q.items = append(q.items, item)
			}
		}
	}
}

// endTxn lists what a transaction stored. Publishes are accepted by the answer
// to this request.
func (c *conn) endTxn(r *kmsg.EndTxnRequest, q *pendingRequest) string {
	q.txn = c.shared.transaction(r.TransactionalID)
	q.items = q.txn.open()
	if !r.Commit {
		q.kind = FrameAborted
		return FrameAbort
	}
	q.kind = links.FrameAccept
	return FrameCommit
}

// position tracks a fetch session (KIP-227): epoch 0 begins one, a negative one
// is none, any other request is incremental.
func (c *conn) position(r *kmsg.FetchRequest) (positions, error) {
	from := make(positions)
	if r.SessionEpoch > 0 {
		maps.Copy(from, c.from)
	}
	for i := range r.ForgottenTopics {
		t := &r.ForgottenTopics[i]
		for _, partition := range t.Partitions {
			delete(from, topicPartition{c.shared.topic(t.Topic, t.TopicID), partition})
		}
	}
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			from[topicPartition{c.shared.topic(t.Topic, t.TopicID), t.Partitions[j].Partition}] = t.Partitions[j].FetchOffset
		}
	}
	if len(from) > maxPositions {
		return nil, fmt.Errorf("kafka: a fetch of more than %d partitions", maxPositions)
	}
	c.from = from
	return from, nil
}

// commits lists what a commit acknowledges: all that its session received
// before the offset and has not committed. With nothing new it has no kind.
func (c *conn) commits(r *kmsg.OffsetCommitRequest, q *pendingRequest) string {
	given := c.shared.session(q.session)
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			q.items = append(q.items, given.committed(topicPartition{c.shared.topic(t.Topic, t.TopicID), p.Partition}, p.Offset)...)
		}
	}
	if len(q.items) == 0 {
		return ""
	}
	q.kind = links.FrameAckConfirm
	return links.FrameAck
}

// shareBatch is a range of offsets with one acknowledgement type each, or one
// for all.
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

// maxSettled bounds the messages settled by one share group request.
const maxSettled = 1 << 12

// readAcks parses share group acknowledgements. With several types, the first
// of shareKinds names the request, which lists those messages only.
func (c *conn) readAcks(q *pendingRequest, batches []shareBatch) (kind string, err error) {
	settled := make(map[int8][]evidence.FrameItem)
	count := int64(0)
	for _, b := range batches {
		if b.first < 0 || b.last < b.first || b.last-b.first >= maxSettled-count {
			return "", fmt.Errorf("kafka: acknowledgements of the offsets %d to %d: more than %d at once", b.first, b.last, maxSettled)
		}
		count += b.last - b.first + 1
		at := topicPartition{c.shared.topic("", b.topic), b.partition}
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

// response interprets a broker's response.
func (c *conn) response(frame []byte) (links.Frame, error) {
	if len(frame) < 4 {
		return links.Frame{}, errShort
	}
	correlation, body := int32(binary.BigEndian.Uint32(frame)), frame[4:]
	q, known := c.asked.Lookup(correlation)
	if !known {
		return links.Frame{}, fmt.Errorf("kafka: an answer to unknown request %d", correlation)
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
		return links.Frame{}, fmt.Errorf("kafka: parse the answer to %s: %w", kmsg.NameForKey(q.request.Key()), err)
	}
	return c.answers(q, response), nil
}

func (c *conn) answers(q pendingRequest, response kmsg.Response) links.Frame {
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
			q.txn.ended() // the broker aborts an open transaction of the previous session
		}
	case *kmsg.EndTxnResponse:
		if f.Status = worseStatus("", r.ErrorCode); f.Status == links.Yes {
			q.txn.ended()
		}
	case *kmsg.FetchResponse:
		return c.fetched(q, r)
	case *kmsg.OffsetCommitResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				f.Status = worseStatus(f.Status, r.Topics[i].Partitions[j].ErrorCode)
			}
		}
	case *kmsg.JoinGroupResponse:
		f.Status = worseStatus("", r.ErrorCode)
	case *kmsg.LeaveGroupResponse:
		f.Status = worseStatus("", r.ErrorCode)
	case *kmsg.ConsumerGroupHeartbeatResponse:
		f.Status = worseStatus("", r.ErrorCode)
	case *kmsg.ShareGroupHeartbeatResponse:
		f.Status = worseStatus("", r.ErrorCode)
	case *kmsg.ShareFetchResponse:
		return c.shareFetched(q, r)
	case *kmsg.ShareAcknowledgeResponse:
		f.Status = worseStatus("", r.ErrorCode)
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				f.Status = worseStatus(f.Status, r.Topics[i].Partitions[j].ErrorCode)
			}
		}
	}
	if f.Kind == "" {
		return links.Frame{}
	}
	return f
}

// worseStatus combines an answer's status with one more of its parts.
func worseStatus(says string, code int16) string {
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

// stored lists the messages of a Produce with their offsets.
func (c *conn) stored(q pendingRequest, r *kmsg.ProduceResponse) (items []evidence.FrameItem, says string) {
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			says = worseStatus(says, p.ErrorCode)
			at := topicPartition{c.shared.topic(t.Topic, t.TopicID), p.Partition}
			for _, m := range q.sent[at] {
				item := m.item
				if p.ErrorCode == 0 && p.BaseOffset >= 0 {
					item.MessageID = at.at(p.BaseOffset + m.delta)
					// A known ID is a deduplicated retry: the first payload is
					// stored.
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

// fetched lists the messages delivered, from the requested offset on.
func (c *conn) fetched(q pendingRequest, r *kmsg.FetchResponse) links.Frame {
	given := c.shared.session(q.session)
	var items []evidence.FrameItem
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			at := topicPartition{c.shared.topic(t.Topic, t.TopicID), p.Partition}
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

// aborted returns the aborted transactions that a read-committed client skips,
// sorted by first offset.
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
		return links.Frame{} // an empty long poll
	}
	return links.Frame{Kind: links.FrameDeliver, Items: items}
}

// shareFetched lists the messages a share group member acquired; without any,
// the response confirms the request's acknowledgements.
func (c *conn) shareFetched(q pendingRequest, r *kmsg.ShareFetchResponse) links.Frame {
	says := worseStatus("", r.ErrorCode)
	var items []evidence.FrameItem
	for i := range r.Topics {
		for j := range r.Topics[i].Partitions {
			p := &r.Topics[i].Partitions[j]
			says = worseStatus(says, p.AcknowledgeErrorCode)
			at := topicPartition{c.shared.topic("", r.Topics[i].TopicID), p.Partition}
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

// acquired looks up an offset in the sorted ranges of a response.
func acquired(p *kmsg.ShareFetchResponseTopicPartition, offset int64) bool {
	ranges := p.AcquiredRecords
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].LastOffset >= offset })
	return i < len(ranges) && ranges[i].FirstOffset <= offset
}

// given is a message delivered to a consumer.
func (c *conn) given(at topicPartition, offset int64, value []byte) evidence.FrameItem {
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
