package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// inspection is an Admin command that reads rows, with its outcome: a reply, or
// the dead letter with which the state machine continues.
type inspection struct {
	session core.Session
	command wire.Message
	after   uint64 // writes up to this number must be done first

	reply wire.Message
	row   store.Row
}

// RowView is a row in the JSON reply to the Admin commands rows, dlq.list and
// dlq.show. Only dlq.show includes the payload.
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

// RowsView is one page of rows. Next requests the following page.
type RowsView struct {
	Rows []RowView `json:"rows"`
	// Truncated says that there are more rows, or more bytes of the payload
	// shown.
	Truncated bool `json:"truncated,omitempty"`
	// Next is the object with which the command returns the next page; empty on
	// the last.
	Next string `json:"next,omitempty"`
}

// Bounds of a page: rows, bytes of JSON, and bytes of a payload that is shown.
const (
	pageRows     = 1000
	pageBytes    = 1 << 20
	shownPayload = 1 << 20
)

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
		i.list(ctx, s, 0)
	case "dlq.list":
		i.list(ctx, s, store.Dead)
	default:
		i.one(ctx, s)
	}
}

// errPage stops reading once a page is full.
var errPage = errors.New("the page is full")

func (i *inspection) list(ctx context.Context, s store.Store, state store.State) {
	selection := store.Selection{State: state, Limit: pageRows + 1}
	var err error
	if after := i.command.MessageID; after != "" {
		if selection.After, err = strconv.ParseUint(after, 10, 64); err != nil {
			i.answer(nil, fmt.Errorf("%q is not where a page ends: use next of the page before", after))
			return
		}
	}
	page := struct {
		Rows      []json.RawMessage `json:"rows"`
		Truncated bool              `json:"truncated,omitempty"`
		Next      string            `json:"next,omitempty"`
	}{Rows: []json.RawMessage{}}
	bytes, last := 0, uint64(0)
	err = s.Rows(ctx, selection, func(row store.Row) error {
		text, err := json.Marshal(viewOf(row))
		if err != nil {
			return err
		}
		if bytes += len(text); len(page.Rows) == pageRows || bytes > pageBytes {
			page.Truncated, page.Next = true, strconv.FormatUint(last, 10)
			return errPage
		}
		page.Rows, last = append(page.Rows, text), row.Order
		return nil
	})
	if errors.Is(err, errPage) {
		err = nil
	}
	i.answer(page, err)
}

// one reads the dead letter that the command names.
func (i *inspection) one(ctx context.Context, s store.Store) {
	err := s.Content(ctx, []string{i.command.MessageID}, func(row store.Row) error {
		i.row = row
		return nil
	})
	switch {
	case err != nil:
		i.answer(nil, err)
	case i.row.State != store.Dead:
		i.answer(nil, fmt.Errorf("no dead letter has the message ID %q (or not yet, or not any more)", i.command.MessageID))
	case i.command.Topic == "dlq.show":
		view := viewOf(i.row)
		view.Headers, view.Payload = i.row.Headers, i.row.Payload[:min(len(i.row.Payload), shownPayload)]
		i.answer(RowsView{Rows: []RowView{view}, Truncated: len(view.Payload) < len(i.row.Payload)}, nil)
	default: // dlq.redrive, dlq.discard
		i.row.Payload, i.row.Headers = nil, nil // only their size is needed
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
