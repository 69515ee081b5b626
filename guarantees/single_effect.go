package guarantees

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var singleEffect = Guarantee{
	Name: evidence.SingleEffect, Usual: "effectively-once",
	Text: "There is never more than one effect per business ID and logical subscriber, and none if every publish of it was declined or rejected.",
	Rule: "Judged from the business database's rows, never from an event that says so. A publish of which our own fault sent a copy may have one effect more: the system was given two messages.",
	new:  func() checker { return &single{} },
}

type single struct{}

// close finds effects of refused publishes.
func (c *single) close(v view, m *message, out *ruling) {
	if m.Frozen || !m.Refused() {
		return
	}
	group := v.Group(m)
	if group[0].Ref != m.Ref { // once per business ID
		return
	}
	for _, o := range group {
		if !o.Refused() {
			return
		}
	}
	for _, sub := range append([]symbol{0}, subscribersOf(v)...) {
		if n := len(v.Effects[ledger.EffectKey{Business: m.BusinessKey, Sub: sub}]); n > 0 {
			f := v.finding(m, nil, "effect-of-refused", ClientToBroker, m.Returned.Seq)
			f.Subscription = v.Name(sub)
			f.Text = fmt.Sprintf("%s was refused at every publish, and has %d effect(s)", v.Label(m), n)
			f.Follows = []string{evidence.DeclinedMeansAbsent}
			out.violate(byAbsence, f) // an accepted publish of it may be unrecorded
		}
	}
	out.instances++
}

func subscribersOf(v view) []symbol {
	names := make([]symbol, len(v.Subscribers))
	for i, s := range v.Subscribers {
		names[i] = s.Name
	}
	return names
}

func (c *single) conclude(v view, out *ruling) {
	out.layers = []Layer{
		{"broker", "redelivered", v.Redelivered},
		{"consumption log", "absorbed", v.Absorbed},
		{"client", "retried", v.Retried},
	}
	if v.BusinessEnd == nil {
		if v.HasEffects {
			out.undecided("effects were reported, and no business rows were read to judge them by")
		}
		return
	}
	if v.BusinessEnd.Trust != evidence.Exact {
		out.undecided("the business database was not read exactly")
	}
	type doubled struct {
		key  ledger.EffectKey
		rows []*evidence.StoredRow
	}
	var twice []doubled
	for k, rows := range v.Effects {
		out.instances++
		if len(rows) > 1 && len(rows) > 1+v.copiesOf(k.Business) {
			twice = append(twice, doubled{k, rows})
		}
	}
	slices.SortFunc(twice, func(a, b doubled) int {
		return cmp.Or(cmp.Compare(a.rows[0].BusinessID, b.rows[0].BusinessID), cmp.Compare(v.Name(a.key.Sub), v.Name(b.key.Sub)))
	})
	for _, d := range twice {
		row := d.rows[len(d.rows)-1]
		f := Finding{Kind: "second-effect", BusinessID: row.BusinessID, PublishID: row.PublishID, MessageID: row.MessageID,
			Subscription: row.Subscription, HandOver: ConsumerToBusiness, Events: v.effectEvents(d.key)}
		f.Text = fmt.Sprintf("%s has %d effects for %s", row.BusinessID, len(d.rows), cmp.Or(row.Subscription, "its subscriber"))
		out.violate(byEvents, f)
	}
}

// copiesOf counts the copies that faults made of a business ID's publishes.
func (v view) copiesOf(business uint64) (copies int) {
	r := v.OfBusiness(business)
	if r == 0 {
		return 0
	}
	for _, m := range v.Group(v.Message(r)) {
		for _, s := range m.Struck {
			if s.How == "duplicate" && s.Frame == ledger.FramePublish {
				copies += s.Copies()
			}
		}
	}
	return copies
}

// effectEvents returns the deliveries and commits behind the effects of a
// business ID.
func (v view) effectEvents(k ledger.EffectKey) []uint64 {
	r := v.OfBusiness(k.Business)
	if r == 0 {
		return nil
	}
	var seqs []uint64
	for _, m := range v.Group(v.Message(r)) {
		for i := range m.Receipts {
			if x := &m.Receipts[i]; !m.Frozen && (k.Sub == 0 || x.Sub == k.Sub) {
				seqs = append(seqs, x.First.Seq, x.Last.Seq, x.Committed.Seq)
			}
		}
	}
	return events(seqs...)
}
