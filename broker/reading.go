package broker

import (
	"context"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// Reading is a piece of work on the store's read side: the content of some
// messages, one inspection, or what goes before and after a swap.
type Reading struct {
	store   store.Store
	reads   *int // readings of that store
	fetches []core.Effect
	content map[string]store.Row
	inspect *inspection
	swap    *swap       // to be prepared
	close   store.Store // that was swapped
	err     error
}

const (
	inspectionsAtOnce = 2
	fetchesAtOnce     = 64 // messages of one reading
	fetchBytes        = 8 << 20
)

// Read gives the next reading that may begin, to be done by Perform and answered
// by Finish; nil if there is none. An inspection begins when the writes that were
// asked for before it are made.
func (e *Engine) Read() *Reading {
	r := e.nextReading()
	if r != nil && r.close == nil {
		r.store, r.reads = e.store, e.reads
		*r.reads++
	}
	return r
}

func (e *Engine) nextReading() *Reading {
	if e.swap != nil && e.swap.stage == swapAsked {
		e.swap.stage = swapPreparing
		return &Reading{swap: e.swap}
	}
	if len(e.retired) > 0 && *e.retired[0].reads == 0 && !e.closing {
		e.closing = true
		return &Reading{close: e.retired[0].store}
	}
	if len(e.fetches) > 0 && !e.fetching {
		n, bytes := 0, 0
		for n < min(len(e.fetches), fetchesAtOnce) && (n == 0 || bytes+e.fetches[n].Size <= fetchBytes) {
			bytes += e.fetches[n].Size
			n++
		}
		r := &Reading{fetches: append([]core.Effect(nil), e.fetches[:n]...)}
		clear(e.fetches[:n])
		e.fetches = e.fetches[n:]
		e.fetching = true
		return r
	}
	if len(e.inspections) > 0 && e.inspecting < inspectionsAtOnce && e.madeBefore(e.inspections[0].after) {
		r := &Reading{inspect: e.inspections[0]}
		e.inspections[0] = nil
		e.inspections = e.inspections[1:]
		e.inspecting++
		return r
	}
	return nil
}

// Perform reads.
func (e *Engine) Perform(ctx context.Context, r *Reading) {
	switch {
	case r.inspect != nil:
		r.inspect.run(ctx, r.store)
		return
	case r.swap != nil:
		e.prepare(ctx, r.swap, r.store)
		return
	case r.close != nil:
		r.err = r.close.Close()
		return
	}
	ids := make([]string, len(r.fetches))
	for i := range r.fetches {
		ids[i] = r.fetches[i].ID
	}
	r.content = make(map[string]store.Row, len(ids))
	r.err = r.store.Content(ctx, ids, func(row store.Row) error {
		r.content[row.MessageID] = row
		return nil
	})
}

// Finish gives the machine the result of a reading.
func (e *Engine) Finish(r *Reading, now core.Instant) {
	if r.reads != nil {
		*r.reads--
	}
	switch {
	case r.swap != nil:
		e.prepared(r.swap, r.err)
		return
	case r.close != nil:
		e.retired, e.closing = e.retired[1:], false
		if r.err != nil {
			e.log.Error("a store that was swapped could not be closed", "error", r.err)
		}
		return
	}
	if i := r.inspect; i != nil {
		e.inspecting--
		if e.inspectors[i.session]--; e.inspectors[i.session] == 0 {
			delete(e.inspectors, i.session)
		}
		if r.err != nil {
			i.answer(nil, r.err)
		}
		if i.reply.Kind != wire.Invalid {
			e.effects = append(e.effects, core.Effect{Kind: core.Send, Session: i.session, Message: i.reply})
			return
		}
		in := core.Input{Kind: core.Found, Session: i.session, Message: i.command, Row: i.row}
		e.Step(&in, now)
		return
	}
	e.fetching = false
	if r.err != nil {
		e.log.Error("reading content failed", "messages", len(r.fetches), "error", r.err)
	}
	for i := range r.fetches {
		f := &r.fetches[i]
		row, there := r.content[f.ID]
		switch {
		case !there && r.err == nil:
			e.log.Warn("a message is not in the store", "message", f.ID)
		case row.State == store.Damaged:
			e.log.Error("damage in the store: left untouched, never delivered", "message", f.ID, "topic", row.Topic, "reason", row.Reason)
		}
		row.MessageID = f.ID
		in := core.Input{Kind: core.Fetched, Row: row, Size: f.Size}
		if !there {
			in.Err = r.err
		}
		e.Step(&in, now)
	}
}

// Inspections returns how many of a session's inspections are waiting or in
// progress.
func (e *Engine) Inspections(s core.Session) int { return e.inspectors[s] }
