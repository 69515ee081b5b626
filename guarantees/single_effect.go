package guarantees

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/custodymq/custody/evidence"
)

var singleEffect = Guarantee{
	Name: evidence.SingleEffect, Usual: "effectively-once",
	Text: "There is never more than one effect per business ID and logical subscriber, and none if every publish of it was declined or rejected.",
	Rule: "Judged from the business database's rows, never from an event that says so. A publish of which our own fault sent a copy may have one effect more: the system was given two messages.",
	new:  func() checker { return &single{} },
}

type single struct{}

// close finds effects of what the system refused.
func (c *single) close(l *ledger, m *message, out *ruling) {
	if m.frozen || !m.refused() {
		return
	}
	group := l.group(m)
	if group[0].ref != m.ref { // once for each business ID
		return
	}
	for _, o := range group {
		if !o.refused() {
			return
		}
	}
	for _, sub := range append([]uint32{0}, subscribersOf(l)...) {
		if n := len(l.effects[effectKey{m.businessKey, sub}]); n > 0 {
			f := l.finding(m, nil, "effect-of-refused", m.returned.seq)
			f.Subscription = l.name(sub)
			f.HandOver = ClientToBroker
			f.Text = fmt.Sprintf("%s was refused at every publish, and has %d effect(s)", l.label(m), n)
			f.Follows = []string{evidence.DeclinedMeansAbsent}
			out.violate(byAbsence, f) // another publish of it may be missing
		}
	}
	out.instances++
}

func subscribersOf(l *ledger) []uint32 {
	names := make([]uint32, len(l.subscribers))
	for i, s := range l.subscribers {
		names[i] = s.name
	}
	return names
}

func (c *single) conclude(l *ledger, out *ruling) {
	out.layers = []Layer{
		{"broker", "redelivered", l.redelivered},
		{"consumption log", "absorbed", l.absorbed},
		{"client", "retried", l.retried},
	}
	if l.businessEnd == nil {
		if l.hasEffects {
			out.undecided("effects were reported, and no business rows were read to judge them by")
		}
		return
	}
	if l.businessEnd.Trust != evidence.Exact {
		out.undecided("the business database was not read exactly")
	}
	type doubled struct {
		key  effectKey
		rows []*evidence.StoredRow
	}
	var twice []doubled
	for k, rows := range l.effects {
		out.instances++
		if len(rows) > 1 && len(rows) > 1+l.copiesOf(k.business) {
			twice = append(twice, doubled{k, rows})
		}
	}
	slices.SortFunc(twice, func(a, b doubled) int {
		return cmp.Or(cmp.Compare(a.rows[0].BusinessID, b.rows[0].BusinessID), cmp.Compare(l.name(a.key.sub), l.name(b.key.sub)))
	})
	for _, d := range twice {
		row := d.rows[len(d.rows)-1]
		f := Finding{Kind: "second-effect", BusinessID: row.BusinessID, PublishID: row.PublishID, MessageID: row.MessageID,
			Subscription: row.Subscription, HandOver: ConsumerToBusiness, Events: l.effectEvents(d.key)}
		f.Text = fmt.Sprintf("%s has %d effects for %s", row.BusinessID, len(d.rows), cmp.Or(row.Subscription, "its subscriber"))
		out.violate(byEvents, f)
	}
}

// copiesOf a business ID's publishes that our own faults have sent.
func (l *ledger) copiesOf(business uint64) (copies int) {
	r := l.ofBusiness(business)
	if r == 0 {
		return 0
	}
	for _, m := range l.group(l.message(r)) {
		for _, s := range m.struck {
			if s.how == "duplicate" && s.frame == framePublish {
				copies += max(s.fired, s.carried)
			}
		}
	}
	return copies
}

// effectEvents are the deliveries and commits behind the effects of a business ID.
func (l *ledger) effectEvents(k effectKey) []uint64 {
	r := l.ofBusiness(k.business)
	if r == 0 {
		return nil
	}
	var seqs []uint64
	for _, m := range l.group(l.message(r)) {
		for i := range m.receipts {
			if x := &m.receipts[i]; !m.frozen && (k.sub == 0 || x.sub == k.sub) {
				seqs = append(seqs, x.first.seq, x.last.seq, x.committed.seq)
			}
		}
	}
	return events(seqs...)
}
