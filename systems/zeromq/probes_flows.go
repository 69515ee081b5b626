package zeromq

import (
	"bytes"
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// flows are probes of kind limits that use more than the broker has at once, one
// after another: what is not given back is missed.
var flows = []probe{
	listed(limits, "sessions-in-a-row", "Three times as many sessions as the broker has places, one after another: each is let in.", evidence.ProbeAccepted, sessionsInARow),
	listed(limits, "sessions-cut-off", "Sessions end in the middle of a large message: what was kept free for it is free again.", evidence.ProbeAccepted, sessionsCutOff),
	listed(limits, "largest-in-a-row", "More large messages than the broker may hold, one after another in one session: each comes back unaltered.", evidence.ProbeAccepted, largestInARow),
	listed(limits, "large-at-once", "Messages that are not copied when they are sent, many at once: each comes back unaltered, in order.", evidence.ProbeAccepted, largeAtOnce),
}

// again connects anew.
func (a *attempt) again() error {
	a.nc.Close()
	p, err := connect(a.ctx, a.in.address)
	if err != nil {
		return err
	}
	a.peer = p
	return a.enter()
}

func sessionsInARow(a *attempt) (systems.Probed, error) {
	if err := a.enter(); err != nil {
		return systems.Probed{}, err
	}
	for n := range 3 * connections {
		// The end of the one before is known to the broker a moment later.
		if err := a.again(); err != nil {
			return came(evidence.ProbeMisanswered, "session %d: %v", n+1, err), nil
		}
	}
	return came(evidence.ProbeAccepted, "each was let in"), nil
}

func sessionsCutOff(a *attempt) (systems.Probed, error) {
	if err := a.enter(); err != nil {
		return systems.Probed{}, err
	}
	h := publishes(once()...)
	for range 8 {
		a.write(append(frame(true, h), announced(2, 4<<20)...))
		a.write(make([]byte, 1<<20))
		if err := a.again(); err != nil {
			return systems.Probed{}, err
		}
	}
	return a.echoed(1, 4<<20)
}

func largestInARow(a *attempt) (systems.Probed, error) {
	if err := a.enter(); err != nil {
		return systems.Probed{}, err
	}
	return a.echoed(10, 4<<20)
}

func largeAtOnce(a *attempt) (systems.Probed, error) {
	if err := a.enter(); err != nil {
		return systems.Probed{}, err
	}
	const n, size = 40, 20 << 10
	if got, ok := a.listensToItself(n); !ok {
		return got, nil
	}
	var say []byte
	for i := range n {
		say = append(say, message(head(kindPublish, series+uint64(i), once()...), patterned(i, size))...)
	}
	a.write(say)
	for i := 0; i < n; {
		h, err := a.hear()
		switch {
		case err != nil:
			return broken(err), nil
		case h.kind != kindDeliver:
		case !bytes.Equal(h.payload, patterned(i, size)):
			return came(evidence.ProbeMisanswered, "payload %d of %d is altered, or comes in another's place", i+1, n), nil
		default:
			i++
		}
	}
	return came(evidence.ProbeAccepted, "%d came back", n), nil
}

// patterned is a payload that differs from others in every part.
func patterned(n, size int) []byte {
	what := fmt.Appendf(nil, "payload %d, ", n)
	return bytes.Repeat(what, size/len(what)+1)[:size]
}

func (a *attempt) listensToItself(credit uint64) (systems.Probed, bool) {
	a.write(message(head(kindSubscribe, askedSubscribe, text(tagTopic, place), number(tagMode, modeMost), number(tagCredit, credit)), nil))
	s, err := a.until(kindSubscribe + 1)
	if err != nil || s.number(tagAnswer) != answerAccepted {
		return came(evidence.ProbeMisanswered, "the subscription: %s, %v", s, err), false
	}
	return systems.Probed{}, true
}

// echoed publishes n payloads to its own subscription, one after another.
func (a *attempt) echoed(n, size int) (systems.Probed, error) {
	if got, ok := a.listensToItself(uint64(n)); !ok {
		return got, nil
	}
	for i := range n {
		want := patterned(i, size)
		a.write(message(head(kindPublish, series+uint64(i), once()...), want))
		for answered, delivered := false, false; !answered || !delivered; {
			h, err := a.hear()
			switch {
			case err != nil:
				got := broken(err)
				got.Reason += fmt.Sprintf(": payload %d of %d", i+1, n)
				return got, nil
			case h.kind == kindPublishReply && h.number(tagAnswer) == answerAccepted:
				answered = true
			case h.kind == kindDeliver && bytes.Equal(h.payload, want):
				delivered = true
			case h.kind != kindPing:
				return came(evidence.ProbeMisanswered, "payload %d of %d: %s", i+1, n, h), nil
			}
		}
	}
	return came(evidence.ProbeAccepted, "%d came back", n), nil
}
