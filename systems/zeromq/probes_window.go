package zeromq

import (
	"errors"
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// The profile's own bounds, low enough to reach.
const (
	publishWindow = 1024
	maxTopics     = 256
)

// First request numbers of a series of publishes and of its Acks.
const (
	series = 1 << 16
	acks   = 1 << 20
)

var bounds = []probe{
	listed(window, "publish-window", "As many unanswered publishes as the window has places: all are accepted.", evidence.ProbeAccepted, stalled(publishWindow, nil)),
	listed(window, "publish-window-over", "One unanswered publish more than the window has places: it is declined.", evidence.ProbeRefused,
		stalled(publishWindow+1, func(i int, h heard) *systems.Probed {
			if i != publishWindow {
				return nil
			}
			got := judgedBy(h, expected{kind: kindPublishReply, request: series + publishWindow, answer: answerDeclined})
			return &got
		})).because(evidence.CauseLimit),
	listed(window, "repeat-in-flight", "A publish is repeated under its message ID while its first try is on its way to the store: both are accepted, and it is one message.", evidence.ProbeAccepted, repeated(2)),
	listed(window, "repeat-beyond-the-window", "A publish is repeated under its message ID while the window is full: its answer is in doubt.", evidence.ProbeInDoubt, repeated(publishWindow+1)),
	listed(window, "topics-over", "One topic more than the broker remembers, each with a message that waits: it is declined.", evidence.ProbeRefused, manyTopics).because(evidence.CauseLimit),
	listed(limits, "idle-topics", "Twice as many topics as the broker remembers, none with a message that waits: there is room for each.", evidence.ProbeRefused, idleTopics).because(evidence.CauseNoConsumer),
}

var errTooQuick = errors.New("the store answered before everything was sent: it must be slow for this probe")

// stalled sends n at-least-once publishes and a Ping. A Pong ahead of the first
// store answer proves that all n were unanswered at once. special judges
// answers other than Accepted; nil allows none.
func stalled(n int, special func(i int, h heard) *systems.Probed) func(*attempt) (systems.Probed, error) {
	return func(a *attempt) (systems.Probed, error) {
		if err := a.subscribed(modeLeast, uint64(n)); err != nil {
			return systems.Probed{}, err
		}
		var say []byte
		for i := range n {
			say = append(say, message(head(kindPublish, series+uint64(i), text(tagTopic, place), number(tagMode, modeLeast)), nil)...)
		}
		a.write(append(say, message(head(kindPing, askedPing), nil)...))
		var got *systems.Probed
		heardPong := false
		return a.serve(n, func(h heard) (*systems.Probed, error) {
			i := int(h.request) - series
			switch {
			case h.kind == kindPong:
				heardPong = true
			case h.kind == kindDeliver:
			case h.kind != kindPublishReply || i < 0 || i >= n:
				return nil, fmt.Errorf("%w: %s", errNotOurs, h)
			case h.number(tagAnswer) == answerAccepted && !heardPong:
				return nil, errTooQuick
			case special != nil && special(i, h) != nil:
				got = special(i, h)
			case h.number(tagAnswer) != answerAccepted:
				end := came(evidence.ProbeMisanswered, "publish %d of %d: %s", i+1, n, h)
				got = &end
			}
			return got, nil
		})
	}
}

// repeated sends n-1 publishes, then the first of them again.
func repeated(n int) func(*attempt) (systems.Probed, error) {
	return func(a *attempt) (systems.Probed, error) {
		if err := a.subscribed(modeLeast, uint64(n)); err != nil {
			return systems.Probed{}, err
		}
		id := text(tagMessage, "probe-"+a.nc.LocalAddr().String())
		one := []field{text(tagTopic, place), number(tagMode, modeLeast)}
		say := message(head(kindPublish, series, append(one, id)...), nil)
		for i := 1; i < n-1; i++ {
			say = append(say, message(head(kindPublish, series+uint64(i), one...), nil)...)
		}
		again := series + uint64(n-1)
		say = append(say, message(head(kindPublish, again, append(one, id)...), nil)...)
		a.write(append(say, message(head(kindPing, askedPing), nil)...))
		heardPong, deliveries := false, 0
		var got *systems.Probed
		result, err := a.serve(n, func(h heard) (*systems.Probed, error) {
			switch {
			case h.kind == kindPong:
				heardPong = true
			case h.kind == kindDeliver:
				if h.number(tagAgain) != 1 { // on a slow machine it is redelivered
					deliveries++
				}
			case h.number(tagAnswer) == answerAccepted && !heardPong:
				return nil, errTooQuick
			case h.request == again:
				p := judgedBy(h, expected{kind: kindPublishReply, request: again})
				if p.Outcome == evidence.ProbeAccepted && h.number(tagAgain) != 1 {
					p = came(evidence.ProbeMisanswered, "the second is not marked: %s", h)
				}
				got = &p
			case h.number(tagAnswer) != answerAccepted:
				p := came(evidence.ProbeMisanswered, "%s", h)
				got = &p
			}
			return got, nil
		})
		if err == nil && deliveries > n-1 {
			result = came(evidence.ProbeMisanswered, "%d messages were published, and %d came", n-1, deliveries)
		}
		return result, err
	}
}

// serve reads n publish answers and the Pong, acknowledges deliveries until
// every accepted message is settled, and returns judge's last result, or
// accepted if there is none.
func (a *attempt) serve(n int, judge func(heard) (*systems.Probed, error)) (systems.Probed, error) {
	got := came(evidence.ProbeAccepted, "%d answers", n)
	answers, acked, settled, pong := 0, 0, 0, false
	accepted := map[string]bool{} // by message ID: duplicates count once
	for answers < n || settled < len(accepted) || !pong {
		h, err := a.hear()
		if err != nil {
			end := broken(err)
			end.Reason += fmt.Sprintf(": %d of %d publishes answered, %d of %d settled", answers, n, settled, len(accepted))
			return end, nil
		}
		switch h.kind {
		case kindPing:
			continue
		case kindAck + 1:
			settled++
			continue
		case kindDeliver:
			acked++
			a.write(message(head(kindAck, acks+uint64(acked), text(tagMessage, h.text(tagMessage))), nil))
		case kindPong:
			pong = true
		case kindPublishReply:
			answers++
			if h.number(tagAnswer) == answerAccepted {
				accepted[h.text(tagMessage)] = true
			}
		}
		said, err := judge(h)
		switch {
		case errors.Is(err, errNotOurs):
			return came(evidence.ProbeMisanswered, "%v", err), nil
		case err != nil:
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		case said != nil:
			got = *said
		}
	}
	return got, nil
}

// manyTopics publishes to one topic more than the broker remembers. Others may
// hold topics too, so only the last is sure to be declined.
func manyTopics(a *attempt) (systems.Probed, error) {
	if err := a.listens(place+"/#", modeLeast, maxTopics+1); err != nil {
		return systems.Probed{}, err
	}
	var say []byte
	for i := range maxTopics + 1 {
		say = append(say, message(head(kindPublish, series+uint64(i), text(tagTopic, fmt.Sprintf("%s/%d", place, i)), number(tagMode, modeLeast)), nil)...)
	}
	a.write(append(say, message(head(kindPing, askedPing), nil)...))
	heardPong := false
	var got *systems.Probed
	return a.serve(maxTopics+1, func(h heard) (*systems.Probed, error) {
		switch {
		case h.kind == kindPong:
			heardPong = true
		case h.kind != kindPublishReply:
		case h.number(tagAnswer) == answerAccepted && !heardPong:
			return nil, errTooQuick
		case h.request == series+maxTopics:
			p := judgedBy(h, expected{kind: kindPublishReply, request: h.request})
			got = &p
		case h.number(tagAnswer) != answerAccepted && h.request < series+maxTopics/2:
			p := came(evidence.ProbeMisanswered, "topic %d of %d: %s", h.request-series, maxTopics, h)
			got = &p
		}
		return got, nil
	})
}

// idleTopics publishes to twice as many topics as are remembered. Each is
// declined only because nobody subscribes.
func idleTopics(a *attempt) (systems.Probed, error) {
	if err := a.enter(); err != nil {
		return systems.Probed{}, err
	}
	var say []byte
	for i := range 2 * maxTopics {
		say = append(say, message(head(kindPublish, series+uint64(i), text(tagTopic, fmt.Sprintf("%s/idle/%d", place, i)), number(tagMode, modeMost)), nil)...)
	}
	a.write(say)
	var got systems.Probed
	for i := range 2 * maxTopics {
		request := series + uint64(i)
		var h heard
		for h.kind != kindPublishReply {
			var err error
			if h, err = a.hear(); err != nil {
				return broken(err), nil
			}
		}
		got = judgedBy(h, expected{kind: kindPublishReply, request: request, answer: answerDeclined})
		if got.Outcome != evidence.ProbeRefused || got.Cause != evidence.CauseNoConsumer {
			return got, nil
		}
	}
	return got, nil
}
