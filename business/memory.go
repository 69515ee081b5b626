package business

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Memory is a Store in memory, for runs in virtual time. Not safe for
// concurrent use: it may be entered again only while a gate waits.
type Memory struct {
	gate    Gate
	state   tables
	numbers int64
	backups map[string]tables
}

// tables are never changed in place, so that a copy is a snapshot.
type tables struct {
	effects, log []evidence.StoredRow
	keys, paid   []pair
	outbox       []sending
}

// pair is a subscriber and a business ID.
type pair struct{ subscriber, businessID string }

// sending is a row of the outbox and its standing.
type sending struct {
	Pending
	sent  bool
	until time.Time // of the claim
}

// NewMemory returns an empty database.
func NewMemory(gate Gate) *Memory { return &Memory{gate: gate, backups: map[string]tables{}} }

// Apply passes the gates first and performs all operations at once on commit, so
// that transactions are serialised.
func (d *Memory) Apply(ctx context.Context, m Delivery, ops []Op) (Outcome, error) {
	scratch := d.state
	for _, op := range ops {
		repeat := false
		if err := d.gate.through(ctx, op, m.BusinessID, func() error { repeat = scratch.perform(op, m); return nil }); err != nil {
			return Failed, err
		}
		if repeat {
			return Absorbed, nil
		}
	}
	outcome, done := Failed, false
	err := d.gate.through(ctx, Commit, m.BusinessID, func() error {
		next := d.state
		for _, op := range ops {
			if next.perform(op, m) {
				outcome, done = Absorbed, true
				return nil
			}
		}
		d.state, outcome, done = next, Committed, true
		return nil
	})
	if err != nil && done {
		return Uncertain, err
	}
	return outcome, err
}

// perform reports whether the operation found a repeat.
func (t *tables) perform(op Op, m Delivery) (repeat bool) {
	logged := func(r evidence.StoredRow) bool { return r.Subscription == m.Subscriber && r.MessageID == m.LogKey }
	here := pair{m.Subscriber, m.BusinessID}
	row := evidence.StoredRow{State: evidence.RowLog, Subscription: m.Subscriber, BusinessID: m.BusinessID, PublishID: m.PublishID, MessageID: m.LogKey}
	effect := row
	effect.State, effect.MessageID, effect.Digest = evidence.RowEffect, m.MessageID, m.Digest
	ofBusiness := func(r evidence.StoredRow) bool { return r.Subscription == m.Subscriber && r.BusinessID == m.BusinessID }
	switch op {
	case Log, Note:
		if op == Log && slices.ContainsFunc(t.log, logged) {
			return true
		}
		t.log = append(slices.Clone(t.log), row)
	case Check:
		return slices.ContainsFunc(t.log, logged)
	case Prune:
		newest := len(t.log) - 1
		for t.log[newest].Subscription != m.Subscriber {
			newest--
		}
		kept := t.log[newest]
		t.log = append(slices.DeleteFunc(slices.Clone(t.log), func(r evidence.StoredRow) bool { return r.Subscription == m.Subscriber }), kept)
	case Unique, Transition:
		known := &t.keys
		if op == Transition {
			known = &t.paid
		}
		if slices.Contains(*known, here) {
			return true
		}
		*known = append(slices.Clone(*known), here)
	case Done:
		return slices.ContainsFunc(t.effects, ofBusiness)
	case Effect:
		t.effects = append(slices.Clone(t.effects), effect)
	case Assign:
		t.effects = append(slices.DeleteFunc(slices.Clone(t.effects), ofBusiness), effect)
	case Lock: // transactions are serialised
	}
	return false
}

// Record keeps the messages only: nobody would read the row.
func (d *Memory) Record(ctx context.Context, _, businessID string, messages ...Pending) (Outcome, error) {
	for i := range messages {
		d.numbers++
		messages[i].Seq = d.numbers
	}
	pass := func() error { return nil }
	if err := d.gate.through(ctx, Record, businessID, pass); err != nil {
		return Failed, err
	}
	if len(messages) > 0 {
		if err := d.gate.through(ctx, Enqueue, businessID, pass); err != nil {
			return Failed, err
		}
	}
	outcome := Failed
	err := d.gate.through(ctx, Commit, businessID, func() error {
		outbox := slices.Clone(d.state.outbox)
		for _, m := range messages {
			outbox = append(outbox, sending{Pending: m})
		}
		d.state.outbox, outcome = outbox, Committed
		return nil
	})
	if err != nil && outcome == Committed {
		return Uncertain, err
	}
	return outcome, err
}

func (d *Memory) Claim(ctx context.Context, c Claim) (rows []Pending, err error) {
	err = d.gate.through(ctx, Take, "", func() error {
		outbox := slices.Clone(d.state.outbox)
		slices.SortFunc(outbox, func(a, b sending) int { return cmp.Compare(a.Seq, b.Seq) })
		blocked := map[string]bool{} // keys with an earlier row that is not sent
		for i := range outbox {
			o := &outbox[i]
			if o.Destination != c.Destination || len(rows) == c.Most {
				continue
			}
			free := !o.sent && !blocked[o.Key] && !o.until.After(c.Now)
			if c.After >= 0 {
				free = o.Seq > c.After
			}
			blocked[o.Key] = blocked[o.Key] || !o.sent && o.Key != ""
			if free {
				o.until = c.Now.Add(c.Lease)
				o.Tries++
				rows = append(rows, o.Pending)
			}
		}
		d.state.outbox = outbox
		return nil
	})
	return rows, err
}

func (d *Memory) Mark(ctx context.Context, seq int64, businessID string) error {
	return d.gate.through(ctx, Mark, businessID, func() error {
		d.change(seq, func(o *sending) { o.sent = true })
		return nil
	})
}

func (d *Memory) Release(ctx context.Context, seq int64) error {
	return d.gate.through(ctx, Release, "", func() error {
		d.change(seq, func(o *sending) { o.until = time.Time{} })
		return nil
	})
}

func (d *Memory) change(seq int64, do func(*sending)) {
	outbox := slices.Clone(d.state.outbox)
	for i := range outbox {
		if outbox[i].Seq == seq {
			do(&outbox[i])
		}
	}
	d.state.outbox = outbox
}

func (d *Memory) Backup(_ context.Context, path string) error {
	d.backups[path] = d.state
	return nil
}

func (d *Memory) Restore(_ context.Context, path string) error {
	kept, ok := d.backups[path]
	if !ok {
		return fmt.Errorf("business: restore from %s: no such backup", path)
	}
	kept.outbox = d.state.outbox
	d.state = kept
	return nil
}

func (d *Memory) Rows(context.Context) (evidence.Snapshot, error) {
	rows := slices.Concat(d.state.effects, d.state.log)
	for _, o := range d.state.outbox {
		rows = append(rows, evidence.StoredRow{State: outboxStates[o.sent], BusinessID: o.BusinessID, MessageID: o.MessageID, Destination: o.Destination, Attempts: o.Tries})
	}
	return evidence.Snapshot{Source: evidence.SourceBusiness, Trust: evidence.Exact, Rows: rows, Count: len(rows)}, nil
}

func (d *Memory) Close() error { return nil }
