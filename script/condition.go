package script

import (
	"strconv"

	"github.com/custodymq/custody/evidence"
)

// shape is the syntax of a condition's verb: words in order, S for the subject,
// W for the word, and whether "at least N times" may follow.
type shape struct {
	verb    string
	words   []string
	counted bool
	text    string
}

const (
	subject  = "\x00S"
	wordSlot = "\x00W"
	optional = "\x00?" // what follows is optional, as a whole
)

// shapes is the grammar of conditions, for await and reached alike.
var shapes = []shape{
	{evidence.CondFired, []string{subject}, true, "the fault has fired"},
	{evidence.CondDelivered, []string{subject}, true, "the message was handed to an application"},
	{evidence.CondRedelivery, []string{"of", subject}, true, "the message was handed out again to the same logical subscriber"},
	{evidence.CondAcceptance, []string{wordSlot, "of", subject}, true, "a publish of it was answered so: accepted, declined, rejected, unknown"},
	{evidence.CondEffect, []string{"of", subject}, true, "its business effect was committed"},
	{evidence.CondAbsorbed, []string{subject}, true, "the consumption log absorbed a repeat"},
	{evidence.CondAcked, []string{subject}, true, "an acknowledgement of it was confirmed or sent"},
	{evidence.CondInFlight, []string{"at", subject}, true, "messages were unsettled when the fault fired"},
	{evidence.CondStored, []string{subject, optional, "at", wordSlot}, false, "a snapshot shows its pending row"},
	{evidence.CondDead, []string{subject}, false, "a snapshot shows it dead-lettered"},
	{evidence.CondResolved, []string{subject}, false, "a lookup settled it"},
	{evidence.CondConnected, []string{subject}, true, "the actor has opened a session"},
	{evidence.CondFailed, []string{subject}, true, "the handler failed on it"},
	{evidence.CondCarried, []string{wordSlot, "on", subject}, true, "frames of this kind passed on the actor's link"},
	{evidence.CondGone, []string{subject}, false, "the newest snapshot has no pending row of it"},
}

// Condition builds a condition. Which of word and times it uses depends on the
// verb's shape.
func Condition(verb, subj, w string, times int) evidence.Condition {
	c := evidence.Condition{Verb: verb, Subject: subj, Word: w, Times: times}
	c.Line = printCondition(c)
	return c
}

// Constructors of the conditions that scenarios use.

func Fired(label string) evidence.Condition { return Condition(evidence.CondFired, label, "", 0) }
func Delivered(id string, times int) evidence.Condition {
	return Condition(evidence.CondDelivered, id, "", times)
}
func Redelivery(id string) evidence.Condition { return Condition(evidence.CondRedelivery, id, "", 0) }
func Accepted(id string) evidence.Condition   { return Answered("accepted", id) }
func Answered(acceptance, id string) evidence.Condition {
	return Condition(evidence.CondAcceptance, id, acceptance, 0)
}
func Effect(id string) evidence.Condition { return Condition(evidence.CondEffect, id, "", 0) }
func Absorbed(id string) evidence.Condition {
	return Condition(evidence.CondAbsorbed, id, "", 0)
}
func Acked(id string) evidence.Condition { return Condition(evidence.CondAcked, id, "", 0) }
func InFlight(label string, times int) evidence.Condition {
	return Condition(evidence.CondInFlight, label, "", times)
}
func Stored(id, checkpoint string) evidence.Condition {
	return Condition(evidence.CondStored, id, checkpoint, 0)
}
func Dead(id string) evidence.Condition { return Condition(evidence.CondDead, id, "", 0) }
func Gone(id string) evidence.Condition { return Condition(evidence.CondGone, id, "", 0) }
func Connected(actor string, times int) evidence.Condition {
	return Condition(evidence.CondConnected, actor, "", times)
}
func Carried(frame, actor string, times int) evidence.Condition {
	return Condition(evidence.CondCarried, actor, frame, times)
}
func HandlerFailed(id string, times int) evidence.Condition {
	return Condition(evidence.CondFailed, id, "", times)
}

func shapeOf(verb string) (shape, bool) {
	for _, s := range shapes {
		if s.verb == verb {
			return s, true
		}
	}
	return shape{}, false
}

func printCondition(c evidence.Condition) string {
	s, ok := shapeOf(c.Verb)
	if !ok {
		return c.Verb
	}
	line := c.Verb
	for _, w := range s.words {
		switch w {
		case subject:
			line += " " + c.Subject
		case wordSlot:
			line += " " + c.Word
		case optional:
			if c.Word == "" {
				return line
			}
		default:
			line += " " + w
		}
	}
	if s.counted && c.Times > 0 {
		line += " at least " + strconv.Itoa(c.Times) + " times"
	}
	return line
}

func (p *parser) condition() evidence.Condition {
	verb := p.next("a condition")
	s, ok := shapeOf(verb)
	if !ok {
		names := make([]string, len(shapes))
		for i, sh := range shapes {
			names[i] = sh.verb
		}
		p.failAt(p.at-1, "%q is no condition%s", verb, suggest(verb, names))
		return evidence.Condition{}
	}
	c := evidence.Condition{Verb: verb}
	for _, w := range s.words {
		switch w {
		case subject:
			c.Subject = p.name("a name")
		case wordSlot:
			c.Word = p.name("a word")
		case optional:
			if p.peek() != s.words[len(s.words)-2] {
				c.Line = printCondition(c)
				return c
			}
		default:
			p.expect(w)
		}
	}
	if s.counted && p.peek() == "at" {
		p.expect("at")
		p.expect("least")
		c.Times = p.count("how many times")
		p.expect("times")
	}
	c.Line = printCondition(c)
	return c
}
