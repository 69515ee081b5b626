package zeromq

import (
	"context"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// stopping are probes that stop the broker in good order, while inserts are slow,
// and start it again.
const stopping = "stopping"

var stops = []probe{
	within(stopping, "before-the-stop", "A Ping is answered.", evidence.ProbeAnswered, expected{kind: kindPong, request: asked}, message(head(kindPing, asked), nil)),
	listed(stopping, "stop-in-order", "A broker that is stopped answers what it has taken, and makes what it has answered; afterwards all is as it said.", evidence.ProbeAnswered,
		func(a *attempt) (systems.Probed, error) {
			return converse(a.ctx, network{a.in}, "stop-in-order", stopping, func(t *talk) { stopped(t, a.in) })
		}),
}

func stopped(t *talk, in *instance) {
	const topic = place + "/stop"
	p, c := t.enter("p"), t.enter("c")
	c.subscribe(topic, modeLeast, 1).is(answerAccepted)
	p.publish(topic, "m0", t.business("m0")).is(answerAccepted)
	c.gets(topic, "m0")
	// One publish is on its way to the store, the others wait for it, and so does
	// what is left to do of a message that is settled.
	names := numbered(4)
	for _, m := range names {
		p.say(kindPublish, string(payloadOf(m, 20)), text(tagTopic, topic), number(tagMode, modeLeast), text(tagMessage, t.id(m)), t.business(m))
	}
	first := p.last - uint64(len(names)-1)
	p.quiet()
	c.ack("m0")
	if t.over() {
		return
	}
	stop := called(t.ctx, func() error { return in.Shutdown(t.ctx) })
	for i, m := range names {
		p.answer(first+uint64(i), "Publish of "+m+", while the broker stops").is(answerAccepted)
	}
	p.end()
	if err := stop(); err != nil && t.err == nil {
		t.err = err
	}
	if err := in.Restart(context.WithoutCancel(t.ctx)); err != nil {
		t.err = err
	}
	if t.over() {
		return
	}
	t.clerk = t.enter("clerk")
	for _, m := range names {
		t.clerk.lookup(m).is(answerStored, text(tagMessage, t.id(m)))
	}
	t.clerk.lookup("m0").is(answerSettled, text(tagMessage, t.id("m0")))
	d := t.enter("d")
	d.subscribe(topic, modeLeast, 8).is(answerAccepted)
	d.serves(len(names))
	d.quiet()
}
