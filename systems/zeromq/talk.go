package zeromq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// World is where talks take place: on the real network or a simulated one.
type World interface {
	// Dial opens a connection that is ready for messages.
	Dial(ctx context.Context) (Line, error)
	Token() string
	Now() time.Duration
	// Rest waits for at least d.
	Rest(ctx context.Context, d time.Duration) error
}

// Line is one connection. It carries whole, encoded messages.
type Line interface {
	Say(head, payload []byte)
	Hear(ctx context.Context) (head, payload []byte, err error)
	Close()
}

// dialogue is an entry in the table of talks.
type dialogue struct {
	kind, name, text string
	hold             func(*talk)
}

// talk is a conversation of several sessions with a broker whose every answer is
// determined. Its result is the first deviation, after which nothing more is
// sent.
type talk struct {
	ctx    context.Context
	world  World
	sort   string
	name   string
	said   map[string]heard // publishes, by message ID
	before map[string]int   // counters
	clerk  *party           // reads the counters
	all    []*party

	off *systems.Probed // the first deviation
	err error           // why it could not be held
}

// party is one session of a talk.
type party struct {
	*talk
	name   string
	line   Line
	last   uint64            // number of the last request
	subs   map[string]uint64 // requests, by filter, group and mode
	here   []heard           // deliveries not expected yet
	latest string            // the last delivery expected
	ended  bool
}

// reply is the answer to one request.
type reply struct {
	*talk
	asked string
	heard
}

// conversations are all talks.
var conversations = slices.Concat(greetings, dialogues, crowded)

// greetings come first where the broker has just been restarted: of the first
// probe after an ordered end nobody can tell whether it came too early.
var greetings = func() (all []dialogue) {
	for _, kind := range []string{talks, periods, after, crowds, crowdAfter} {
		all = append(all, dialogue{kind, "here-for-" + kind, "The broker is there, and answers.", func(*talk) {}})
	}
	return all
}()

// Dialogues are the talks as probes. A profile with history has none: the rows
// that they would leave behind were published by nobody that the run knows.
func (p Profile) Dialogues() []systems.Probe {
	if p.history {
		return nil
	}
	var list []systems.Probe
	for _, d := range conversations {
		one := systems.Probe{Kind: d.kind, Name: d.name, Text: d.text, Wants: evidence.ProbeAnswered}
		if virtual[d.kind] {
			one.Within = 5 * time.Minute
		}
		list = append(list, one)
	}
	return list
}

// virtualProbes are the kinds of talks that are held in virtual time only.
func (p Profile) virtualProbes() (kinds []string) {
	for _, probe := range p.Dialogues() {
		if virtual[probe.Kind] && !slices.Contains(kinds, probe.Kind) {
			kinds = append(kinds, probe.Kind)
		}
	}
	return kinds
}

// Converse holds the talk of this name.
func Converse(ctx context.Context, world World, name string) (systems.Probed, error) {
	at := slices.IndexFunc(conversations, func(d dialogue) bool { return d.name == name })
	if at < 0 {
		return systems.Probed{}, fmt.Errorf("zeromq: no probe %q", name)
	}
	return converse(ctx, world, name, conversations[at].kind, conversations[at].hold)
}

func converse(ctx context.Context, world World, name, sort string, hold func(*talk)) (systems.Probed, error) {
	t := &talk{ctx: ctx, world: world, sort: sort, name: name, said: map[string]heard{}}
	t.clerk = t.enter("clerk")
	t.before = t.still()
	hold(t)
	// Rows are read behind every change: nothing of this talk is under way when
	// the next one, or a fault, comes.
	t.clerk.answer(t.clerk.say(kindAdmin, "", text(tagTopic, "rows")), "rows").is(answerAccepted)
	for _, p := range t.all {
		p.line.Close()
	}
	switch {
	case t.err != nil:
		return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", t.err)
	case t.off != nil:
		return *t.off, nil
	}
	return came(evidence.ProbeAnswered, "as the protocol says"), nil
}

// still returns the counters once no more sessions end: the broker may not have
// noticed the end of the previous talk's sessions yet.
func (t *talk) still() map[string]int {
	for before := t.counters(); ; {
		if err := t.world.Rest(t.ctx, settling); err != nil {
			t.lost(t.clerk, err)
		}
		now := t.counters()
		if t.over() || now["sessions"] == before["sessions"] {
			return now
		}
		before = now
	}
}

func (t *talk) over() bool { return t.off != nil || t.err != nil }

// deviates records a deviation, which ends the talk.
func (t *talk) deviates(format string, args ...any) {
	if !t.over() {
		off := came(evidence.ProbeMisanswered, format, args...)
		t.off = &off
	}
}

// lost ends the talk because a connection failed.
func (t *talk) lost(p *party, err error) {
	if t.over() {
		return
	}
	off := broken(err)
	off.Reason = p.name + ": " + off.Reason
	if t.ctx.Err() != nil {
		off = came(evidence.ProbeUnanswered, "%s: no answer within the bound", p.name)
	}
	t.off = &off
}

// enter opens a session.
func (t *talk) enter(name string) *party { return t.enterAs(name, t.world.Token()) }

func (t *talk) enterAs(name, token string) *party {
	p := t.knockAs(name, token)
	p.next().as(kindWelcome)
	return p
}

// knock opens a connection and says Hello.
func (t *talk) knock(name string) *party { return t.knockAs(name, t.world.Token()) }

func (t *talk) knockAs(name, token string) *party {
	p := &party{talk: t, name: name, subs: map[string]uint64{}, last: askedHello}
	if t.over() {
		return p
	}
	if p.line, t.err = t.world.Dial(t.ctx); t.err == nil {
		t.all = append(t.all, p)
		p.line.Say(head(kindHello, askedHello, text(tagClient, name), text(tagToken, token)), nil)
	}
	return p
}

// next returns the next message other than a Ping.
func (p *party) next() reply {
	r := reply{talk: p.talk, asked: p.name}
	for !p.over() {
		h, payload, err := p.line.Hear(p.ctx)
		if err == nil {
			r.heard, err = parse(h, payload)
		}
		switch {
		case err != nil:
			p.lost(p, err)
		case r.kind != kindPing:
			return r
		}
	}
	return r
}

// say sends a message and returns its request number.
func (p *party) say(kind byte, payload string, fields ...field) uint64 {
	p.last++
	p.sayAs(p.last, kind, payload, fields...)
	return p.last
}

func (p *party) sayAs(request uint64, kind byte, payload string, fields ...field) {
	slices.SortFunc(fields, func(a, b field) int { return int(a[0]) - int(b[0]) })
	if p.over() {
		return
	}
	h := head(kind, request, fields...)
	p.line.Say(h, []byte(payload))
	if m, err := parse(h, []byte(payload)); err == nil && kind == kindPublish {
		if _, known := p.said[m.text(tagMessage)]; !known {
			p.said[m.text(tagMessage)] = m
		}
	}
}

// answer reads up to the answer to a request. It keeps deliveries that come
// before it.
func (p *party) answer(request uint64, asked string) reply {
	for {
		r := p.next()
		r.asked = p.name + ": " + asked
		switch {
		case p.over() || r.kind != kindDeliver && r.request == request:
			return r
		case r.kind == kindDeliver:
			p.here = append(p.here, r.heard)
		default:
			p.deviates("%s, while the answer to %s of %s was due", r.heard, asked, p.name)
		}
	}
}

// as requires a kind and these fields.
func (r reply) as(kind byte, fields ...field) {
	if r.over() {
		return
	}
	if r.kind != kind {
		r.deviates("%s: %s, where kind %d was due", r.asked, r.heard, kind)
	}
	for _, f := range fields {
		if want := f.value(); r.text(f[0]) != want {
			r.deviates("%s: field %d is %q, and must be %q: %s", r.asked, f[0], r.text(f[0]), want, r.heard)
		}
	}
}

// is requires an answer with this cause and these marks, and no others.
func (r reply) is(answer uint64, fields ...field) {
	stated := func(tag byte) bool { return slices.ContainsFunc(fields, func(f field) bool { return f[0] == tag }) }
	for _, tag := range []byte{tagAgain, tagCause} {
		if !stated(tag) {
			fields = append(fields, field{tag, 0})
		}
	}
	r.as(r.kind, append(fields, number(tagAnswer, answer))...)
	if good := answer == answerAccepted || answer == answerStored || answer == answerSettled; !good && !r.over() && r.text(tagReason) == "" && answer != answerNotSeen {
		r.deviates("%s: answer %d without a reason", r.asked, answer)
	}
}

func because(cause uint64) field { return number(tagCause, cause) }

var again = number(tagAgain, 1)

// id returns a message's ID, which is unique in the run.
func (t *talk) id(name string) string { return strings.TrimSuffix(t.name, "-again") + "-" + name }

// remember registers a message that an earlier talk has published.
func (t *talk) remember(topic, name string, size int, more ...field) {
	fields := append([]field{text(tagTopic, topic), text(tagMessage, t.id(name))}, more...)
	slices.SortFunc(fields, func(a, b field) int { return int(a[0]) - int(b[0]) })
	m, err := parse(head(kindPublish, 1, fields...), payloadOf(name, size))
	if t.said[t.id(name)] = m; err != nil {
		t.err = err
	}
}

func payloadOf(name string, size int) []byte {
	what := "payload of " + name + " "
	return []byte(strings.Repeat(what, size/len(what)+1)[:size])
}

func (t *talk) business(name string) field { return text(tagBusiness, t.id(name)) }

func (p *party) subscribe(filter string, mode uint64, credit uint64, more ...field) reply {
	fields := append([]field{text(tagTopic, filter), number(tagMode, mode)}, more...)
	if credit > 0 {
		fields = append(fields, number(tagCredit, credit))
	}
	request := p.say(kindSubscribe, "", fields...)
	if _, known := p.subs[filter]; !known {
		p.subs[filter] = request
	}
	return p.answer(request, "Subscribe to "+filter)
}

func (p *party) unsubscribe(filter string, mode uint64, more ...field) reply {
	delete(p.subs, filter)
	return p.answer(p.say(kindUnsubscribe, "", append([]field{text(tagTopic, filter), number(tagMode, mode)}, more...)...), "Unsubscribe from "+filter)
}

func (p *party) grant(filter string, credit uint64) {
	p.sayAs(p.subs[filter], kindCredit, "", number(tagCredit, credit))
	p.answer(p.say(kindPing, ""), "Ping").as(kindPong) // Credit has no reply
}

// publish publishes at least once, with a message ID of its own.
func (p *party) publish(topic, name string, more ...field) reply {
	return p.sized(topic, name, len("payload of ")+len(name), more...)
}

// sized publishes a payload of that many bytes.
func (p *party) sized(topic, name string, size int, more ...field) reply {
	return p.answer(p.say(kindPublish, string(payloadOf(name, size)), append([]field{text(tagTopic, topic), number(tagMode, modeLeast), text(tagMessage, p.id(name))}, more...)...), "Publish of "+name)
}

// publishOnce publishes at most once.
func (p *party) publishOnce(topic, name string, more ...field) reply {
	return p.answer(p.say(kindPublish, "payload of "+name, append([]field{text(tagTopic, topic), number(tagMode, modeMost), text(tagMessage, p.id(name))}, more...)...), "Publish of "+name)
}

// gets requires these deliveries, in this order, as first attempts.
func (p *party) gets(filter string, names ...string) {
	for _, name := range names {
		p.getsAttempt(filter, name, 1)
	}
}

// getsAttempt requires a delivery with everything that was published.
func (p *party) getsAttempt(filter, name string, attempt uint64) {
	var h heard
	if len(p.here) > 0 {
		h, p.here = p.here[0], p.here[1:]
	} else {
		asked := p.world.Now()
		h = p.next().heard
		if waited := p.world.Now() - asked; (p.sort == periods || p.sort == crowds) && waited > settling {
			p.deviates("%s: %q came %v late", p.name, name, waited)
		}
	}
	if p.over() {
		return
	}
	p.latest = name
	was := p.said[p.id(name)]
	marked := uint64(0)
	if attempt > 1 {
		marked = 1
	}
	switch {
	case h.kind != kindDeliver || h.text(tagMessage) != p.id(name):
		p.deviates("%s: %s of %q, where %q was due", p.name, h, h.text(tagMessage), p.id(name))
	case h.request != p.subs[filter]:
		p.deviates("%s: %q came for the subscription %d, and is due for %d", p.name, name, h.request, p.subs[filter])
	case h.number(tagAttempt) != attempt || h.number(tagAgain) != marked:
		p.deviates("%s: %q is attempt %d (again %d), and must be %d", p.name, name, h.number(tagAttempt), h.number(tagAgain), attempt)
	case string(h.payload) != string(was.payload):
		p.deviates("%s: the payload of %q has %d bytes and came with %d, or altered", p.name, name, len(was.payload), len(h.payload))
	}
	for _, tag := range []byte{tagTopic, tagBusiness, tagKey, tagHeaders} {
		if h.text(tag) != was.text(tag) {
			p.deviates("%s: field %d of %q came altered", p.name, tag, name)
		}
	}
}

func (p *party) ack(names ...string) {
	for _, name := range names {
		p.acks(name).is(answerAccepted, text(tagMessage, p.id(name)))
	}
}

func (p *party) acks(name string, more ...field) reply {
	return p.answer(p.say(kindAck, "", append(more, text(tagMessage, p.id(name)))...), "Ack of "+name)
}

func (p *party) nacks(name string, more ...field) reply {
	return p.answer(p.say(kindNack, "", append(more, text(tagMessage, p.id(name)))...), "Nack of "+name)
}

func (p *party) lookup(name string, more ...field) reply {
	return p.answer(p.say(kindLookup, "", append(more, p.business(name))...), "Lookup of "+name)
}

func (p *party) admin(command, name string) reply {
	return p.answer(p.say(kindAdmin, "", text(tagTopic, command), text(tagMessage, p.id(name))), command+" of "+name)
}

// quiet requires that nothing unexpected has arrived.
func (p *party) quiet() {
	p.answer(p.say(kindPing, ""), "Ping").as(kindPong)
	_ = p.world.Rest(p.ctx, settling)
	p.answer(p.say(kindPing, ""), "Ping").as(kindPong)
	for _, h := range p.here {
		p.deviates("%s: %s of %q was not due", p.name, h, h.text(tagMessage))
	}
}

// settling is how long to wait for effects that involve the store. If it is too
// short, a deviation is missed but none is invented.
const settling = 20 * time.Millisecond

// leave ends the session and waits until the broker has noticed.
func (p *party) leave() {
	if p.line == nil || p.ended {
		return
	}
	sessions := p.counters()["sessions"]
	p.ended = true
	p.line.Close()
	for !p.over() && p.counters()["sessions"] >= sessions {
		if err := p.world.Rest(p.ctx, time.Millisecond); err != nil {
			p.lost(p, err)
		}
	}
}

// end requires the broker to end the session.
func (p *party) end() {
	for !p.over() {
		h, payload, err := p.line.Hear(p.ctx)
		if err != nil {
			if p.ctx.Err() != nil {
				p.lost(p, err)
			}
			p.ended = true
			return
		}
		if m, err := parse(h, payload); err != nil || m.kind != kindPing {
			p.deviates("%s: %s, where the end was due", p.name, m)
		}
	}
}

// wait lets time pass.
func (t *talk) wait(d time.Duration) {
	if !t.over() {
		if err := t.world.Rest(t.ctx, d); err != nil {
			t.lost(t.clerk, err)
		}
	}
}

// counters reads the broker's counters.
func (t *talk) counters() map[string]int {
	r := t.clerk.answer(t.clerk.say(kindAdmin, "", text(tagTopic, "stats")), "stats")
	if t.over() {
		return nil
	}
	counters, err := countersOf(r.payload)
	if err != nil {
		t.deviates("stats: %v", err)
	}
	return counters
}

// counts requires the counters to have changed by this much since the talk began,
// and those not named not at all.
func (t *talk) counts(changes map[string]int) {
	now := t.counters()
	if t.over() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if volatile[name] && changes[name] == 0 {
			continue
		}
		if got, want := now[name]-t.before[name], changes[name]; got != want {
			t.deviates("the counter %s has changed by %d, and must by %d", name, got, want)
		}
	}
}

// volatile counters also depend on other sessions and on retries, so they are
// compared only where they are named.
var volatile = map[string]bool{"sessions": true, "subscriptions": true, "storeFailures": true}

// converse holds a talk. If a slow machine stretches it until the broker's
// periods matter, the result is inconclusive.
func (in *instance) converse(ctx context.Context, name string) (systems.Probed, error) {
	began := time.Now()
	got, err := Converse(ctx, network{in}, name)
	if took := time.Since(began); err == nil && got.Outcome == evidence.ProbeMisanswered && took > tight.visibility/2 {
		return systems.Probed{}, fmt.Errorf("zeromq: probe: it took %v, too long to tell: %s", took, got.Reason)
	}
	return got, err
}

// network holds talks over TCP.
type network struct{ *instance }

func (n network) Token() string { return n.token }

func (n network) Now() time.Duration { return time.Since(processBegan) }

func (n network) Rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (n network) Dial(ctx context.Context) (Line, error) {
	p, err := connect(ctx, n.address)
	if err != nil {
		return nil, err
	}
	if err := p.greet("DEALER"); err != nil {
		p.nc.Close()
		return nil, err
	}
	return wired{p}, nil
}

var processBegan = time.Now()

// wired is a Line with two frames per message.
type wired struct{ *peer }

func (w wired) Say(head, payload []byte) { w.write(message(head, payload)) }

func (w wired) Hear(context.Context) (head, payload []byte, err error) { return w.parts() }

func (w wired) Close() { w.nc.Close() }
