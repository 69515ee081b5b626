package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/wire"
)

// swap is an Admin command swap: the rows move to the store of another connection
// while the broker runs. A backup is the same, but that they stay where they are,
// and the copy is left alone. The target is opened, checked and emptied beside the
// turns. The rows are copied and handed over in one turn, so that nothing is
// written meanwhile: what sessions want of the store waits for its end, and is
// then made in the store that is in charge. All else goes on.
//
// The wait is as long as the copy, which a live copy with the changes sent after
// it would shorten; it would also have to be right about each change on its way.
type swap struct {
	session core.Session
	command wire.Message
	stage   swapStage

	connect  func(context.Context, string) (store.Store, error)
	from, to store.Store
	move     *handover.Move
	view     SwapView
	err      error
}

type swapStage uint8

const (
	swapAsked swapStage = iota
	swapPreparing
	swapReady
	swapRunning
)

// SwapView is the answer to the Admin commands swap and backup, in JSON.
type SwapView struct {
	From string `json:"from"` // partitions
	To   string `json:"to"`
	handover.Counts
	Took time.Duration `json:"tookNs"` // while nothing was written
}

// retired is a store that was exchanged for another, or was not taken. It is
// closed when nobody reads it any more.
type retired struct {
	store store.Store
	reads *int
}

// askSwap takes the command, or answers why not.
func (e *Engine) askSwap(f *core.Effect, out Outlet) {
	why := ""
	switch {
	case e.connect == nil:
		why = "this broker has no connections to choose from: it was started with a store and no list"
	case e.swap != nil:
		why = fmt.Sprintf("a %s to %q is under way", e.swap.command.Topic, e.swap.command.MessageID)
	case len(e.retired) > 0:
		why = "the store of the swap before is still being closed: ask again"
	}
	s := &swap{session: f.Session, command: f.Message, connect: e.connect}
	if why != "" {
		reply := s.reply(wire.Refused, why)
		out.Send(s.session, &reply)
		return
	}
	e.swap = s
}

// prepare opens the target and makes it ready. Perform calls it.
func (e *Engine) prepare(ctx context.Context, s *swap, from store.Store) {
	s.from = from
	ctx, cancel := context.WithTimeout(ctx, e.swapWithin)
	defer cancel()
	to, err := s.connect(ctx, s.command.MessageID)
	if err == nil {
		s.to = e.seam(to)
		s.move, err = handover.Check(ctx, s.from, s.to)
	}
	if err == nil {
		s.move.Step = e.swapStep
		err = s.move.Prepare(ctx)
	}
	s.err = err
}

// run is the turn of a swap. Work calls it.
func (s *swap) run(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	begin := time.Now()
	s.view.From, s.view.To = s.from.Partition().String(), s.to.Partition().String()
	if s.backup() {
		s.view.Counts, s.err = s.move.Copy(ctx)
	} else {
		s.view.Counts, s.err = s.move.Run(ctx)
	}
	s.view.Took = time.Since(begin)
}

// prepared is the end of a preparation.
func (e *Engine) prepared(s *swap, panicked error) {
	if s.err = errors.Join(s.err, panicked); s.err != nil {
		e.swapped(s)
		return
	}
	s.stage = swapReady
}

// swapped is the end of a swap, one way or the other.
func (e *Engine) swapped(s *swap) {
	e.swap = nil
	switch {
	case s.err == nil && !s.backup():
		e.retired = append(e.retired, retired{e.store, e.reads})
		e.store, e.reads, e.opened = s.to, new(int), true
		e.log.Warn("the store was swapped", "from", s.view.From, "to", s.view.To, "pending", s.view.Pending, "took", s.view.Took)
	case s.to != nil:
		e.retired = append(e.retired, retired{s.to, new(int)})
	}
	if s.err != nil {
		e.log.Error("the command "+s.command.Topic+" failed", "to", s.command.MessageID, "error", s.err)
	} else if s.backup() {
		e.log.Info("the store was backed up", "from", s.view.From, "to", s.view.To, "pending", s.view.Pending, "took", s.view.Took)
	}
	if errors.Is(s.err, handover.ErrDoubt) {
		e.fatal = fmt.Errorf("broker: %w", s.err)
	}
	reply := s.reply(wire.Accepted, "")
	switch {
	case errors.Is(s.err, handover.ErrDoubt):
		reply = s.reply(wire.Unknown, s.err.Error())
	case s.err != nil:
		reply = s.reply(wire.Refused, s.err.Error())
	default:
		reply.Payload, _ = json.Marshal(s.view) // texts and numbers do not fail
	}
	e.effects = append(e.effects, core.Effect{Kind: core.Send, Session: s.session, Message: reply})
}

func (s *swap) backup() bool { return s.command.Topic == "backup" }

func (s *swap) reply(answer wire.Answer, reason string) wire.Message {
	return wire.Message{Kind: wire.AdminReply, Request: s.command.Request, MessageID: s.command.MessageID, Answer: answer, Reason: core.Clip(reason)}
}

// StopSwapping refuses a swap that has not begun to copy: the broker is stopping.
func (e *Engine) StopSwapping() {
	e.connect = nil
	if s := e.swap; s != nil && (s.stage == swapAsked || s.stage == swapReady) {
		s.err = errors.New("the broker is stopping")
		e.swapped(s)
	}
}

// Release closes the stores that the engine has opened. Nothing is under way.
func (e *Engine) Release() error {
	var errs []error
	for _, r := range e.retired {
		errs = append(errs, r.store.Close())
	}
	e.retired = nil
	if e.store != nil && e.opened {
		errs = append(errs, e.store.Close())
	}
	return errors.Join(errs...)
}
