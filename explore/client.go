package explore

import (
	"errors"
	"time"

	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/zeromq"
)

// The bounds and pauses of the bench and of the broker's client.
const (
	callBound     = time.Second
	publishBound  = 10 * time.Second
	startBound    = 30 * time.Second
	stopBound     = 10 * time.Second
	firstBackoff  = 10 * time.Millisecond
	longestBackof = 320 * time.Millisecond
	settledWindow = 10 * time.Minute
)

// client is one session with the broker, as broker/client keeps it: it never
// reconnects and never retries.
type client struct {
	w         *world
	conn      *conn
	welcome   bool
	opened    time.Duration
	last      uint64
	calls     map[uint64]*call
	mode      wire.Mode // of its subscription
	request   uint64    // of it
	delivered []wire.Message
	err       error
}

// call is a request that was written.
type call struct {
	done  bool
	reply wire.Message
	err   error
}

var (
	errRefused = errors.New("explore: refused by the broker")
	errBound   = errors.New("explore: no answer within the bound")
	errStopped = errors.New("explore: stopped by the script")
)

// dial opens a session within the bound of a call.
func (w *world) dial(t *task, name string, l *link, stopped func() bool) (*client, error) {
	t.pause(w.hop())
	c := &client{w: w, calls: map[uint64]*call{}, last: 1, opened: w.now}
	c.conn = w.connect(l, c)
	if c.conn == nil {
		return nil, systems.ErrUnavailable
	}
	defer func() { // also where the process is killed meanwhile
		if !c.welcome {
			c.close()
		}
	}()
	if err := c.conn.send(evidence.ToBroker, &wire.Message{Kind: wire.Hello, Request: 1, Client: name}); err != nil {
		return nil, err
	}
	t.wait(w.now+callBound, func() bool { return c.welcome || c.err != nil || stopped() })
	if !c.welcome || c.err != nil {
		return nil, errors.Join(systems.ErrUnavailable, c.err)
	}
	return c, nil
}

// close ends the session at once.
func (c *client) close() { c.end("closed") }

func (c *client) end(why string) {
	if c.err != nil {
		return
	}
	c.err = errors.Join(errCut, errors.New(why))
	for _, call := range c.calls {
		call.done, call.err = true, c.err
	}
	c.calls, c.delivered = nil, nil
	c.conn.hangUp(evidence.ToClient)
}

func (c *client) receive(x packet) {
	m, err := wire.DecodeParts(x.parts[0], x.parts[1])
	if err != nil {
		c.end(err.Error())
		return
	}
	switch m.Kind {
	case wire.Welcome:
		c.welcome = true
	case wire.Deliver:
		if m.Request == c.request {
			c.delivered = append(c.delivered, m)
		}
	default:
		asked := c.calls[m.Request]
		if asked == nil {
			if m.Kind == wire.Error && m.Request <= 1 {
				c.end(m.Reason)
			}
			return // repeated, or its call was given up
		}
		delete(c.calls, m.Request)
		asked.done, asked.reply = true, m
		if m.Kind == wire.Error {
			asked.err = errors.Join(errRefused, errors.New(m.Reason))
		}
	}
}

// ask writes a request. An error says that nothing was written.
func (c *client) ask(m wire.Message) (*call, error) {
	if c.err != nil {
		return nil, c.err
	}
	m.Request = c.last + 1
	if err := c.conn.send(evidence.ToBroker, &m); err != nil {
		return nil, err
	}
	c.last++
	asked := &call{}
	c.calls[m.Request] = asked
	return asked, nil
}

// answer waits for the answer of a call.
func (a *call) answer(t *task, limit time.Duration, stopped func() bool) (wire.Message, error) {
	t.wait(limit, func() bool { return a.done || stopped() })
	switch {
	case a.done:
		return a.reply, a.err
	case stopped():
		return wire.Message{}, errStopped
	}
	return wire.Message{}, errBound
}

func (c *client) subscribe(t *task, m wire.Message, stopped func() bool) error {
	c.mode, c.request = m.Mode, c.last+1
	asked, err := c.ask(m)
	if err != nil {
		return errors.Join(systems.ErrUnavailable, err)
	}
	reply, err := asked.answer(t, c.w.now+callBound, stopped)
	switch {
	case errors.Is(err, errRefused), err == nil && reply.Answer != wire.Accepted:
		return errors.Join(errRefused, errors.New(reply.Reason))
	case err != nil:
		return errors.Join(systems.ErrUnavailable, err)
	}
	return nil
}

// take gives the next delivery.
func (c *client) take() wire.Message {
	m := c.delivered[0]
	c.delivered = c.delivered[1:]
	if c.mode == wire.AtMostOnce {
		// Used up: the broker may send another in its place.
		_ = c.conn.send(evidence.ToBroker, &wire.Message{Kind: wire.Credit, Request: c.request, Credit: 1})
	}
	return m
}

func (w *world) mode(named string) wire.Mode { return w.profile.Mode(systems.Mode(named)) }

// receiptOf is what a publish was answered.
func receiptOf(mode wire.Mode, m wire.Message, err error) systems.Receipt {
	switch {
	case err == nil:
		return zeromq.ReceiptOf(mode, m)
	case errors.Is(err, errRefused):
		return systems.Receipt{Acceptance: evidence.Rejected, Told: err.Error(), Reason: err.Error()}
	}
	return systems.Receipt{Acceptance: evidence.Unknown, Told: err.Error(), Reason: err.Error()}
}

// carriedPublish says whether a publish's frame has passed its link.
func (w *world) carriedPublish(publishID string) bool {
	for i := range w.history {
		if e := &w.history[i]; e.Kind == evidence.FrameCarried && e.Frame == links.FramePublish && len(e.Items) > 0 && e.Items[0].PublishID == publishID {
			return true
		}
	}
	return false
}
