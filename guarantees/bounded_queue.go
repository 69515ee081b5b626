package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var boundedQueue = Guarantee{
	Name: evidence.BoundedQueue, Usual: "queue length limit, back-pressure",
	Text: "No more messages of one destination wait in the store than the stated bound; a publish beyond it is declined.",
	Rule: "Counted in every exact snapshot of the broker, for each destination and logical subscriber.",
	new:  func() checker { return bounded{} },
}

type bounded struct{}

func (bounded) conclude(v view, out *ruling) {
	limit := v.Limits.MaxPending
	if limit <= 0 {
		out.notApplicable = "the profile names no bound"
		return
	}
	type queue struct{ partition, destination, subscription string }
	for i := range v.Snapshots {
		s := &v.Snapshots[i]
		if s.Source != evidence.SourceBroker {
			continue
		}
		if s.Trust != evidence.Exact {
			out.undecided(fmt.Sprintf("the rows at %q are not exact", s.Checkpoint))
			continue
		}
		out.instances++
		waiting := make(map[queue]int)
		for k := range s.Rows {
			row := &s.Rows[k]
			q := queue{row.Partition, row.Destination, row.Subscription}
			if row.State != evidence.RowPending || row.Expired {
				continue
			}
			if waiting[q]++; waiting[q] == limit+1 {
				out.violate(byEvents, Finding{Kind: "over-bound", BusinessID: row.BusinessID, PublishID: row.PublishID, MessageID: row.MessageID,
					Subscription: row.Subscription, HandOver: BrokerToStore, Events: events(s.Seq),
					Text: fmt.Sprintf("more than %d messages of %s wait at %q", limit, row.Destination, s.Checkpoint)})
			}
		}
	}
}
