package nats

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// Rows reads the stream message by message. Acknowledged messages are deleted
// before that is confirmed, so every stored one is pending, unless the stream
// keeps them: then each has a row per consumer. Core NATS stores none.
func (c clients) Rows(ctx context.Context) (evidence.Snapshot, error) {
	snapshot := evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact}
	if c.profile.core {
		return snapshot, nil
	}
	err := c.administer(ctx, func(js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, c.profile.stream)
		if err != nil {
			return err
		}
		var readers []*reader
		if c.profile.keeps {
			if readers, err = c.readers(ctx, stream); err != nil {
				return err
			}
		}
		for sequence := uint64(1); ; sequence++ {
			// With a subject the server returns the next message from there on,
			// skipping gaps.
			msg, err := stream.GetMsg(ctx, sequence, jetstream.WithGetMsgSubject(c.profile.stream+".>"))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				for _, r := range readers {
					if r.open != r.info.NumAckPending {
						snapshot.Trust = evidence.Lagging // some of them are acknowledged; the server does not say which
					}
				}
				return nil
			}
			if err != nil {
				return err
			}
			sequence = msg.Sequence
			row := c.profile.rowOf(msg, time.Now())
			seen := false
			for _, r := range readers {
				if r.info.Config.FilterSubject == msg.Subject {
					snapshot.Rows = append(snapshot.Rows, r.rowOf(row, msg.Sequence))
					seen = true
				}
			}
			if !seen {
				snapshot.Rows = append(snapshot.Rows, row)
			}
		}
	})
	if err != nil {
		return evidence.Snapshot{}, err
	}
	snapshot.Count = len(snapshot.Rows)
	return snapshot, nil
}

// reader is a logical subscriber of a stream that keeps acknowledged messages.
type reader struct {
	info *jetstream.ConsumerInfo
	name string // of the logical subscriber
	open int    // rows delivered to it above its acknowledgement floor
}

func (c clients) readers(ctx context.Context, stream jetstream.Stream) ([]*reader, error) {
	var all []*reader
	consumers := stream.ListConsumers(ctx)
	for info := range consumers.Info() {
		name, _, _ := strings.Cut(info.Config.Description, descriptionSeparator)
		all = append(all, &reader{info: info, name: name})
	}
	return all, consumers.Err()
}

// rowOf is a stored message's row for this reader.
func (r *reader) rowOf(row evidence.StoredRow, sequence uint64) evidence.StoredRow {
	row.Subscription = r.name
	switch {
	case sequence <= r.info.AckFloor.Stream:
		row.State = evidence.RowProcessed
	case sequence <= r.info.Delivered.Stream:
		r.open++
	}
	return row
}

func (p Profile) rowOf(msg *jetstream.RawStreamMsg, now time.Time) evidence.StoredRow {
	m := decode(p.stream, messageID(p.stream, msg.Sequence), msg.Subject, msg.Header, msg.Data)
	life := m.TTL
	if age := p.scaled(p.maxAge); age > 0 && (life == 0 || age < life) {
		life = age
	}
	row := systems.RowOf(m, evidence.RowPending)
	row.Expired = life > 0 && now.After(msg.Time.Add(life))
	return row
}
