package explore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// Generate draws a scenario for a system, deterministically for a seed. It
// uses nothing that the description says the system lacks.
func Generate(desc systems.Description, seed uint64) script.Scenario {
	g := &generator{desc: desc, r: rand.New(rand.NewPCG(seed, 0x7363726970747)), running: map[string]bool{}}
	g.addActors()
	for range 2 + g.r.IntN(8) {
		g.draw()
	}
	g.stopSilent()
	return script.Scenario{Name: fmt.Sprintf("explored-%d", seed), Why: fmt.Sprintf("Drawn by chance, with the seed %d.", seed),
		Steps: g.steps, Expect: expected(desc, g.steps)}
}

// expected returns the guarantees claimed by the system, and by the
// application if every consumer keeps a consumption log.
func expected(desc systems.Description, steps []script.Step) []string {
	var names []string
	for _, c := range runner.Claims(desc, script.Scenario{Steps: steps}) {
		names = append(names, c.Guarantee)
	}
	return names
}

// generator tracks the effects of the steps so far, so that the next step
// makes sense.
type generator struct {
	desc          systems.Description
	r             *rand.Rand
	steps         []script.Step
	producers     []script.Producer
	consumers     []script.Consumer
	running       map[string]bool // consumers
	published     []script.Publish
	armed         []string // labels not yet healed
	faults        int
	maybeDown     bool // the broker may be down
	otherIdentity bool // under another storage identity
}

// oneIn is true with probability 1/n.
func (g *generator) oneIn(n int) bool { return g.r.IntN(n) == 0 }

func pick[T any](g *generator, list ...T) T { return list[g.r.IntN(len(list))] }

// add appends a step, unless the system lacks what it needs.
func (g *generator) add(s script.Step) bool {
	for _, n := range runner.Needs(script.Scenario{Steps: []script.Step{s}}) {
		if _, lacks := g.desc.Lacks[n]; lacks {
			return false
		}
	}
	g.steps = append(g.steps, s)
	return true
}

func (g *generator) lacks(n systems.Need) bool {
	_, lacks := g.desc.Lacks[n]
	return lacks
}

// addActors declares the actors. On a topic either all have the profile's
// mode, or producers have one mode and consumers the other, so that possibly
// nothing matches.
func (g *generator) addActors() {
	topics := []string{"orders"}
	if g.oneIn(6) {
		topics = append(topics, "mails")
	}
	modes := map[string][2]string{}
	if g.oneIn(10) && !g.lacks(systems.NeedModes) {
		modes[pick(g, topics...)] = pick(g, [2]string{"at-most-once", "at-least-once"}, [2]string{"at-least-once", "at-most-once"})
	}
	for i := range len(topics) + g.r.IntN(4)/3 {
		topic := topics[i%len(topics)]
		p := script.Producer{Name: fmt.Sprintf("p%d", i+1), Destination: topic, Mode: modes[topic][0]}
		if g.oneIn(10) && !g.lacks(systems.NeedTTL) {
			p.TTL = pick(g, time.Second, time.Minute)
		}
		g.add(p)
		g.producers = append(g.producers, p)
	}
	for i := range 1 + g.r.IntN(3) {
		topic := topics[g.r.IntN(len(topics))]
		c := script.Consumer{Name: fmt.Sprintf("c%d", i+1), Destination: topic, Mode: modes[topic][1], Idempotent: !g.oneIn(5),
			Offline: g.oneIn(4), Silent: g.oneIn(6), Child: g.oneIn(6) && !g.lacks(systems.NeedConnector)}
		if g.oneIn(3) {
			c.Window = 2 + g.r.IntN(8)
		}
		if c.Silent {
			c.Idempotent = false
		} else if g.oneIn(6) && !g.lacks(systems.NeedNack) {
			c.Fails = []script.Failing{{On: script.IDs{Name: "order-1"}, Times: g.r.IntN(3)}}
		}
		g.add(c)
		g.consumers = append(g.consumers, c)
		g.running[c.Name] = !c.Offline
	}
}

// stopSilent stops consumers that never acknowledge: while one runs, missing
// recovery is not the broker's fault. An await that fails would end the script
// before the stop.
func (g *generator) stopSilent() {
	for _, c := range g.consumers {
		if c.Silent && g.running[c.Name] {
			g.add(script.Stop{Actor: c.Name})
		}
	}
}

// fair reports whether every silent consumer is certain to be stopped: an
// await could end the script first.
func fair(s script.Scenario) bool {
	silent := map[string]bool{}
	awaits := false
	for _, step := range s.Steps {
		switch s := bare(step).(type) {
		case script.Await:
			awaits = true
		case script.Consumer:
			if s.Silent {
				silent[s.Name] = !s.Offline
			}
		case script.Start:
			if _, ok := silent[s.Actor]; ok {
				silent[s.Actor] = true
			}
		case script.Stop:
			if _, ok := silent[s.Actor]; ok {
				silent[s.Actor] = false
			}
		}
	}
	for _, running := range silent {
		if running || awaits {
			return false
		}
	}
	return true
}

// kinds lists the kinds of steps, weighted.
var kinds = []struct {
	weight int
	draw   func(*generator)
}{
	{30, (*generator).publish},
	{8, (*generator).republish},
	{4, (*generator).resolve},
	{14, (*generator).await},
	{12, (*generator).strikeFrame},
	{8, (*generator).strikeBroker},
	{3, (*generator).strikeConsumer},
	{8, (*generator).strikeStore},
	{4, (*generator).strikeLink},
	{2, (*generator).strikeClock},
	{3, (*generator).heal},
	{10, (*generator).start},
	{5, (*generator).stop},
	{4, (*generator).restart},
	{4, (*generator).elapse},
	{4, (*generator).changeIdentity},
	{2, (*generator).handleDeadLetter},
	{2, func(g *generator) { g.add(script.Snapshot{Checkpoint: fmt.Sprintf("s%d", len(g.steps))}) }},
}

var totalWeight = func() (n int) {
	for _, k := range kinds {
		n += k.weight
	}
	return n
}()

func (g *generator) draw() {
	at := g.r.IntN(totalWeight)
	for _, k := range kinds {
		if at -= k.weight; at < 0 {
			k.draw(g)
			return
		}
	}
}

func (g *generator) publish() {
	n := len(g.published) + 1
	s := script.Publish{BusinessID: fmt.Sprintf("order-%d", n), By: pick(g, g.producers...).Name}
	if g.oneIn(4) { // always delivered whole, whatever else happens
		s.Headers = 1 + g.r.IntN(3)
	}
	switch g.r.IntN(10) {
	case 0:
		s.Size = 1 + g.r.IntN(3000)
	case 1:
		s.TTL = pick(g, time.Second, time.Minute, 2*time.Hour)
	case 2:
		s.MessageID = "m-" + s.BusinessID
	case 3:
		s.Until = "accepted"
	case 4:
		s.Background = true
	case 5:
		s.Cancel = true
	case 6, 7:
		s.BusinessID, s.From, s.To = fmt.Sprintf("batch-%d-", n), 1, 2+g.r.IntN(4)
		s.Window = g.r.IntN(4)
	}
	if s.To == 0 && len(g.published) > 0 && g.oneIn(10) {
		s.TTL = pick(g, time.Second, time.Minute)
	}
	if g.add(s) {
		g.published = append(g.published, s)
	}
}

// randomID returns a published business ID, favouring the first.
func (g *generator) randomID() (id string, by string, ok bool) {
	if len(g.published) == 0 {
		return "", "", false
	}
	s := g.published[min(g.r.IntN(len(g.published)), g.r.IntN(len(g.published)))]
	if s.To > 0 {
		return fmt.Sprintf("%s%d", s.BusinessID, s.From+g.r.IntN(s.To-s.From+1)), s.By, true
	}
	return s.BusinessID, s.By, true
}

// republish publishes a message again under the publisher's ID: under another
// it would be another message, with another effect.
func (g *generator) republish() {
	for _, p := range g.published {
		if p.To == 0 && (p.MessageID != "" || p.Until != "") {
			g.add(script.Retry{BusinessID: p.BusinessID, By: p.By, SameID: true})
			return
		}
	}
}

// resolve looks up only what can be found: another partition does not know the
// message.
func (g *generator) resolve() {
	if id, by, ok := g.randomID(); ok && !g.otherIdentity && !g.lacks(systems.NeedLookup) {
		g.ensureBroker()
		g.add(script.Resolve{BusinessID: id, By: by})
	}
}

// awaitBound is short: a condition not met by then will not be met.
const awaitBound = 2 * time.Second

func (g *generator) await() {
	id, _, ok := g.randomID()
	if !ok || slices.ContainsFunc(g.consumers, func(c script.Consumer) bool { return c.Silent }) {
		return
	}
	c := pick(g, script.Delivered(id, 0), script.Delivered(id, 2), script.Effect(id), script.Accepted(id), script.Acked(id))
	g.add(script.Await{Condition: c, Within: awaitBound})
}

func (g *generator) label() string {
	g.faults++
	return fmt.Sprintf("f%d", g.faults)
}

// fault arms a fault, unless the system lacks what it needs.
func (g *generator) fault(s script.Fault) bool {
	s.Label = g.label()
	f, ok := faults.Find(s.Verb)
	if !ok || !g.add(s) {
		return false
	}
	if f.Ends && s.Target == faults.Broker {
		g.maybeDown = true
	}
	g.armed = append(g.armed, s.Label)
	return true
}

// handOver draws a frame on an actor's link.
func (g *generator) handOver() (frame, on string) {
	if g.oneIn(2) {
		return pick(g, links.FramePublish, links.FrameAccept), pick(g, g.producers...).Name
	}
	return pick(g, links.FrameDeliver, links.FrameAck, links.FrameAckConfirm, links.FrameNack), pick(g, g.consumers...).Name
}

// smallCount is mostly 0.
func (g *generator) smallCount() int { return max(0, g.r.IntN(6)-2) }

// strikeFrame omits corruption, which no claim covers.
func (g *generator) strikeFrame() {
	frame, on := g.handOver()
	s := script.Fault{Verb: pick(g, "drop", "hold", "duplicate", "delay", "cut"), Event: "frame " + frame, On: on, N: g.smallCount()}
	switch s.Verb {
	case "delay":
		s.By = pick(g, 50*time.Millisecond, 700*time.Millisecond, 2*time.Second)
	case "cut", "hold":
		s.When = pick(g, script.Before, script.After)
	case "duplicate":
		if frame == links.FramePublish {
			s.Verb = "drop" // a duplicated publish makes two messages
		}
	}
	if g.oneIn(8) {
		s.Repeat = script.Every
	}
	g.fault(s)
}

// Operations of the store and of its files that can trigger a fault.
var (
	operations     = []string{"insert", "delete", "attempt", "dead-letter"}
	fileOperations = []string{"open", "read", "write", "sync", "truncate"}
)

// onFiles draws an operation on the store's files that the verb can strike,
// every other time; none if the store has no files.
func (g *generator) onFiles(verb string) (event string, ok bool) {
	var on []string
	for _, op := range fileOperations {
		if slices.Contains(g.desc.StoreFaults[verb], op) {
			on = append(on, op)
		}
	}
	if len(on) == 0 || g.oneIn(2) {
		return "", false
	}
	return "operation " + pick(g, on...), true
}

func (g *generator) strikeBroker() {
	s := script.Fault{Verb: pick(g, "kill", "kill", "shutdown", "pause"), Target: faults.Broker}
	switch g.r.IntN(4) {
	case 0:
		frame, on := g.handOver()
		s.When, s.Event, s.On, s.N = pick(g, script.Before, script.After), "frame "+frame, on, g.smallCount()
	case 1:
		if s.Verb == "kill" {
			g.ensureBroker()
			s.When, s.Event, s.N = pick(g, script.Before, script.After), "operation "+pick(g, operations...), g.smallCount()
			if event, ok := g.onFiles("block"); ok {
				s.Event = event
			}
		}
	default:
		g.ensureBroker()
	}
	g.fault(s)
}

func (g *generator) strikeConsumer() {
	for _, c := range g.consumers {
		if c.Child && g.running[c.Name] {
			g.fault(script.Fault{Verb: "kill", Target: c.Name, When: pick(g, script.Before, script.After),
				Event: "frame " + pick(g, links.FrameDeliver, links.FrameAck, links.FrameAckConfirm), On: c.Name, N: g.smallCount()})
			return
		}
	}
}

func (g *generator) strikeStore() {
	g.ensureBroker()
	s := script.Fault{Verb: pick(g, "unreachable", "slow", "full", "lose-reply", "block"), Target: "store", When: script.Before,
		Event: "operation " + pick(g, operations...), N: g.smallCount()}
	switch s.Verb {
	case "slow":
		s.By = pick(g, 100*time.Millisecond, 2*time.Second)
	case "full":
		s.Event = "operation insert"
	case "lose-reply":
		s.When = script.After
	case "block":
		s.When = pick(g, script.Before, script.After)
	}
	if event, ok := g.onFiles(s.Verb); ok {
		s.Event = event
	}
	if _, ok := g.onFiles("fsync-error"); ok && g.oneIn(3) {
		s = script.Fault{Verb: "fsync-error", Target: "store", When: script.Before, Event: "operation sync", N: s.N}
	}
	if g.oneIn(4) && s.Verb != "block" {
		s.Repeat = script.Every
	}
	g.fault(s)
}

func (g *generator) strikeLink() {
	on := pick(g, g.consumers...).Name
	if g.oneIn(2) {
		on = pick(g, g.producers...).Name
	}
	g.fault(script.Fault{Verb: pick(g, "black-hole", "down", "reset"), On: on})
}

func (g *generator) strikeClock() {
	g.fault(script.Fault{Verb: "clock", Target: faults.Broker, By: pick(g, 30*time.Minute, -30*time.Minute)})
}

func (g *generator) heal() {
	if len(g.armed) > 0 {
		i := g.r.IntN(len(g.armed))
		g.add(script.Heal{Label: g.armed[i]})
		g.armed = slices.Delete(g.armed, i, i+1)
	}
}

// ensureBroker starts the broker if a fault may have ended it.
func (g *generator) ensureBroker() {
	if g.maybeDown {
		g.add(script.Start{Actor: faults.Broker})
	}
}

func (g *generator) start() {
	for _, c := range g.consumers {
		if !g.running[c.Name] {
			g.ensureBroker()
			g.add(script.Start{Actor: c.Name})
			g.running[c.Name] = true
			return
		}
	}
	g.ensureBroker()
}

func (g *generator) stop() {
	c := pick(g, g.consumers...)
	if g.running[c.Name] {
		g.add(script.Stop{Actor: c.Name})
		g.running[c.Name] = false
	}
}

func (g *generator) restart() {
	g.ensureBroker()
	g.add(script.Restart{Actor: faults.Broker})
}

// elapse waits until a short time to live has passed.
func (g *generator) elapse() {
	for _, p := range g.published {
		if p.To == 0 && p.TTL > 0 && p.TTL <= 2*time.Second {
			if p.Background {
				g.add(script.Settle{By: p.By})
			}
			g.add(script.Elapse{BusinessID: p.BusinessID, Margin: 600 * time.Millisecond})
			return
		}
	}
}

// changeIdentity restarts the broker under another storage identity, which
// hides the earlier rows.
func (g *generator) changeIdentity() {
	if g.lacks(systems.NeedIdentity) {
		return
	}
	g.ensureBroker()
	g.otherIdentity = true
	g.add(script.Set{Setting: "identity", Value: pick(g, "identity-2", "identity-2", "identity-1")})
	g.add(script.Restart{Actor: faults.Broker})
	g.add(script.Snapshot{Checkpoint: fmt.Sprintf("s%d", len(g.steps))})
	if g.oneIn(2) {
		g.elapse()
	}
}

// handleDeadLetter redrives or discards a dead letter.
func (g *generator) handleDeadLetter() {
	if id, _, ok := g.randomID(); ok && !g.lacks(systems.NeedDeadLetters) {
		g.ensureBroker()
		if g.oneIn(2) {
			g.add(script.Redrive{BusinessID: id})
		} else {
			g.add(script.Discard{BusinessID: id})
		}
	}
}
