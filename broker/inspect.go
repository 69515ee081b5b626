package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// inspection is an Admin command that needs rows, and its outcome: a reply, or
// the row with which the state machine carries on.
type inspection struct {
	session core.Session
	command wire.Message

	reply wire.Message
	row   store.Row
	err   error
}

// RowView is one row as the Admin commands rows, dlq.list and dlq.show answer
// it, in JSON. Payload only in dlq.show.
type RowView struct {
	State        string            `json:"state"` // pending, processed, settled, dead, refused-version, damaged
	MessageID    string            `json:"messageId"`
	BusinessID   string            `json:"businessId,omitempty"`
	Topic        string            `json:"topic,omitempty"`
	Group        string            `json:"group,omitempty"`
	Key          string            `json:"key,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
	Size         int               `json:"size"` // bytes of payload and headers as stored
	Payload      []byte            `json:"payload,omitempty"`
	Version      uint8             `json:"version,omitempty"`
	Order        uint64            `json:"order,omitempty"`
	InsertedAt   time.Time         `json:"insertedAt,omitzero"`
	ExpiresAt    time.Time         `json:"expiresAt,omitzero"`
	KeepUntil    time.Time         `json:"keepUntil,omitzero"`
	Attempts     int               `json:"attempts,omitempty"`
	LastConsumer string            `json:"lastConsumer,omitempty"`
	Reason       string            `json:"reason,omitempty"`
	Partition    string            `json:"partition"`
}

// RowsView is the whole answer.
type RowsView struct {
	Rows []RowView `json:"rows"`
	// More rows exist than were listed.
	Truncated bool `json:"truncated,omitempty"`
}

const maxListed = 5000 // rows in one answer

func viewOf(row store.Row) RowView {
	return RowView{
		State: row.State.String(), MessageID: row.MessageID, BusinessID: row.BusinessID, Topic: row.Topic, Group: row.Group,
		Key: row.Key, Size: row.Size, Version: row.Version, Order: row.Order,
		InsertedAt: row.InsertedAt, ExpiresAt: row.ExpiresAt, KeepUntil: row.KeepUntil, Attempts: row.Attempts,
		LastConsumer: row.LastConsumer, Reason: row.Reason, Partition: row.Partition.String(),
	}
}

func (i *inspection) run(ctx context.Context, s store.Store) {
	switch i.command.Topic {
	case "rows":
		i.list(ctx, s, store.Selection{Limit: maxListed + 1})
	case "dlq.list":
		i.list(ctx, s, store.Selection{Limit: maxListed + 1, State: store.Dead})
	case "dlq.show":
		i.find(ctx, s)
		if i.err != nil {
			i.answer(nil, i.err)
			return
		}
		view := viewOf(i.row)
		view.Headers, view.Payload = i.row.Headers, i.row.Payload
		i.answer(RowsView{Rows: []RowView{view}}, nil)
	default: // dlq.redrive, dlq.discard
		i.find(ctx, s)
	}
}

func (i *inspection) list(ctx context.Context, s store.Store, selection store.Selection) {
	view := RowsView{Rows: []RowView{}}
	err := s.Rows(ctx, selection, func(row store.Row) error {
		if len(view.Rows) == maxListed {
			view.Truncated = true
			return nil
		}
		view.Rows = append(view.Rows, viewOf(row))
		return nil
	})
	i.answer(view, err)
}

func (i *inspection) find(ctx context.Context, s store.Store) {
	found := false
	i.err = s.Content(ctx, []string{i.command.MessageID}, func(row store.Row) error {
		i.row, found = row, row.State == store.Dead
		return nil
	})
	if i.err == nil && !found {
		i.err = fmt.Errorf("no dead letter has the message ID %q", i.command.MessageID)
	}
}

func (i *inspection) answer(view any, err error) {
	i.reply = wire.Message{Kind: wire.AdminReply, Request: i.command.Request, MessageID: i.command.MessageID, Answer: wire.Accepted}
	if err == nil {
		i.reply.Payload, err = json.Marshal(view)
	}
	if err == nil && len(i.reply.Payload) > wire.MaxPayload {
		err = fmt.Errorf("the answer has %d bytes, over the limit of a payload", len(i.reply.Payload))
	}
	if err != nil {
		i.reply.Payload, i.reply.Answer = nil, wire.Refused
		i.reply.Reason = core.Clip(err.Error())
	}
}
