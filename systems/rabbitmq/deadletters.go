package rabbitmq

import (
	"context"
	"fmt"
	"strings"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// DeadLetters gets every message of the dead-letter queues and requeues it, as
// RabbitMQ's management does. The redelivered flag that this sets goes unseen:
// these queues have no consumers.
func (c *clients) DeadLetters(ctx context.Context) ([]evidence.StoredRow, error) {
	var rows []evidence.StoredRow
	err := c.eachDeadLetter(ctx, func(_ *client.Channel, queue string, d client.Delivery) (done bool, err error) {
		rows = append(rows, c.rowOf(queue, d))
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Redrive publishes a dead letter to its original queue and removes it once
// that is confirmed.
func (c *clients) Redrive(ctx context.Context, messageID string) error {
	return c.settleDeadLetter(ctx, messageID, func(ch *client.Channel, queue string, d client.Delivery) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		headers := client.Table{}
		for name, value := range d.Headers {
			if !strings.HasPrefix(name, serverHeaders) {
				headers[name] = value
			}
		}
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, client.Publishing{
			Headers: headers, DeliveryMode: d.DeliveryMode, MessageId: d.MessageId, Body: d.Body,
		})
		if err != nil {
			return err
		}
		if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("publish to %s was not confirmed: %w", queue, err)
		}
		return nil
	})
}

// Discard deletes a dead letter.
func (c *clients) Discard(ctx context.Context, messageID string) error {
	return c.settleDeadLetter(ctx, messageID, func(*client.Channel, string, client.Delivery) error { return nil })
}

// settleDeadLetter acknowledges a dead letter after do has succeeded. queue is
// the original one.
func (c *clients) settleDeadLetter(ctx context.Context, messageID string, do func(ch *client.Channel, queue string, d client.Delivery) error) error {
	found := false
	err := c.eachDeadLetter(ctx, func(ch *client.Channel, queue string, d client.Delivery) (bool, error) {
		if d.MessageId != messageID {
			return false, nil
		}
		found = true
		if err := do(ch, strings.TrimSuffix(queue, deadSuffix), d); err != nil {
			return true, err
		}
		return true, d.Ack(false)
	})
	if err == nil && !found {
		err = fmt.Errorf("rabbitmq: no dead letter has the message ID %q", messageID)
	}
	return err
}

// eachDeadLetter visits dead letters until visit is done. Those not
// acknowledged are requeued in place when the connection ends.
func (c *clients) eachDeadLetter(ctx context.Context, visit func(ch *client.Channel, queue string, d client.Delivery) (done bool, err error)) error {
	return c.administer(ctx, func(ch *client.Channel) error {
		for _, name := range c.queues(c.made) {
			queue := name + deadSuffix
			there, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
			if err != nil {
				return fmt.Errorf("dead letters of %s: %w", queue, err)
			}
			for range there.Messages {
				d, ok, err := ch.Get(queue, false)
				if err != nil {
					return fmt.Errorf("dead letters of %s: %w", queue, err)
				}
				if !ok {
					break
				}
				if done, err := visit(ch, queue, d); done || err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// deathCauses of the x-first-death-reason header (RabbitMQ, Dead Letter
// Exchanges: Effects on Messages).
var deathCauses = map[string]evidence.Cause{
	"rejected": evidence.CauseRejected, "expired": evidence.CauseExpired, "maxlen": evidence.CauseLimit, "delivery_limit": evidence.CauseAttempts,
}

func (c *clients) rowOf(queue string, d client.Delivery) evidence.StoredRow {
	m := decode(strings.TrimSuffix(strings.TrimPrefix(queue, c.prefix), deadSuffix), d)
	reason, _ := d.Headers["x-first-death-reason"].(string)
	row := systems.RowOf(m, evidence.RowDead)
	row.Attempts, row.Cause, row.Reason = deliveries(d), deathCauses[reason], reason
	if row.Cause == evidence.NoCause && reason != "" {
		row.Cause = evidence.CauseStated
	}
	return row
}
