package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var noPhantom = Guarantee{
	Name: evidence.NoPhantom, Usual: "integrity",
	Text: "Nothing is delivered that was never published, and what is delivered is what was sent: payload, key and headers.",
	Rule: "Joined on the publish ID in the payload and compared by digest; a payload without it was not ours or was altered. Deliveries that our own faults corrupted are left out.",
	new:  func() checker { return &phantom{} },
}

type phantom struct {
	corrupted int        // frames altered by a fault, whose deliveries may lack an envelope
	early     []sighting // deliveries recorded before the call of their publish
}

// maxEarly bounds the deliveries kept until the call of their publish is
// recorded.
const maxEarly = 1 << 16

type sighting struct {
	ref              ref
	seq              uint64
	digest, business uint64
	businessID       string
	sub              symbol
}

func (c *phantom) on() []evidence.Kind {
	return []evidence.Kind{evidence.Delivered, evidence.FaultFired}
}

func (c *phantom) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if e.Kind == evidence.FaultFired {
		if e.Struck == "corrupt" {
			c.corrupted++
		}
		return
	}
	out.instances++
	if m == nil {
		if c.corrupted > 0 {
			c.corrupted--
			return
		}
		out.violate(byEvents, Finding{Kind: "no-envelope", MessageID: e.MessageID, HandOver: BrokerToConsumer, Events: []uint64{e.Seq},
			Text: fmt.Sprintf("a delivery to %s is not what anybody published%s", e.Actor, quote(e))})
		return
	}
	s := sighting{m.Ref, e.Seq, ledger.Hash(e.Digest), ledger.Hash(e.BusinessID), e.BusinessID, r.Sub}
	if m.Called.Seq == 0 {
		if len(c.early) < maxEarly {
			c.early = append(c.early, s)
		} else {
			out.undecided("too many deliveries were recorded before their publish was called")
		}
		return
	}
	c.compare(v, m, s, out)
}

func (c *phantom) compare(v view, m *message, s sighting, out *ruling) {
	kind, what := "", ""
	switch {
	case s.digest != 0 && m.DigestKey != 0 && s.digest != m.DigestKey:
		kind, what = "altered", "its payload, key or headers are not what was sent"
	case s.business != 0 && m.BusinessKey != 0 && s.business != m.BusinessKey:
		kind, what = "mixed-up", "it came with business ID "+s.businessID
	}
	if kind == "" || m.StruckBy("corrupt") {
		return
	}
	f := v.finding(m, nil, kind, BrokerToConsumer, s.seq)
	f.Subscription = v.Name(s.sub)
	f.Text = fmt.Sprintf("%s was delivered altered: %s", v.Label(m), what)
	out.violate(byEvents, f)
}

func (c *phantom) conclude(v view, out *ruling) {
	for _, s := range c.early {
		m := v.Message(s.ref)
		if m.Called.Seq != 0 {
			c.compare(v, m, s, out)
			continue
		}
		f := v.finding(m, nil, "never-published", BrokerToConsumer, s.seq)
		f.BusinessID, f.Subscription = s.businessID, v.Name(s.sub)
		f.Text = fmt.Sprintf("%s was delivered, and nobody published it", v.PublishID(m))
		out.violate(byEvents, f)
	}
	if v.BusinessEnd == nil {
		return
	}
	for _, row := range v.BusinessEnd.Rows {
		if row.State == evidence.RowEffect && row.BusinessID != "" && v.OfBusiness(ledger.Hash(row.BusinessID)) == 0 {
			out.violate(byAbsence, Finding{Kind: "effect-of-nothing", BusinessID: row.BusinessID, PublishID: row.PublishID,
				Subscription: row.Subscription, HandOver: ConsumerToBusiness,
				Text: fmt.Sprintf("%s has an effect, and nobody published it", row.BusinessID)})
		}
	}
}
