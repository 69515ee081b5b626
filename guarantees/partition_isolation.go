package guarantees

import (
	"fmt"
	"slices"

	"github.com/custodymq/custody/evidence"
)

var partitionIsolation = Guarantee{
	Name: evidence.PartitionIsolation, Usual: "tenant isolation",
	Text: "No instance reads, delivers or purges another partition's rows.",
	Rule: "A row of a partition that the broker never ran under between two exact snapshots is the same in both. A message accepted under one partition is not delivered, on a session opened since, while the broker runs under another (unless that one took it over by migration).",
	new:  func() checker { return &isolation{home: make(map[ref]int)} },
}

type isolation struct {
	home map[ref]int // by accepted publish: the number of the broker's start, from 1
}

func (c *isolation) on() []evidence.Kind {
	return []evidence.Kind{evidence.PublishReturned, evidence.Delivered}
}

func (c *isolation) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	now := len(v.Partitions)
	if m == nil || now == 0 {
		return
	}
	if e.Kind == evidence.PublishReturned {
		if e.Acceptance == evidence.Accepted {
			c.home[m.Ref] = now
		}
		return
	}
	home, ok := c.home[m.Ref]
	if !ok || home == now || !v.Partitions[now-1].Before(v.SessionOf(e).OpenCalled) {
		return
	}
	out.instances++
	was, is := v.Partitions[home-1].Names[0], v.Partitions[now-1].Names
	if slices.Contains(is, was) {
		return
	}
	f := v.finding(m, r, "delivered-across", StoreToConsumer, m.Returned.Seq, v.Partitions[now-1].Seq, e.Seq)
	f.Text = fmt.Sprintf("%s was accepted in partition %s, and delivered while the broker ran under %s", v.Label(m), was, is[0])
	out.violate(byEvents, f)
}

// rowID identifies a row within the store.
type rowID struct{ partition, publish, message, business, subscription string }

func idOf(r *evidence.StoredRow) rowID {
	return rowID{r.Partition, r.PublishID, r.MessageID, r.BusinessID, r.Subscription}
}

func (c *isolation) conclude(v view, out *ruling) {
	last := -1
	for i := range v.Snapshots {
		s := &v.Snapshots[i]
		if s.Source != evidence.SourceBroker || s.Trust != evidence.Exact {
			continue
		}
		if last >= 0 {
			c.compare(v, &v.Snapshots[last], s, out)
		}
		last = i
	}
}

// compare checks that rows of foreign partitions are equal in two snapshots.
func (c *isolation) compare(v view, from, to *evidence.Snapshot, out *ruling) {
	own := []string{"", from.Partition, to.Partition}
	for i, p := range v.Partitions {
		until := ^uint64(0)
		if i+1 < len(v.Partitions) {
			until = v.Partitions[i+1].Seq
		}
		if p.Seq < to.Seq && until > from.Seq {
			own = append(own, p.Names...)
		}
	}
	later := make(map[rowID]*evidence.StoredRow)
	for i := range to.Rows {
		later[idOf(&to.Rows[i])] = &to.Rows[i]
	}
	for i := range from.Rows {
		row := &from.Rows[i]
		if slices.Contains(own, row.Partition) {
			continue
		}
		out.instances++
		kind, text := "", ""
		switch now := later[idOf(row)]; {
		case now == nil:
			kind, text = "row-gone", "is gone"
		case now.State != row.State || now.Digest != row.Digest || now.Attempts != row.Attempts:
			kind, text = "row-changed", "was changed"
		default:
			continue
		}
		out.violate(byEvents, Finding{Kind: kind, BusinessID: row.BusinessID, PublishID: row.PublishID, MessageID: row.MessageID,
			Subscription: row.Subscription, HandOver: StoreToConsumer, Events: events(from.Seq, to.Seq),
			Text:    fmt.Sprintf("a row of partition %s %s between %q and %q, and the broker never ran under it", row.Partition, text, from.Checkpoint, to.Checkpoint),
			Follows: []string{evidence.NoAcceptedLoss}})
	}
}
