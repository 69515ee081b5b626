// Package declared observes a protocol that is described by its framing and by
// regular expressions on the frames, as an adapter in any language does.
package declared

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// Protocol is made by New.
type Protocol struct {
	name       string
	cut        cutter
	rules      []rule
	positional bool // an answer names no request: it belongs to the oldest one
}

var _ links.Protocol = (*Protocol)(nil)

// Rule gives a kind to the frames of one direction that its pattern matches.
// The pattern's named groups say what a frame carries: "message" the message ID;
// "request" what an answer on the same connection repeats; "no", where it
// matches, that the answer is a refusal.
type Rule struct {
	Kind  string             `json:"kind"` // see links.FrameKinds
	To    evidence.Direction `json:"to"`
	Match string             `json:"match"`
}

type rule struct {
	Rule
	pattern *regexp.Regexp
}

// cutter returns the length of the frame at the start of buf, and its text; 0
// asks for more bytes.
type cutter func(buf []byte) (n int, text []byte, err error)

// framings are the ways in which frames are delimited.
var framings = map[string]cutter{
	// Each ends with a line feed.
	"lines": func(buf []byte) (int, []byte, error) {
		end := bytes.IndexByte(buf, '\n')
		if end < 0 && len(buf) > links.MaxFrame {
			return 0, nil, fmt.Errorf("declared: a line of more than %d bytes", links.MaxFrame)
		}
		return end + 1, buf[:max(end, 0)], nil
	},
	// Each begins with its length, 4 bytes, the highest first.
	"length-u32": func(buf []byte) (int, []byte, error) {
		const head = 4
		if len(buf) < head {
			return 0, nil, nil
		}
		length := int64(binary.BigEndian.Uint32(buf))
		switch {
		case length > links.MaxFrame:
			return 0, nil, fmt.Errorf("declared: a frame of %d bytes, of at most %d", length, links.MaxFrame)
		case int64(len(buf)) < head+length:
			return 0, nil, nil
		}
		return head + int(length), buf[head : head+length], nil
	},
}

// answers are the kinds that answer another, which they are matched with.
var answers = map[string]string{
	links.FrameAccept: links.FramePublish, links.FrameAckConfirm: links.FrameAck, links.FrameNackConfirm: links.FrameNack,
}

// New returns the protocol of a framing ("lines" or "length-u32") and rules, of
// which the first that matches counts. Errors begin with the field.
func New(name, framing string, rules []Rule) (*Protocol, error) {
	p := &Protocol{name: name, cut: framings[framing]}
	if p.cut == nil {
		return nil, fmt.Errorf("framing: no framing %q; there are lines and length-u32", framing)
	}
	for i, r := range rules {
		if !slices.Contains(links.FrameKinds(), r.Kind) {
			return nil, fmt.Errorf("rules.%d.kind: no kind %q; the kinds are listed in docs/script.md", i, r.Kind)
		}
		pattern, err := regexp.Compile(r.Match)
		if err != nil {
			return nil, fmt.Errorf("rules.%d.match: %w", i, err)
		}
		for _, group := range pattern.SubexpNames()[1:] {
			if !slices.Contains([]string{"", "message", "request", "no"}, group) {
				return nil, fmt.Errorf("rules.%d.match: no group %q; there are message, request and no", i, group)
			}
		}
		if answers[r.Kind] != "" && pattern.SubexpIndex("request") < 0 {
			p.positional = true
		}
		p.rules = append(p.rules, rule{r, pattern})
	}
	for answer, question := range answers {
		if p.has(answer) && !p.has(question) {
			return nil, fmt.Errorf("rules: %s answers %s, for which there is no rule", answer, question)
		}
	}
	return p, nil
}

func (p *Protocol) has(kind string) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool { return r.Kind == kind })
}

func (p *Protocol) Name() string { return p.name }

// Kinds returns those of the rules.
func (p *Protocol) Kinds() []links.KindInfo {
	var list []links.KindInfo
	for _, r := range p.rules {
		if !slices.ContainsFunc(list, func(k links.KindInfo) bool { return k.Name == r.Kind }) {
			list = append(list, links.KindInfo{Name: r.Kind, To: r.To, Text: "what matches " + r.Match})
		}
	}
	return list
}

// Legal refuses what would give an answer to another request than its own.
func (p *Protocol) Legal(kind string, a links.Action) error {
	if p.positional && (a == links.Drop || a == links.Duplicate) {
		return &links.ErrIllegal{Protocol: p.name, Kind: kind, Action: a, Why: "its answers name no request: they are matched by position"}
	}
	return links.LegalAlone(p.name, kind, a)
}

// maxPending bounds a connection's unanswered requests.
const maxPending = 1 << 16

// NewConn returns the framers of one connection.
func (p *Protocol) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	asked := links.NewPending[string, evidence.FrameItem](maxPending)
	return framer{p, evidence.ToBroker, ix, asked}, framer{p, evidence.ToClient, ix, asked}
}

// framer cuts one direction into frames.
type framer struct {
	protocol *Protocol
	to       evidence.Direction
	index    *links.Index
	asked    *links.Pending[string, evidence.FrameItem] // by the kind of the question and the request
}

func (f framer) Next(buf []byte) (links.Frame, int, error) {
	n, text, err := f.protocol.cut(buf)
	if err != nil || n == 0 {
		return links.Frame{}, 0, err
	}
	frame := links.Frame{Raw: buf[:n]}
	for _, r := range f.protocol.rules {
		if r.To != f.to {
			continue
		}
		if at := r.pattern.FindSubmatchIndex(text); at != nil {
			f.understand(&frame, r, text, at)
			break
		}
	}
	return frame, n, nil
}

func (f framer) understand(frame *links.Frame, r rule, text []byte, at []int) {
	group := func(name string) string {
		i := r.pattern.SubexpIndex(name)
		if i < 0 || at[2*i] < 0 {
			return ""
		}
		return string(text[at[2*i]:at[2*i+1]])
	}
	frame.Kind = r.Kind
	message, request := group("message"), group("request")
	item := evidence.FrameItem{MessageID: message}
	question, isAnswer := answers[r.Kind]
	switch e, found := envelope(text); {
	case found:
		item.BusinessID, item.PublishID = e.BusinessID, e.PublishID
		f.index.Learn(item)
	case isAnswer && request != "":
		if asked, ok := f.asked.Lookup(question + " " + request); ok {
			item = asked
			if message != "" {
				item.MessageID = message
				f.index.Learn(item)
			}
		}
	case message != "":
		item = f.index.Find(message)
	}
	if item != (evidence.FrameItem{}) {
		frame.Items = []evidence.FrameItem{item}
	}
	if isAnswer {
		if frame.Status = links.Yes; group("no") != "" {
			frame.Status = group("no")
		}
	} else if request != "" {
		f.asked.Add(r.Kind+" "+request, item)
	}
}

// The beginning of an envelope, as it is and in base64, of which it is a whole
// number of groups; what follows decides the rest.
var (
	plain   = []byte("custody/1 ")
	encoded = []byte(base64.StdEncoding.EncodeToString([]byte("custody/1")))
)

// maxHead is longer than the head of any envelope.
const maxHead = 512

// envelope finds the head of an envelope in a frame: as it is, in JSON, or in
// base64.
func envelope(text []byte) (evidence.Envelope, bool) {
	for _, look := range []struct {
		begins []byte
		decode func([]byte) []byte
	}{
		{plain, func(b []byte) []byte { return bytes.Replace(b, []byte(`\n`), []byte("\n"), 1) }},
		{encoded, decodeBase64},
	} {
		at := bytes.Index(text, look.begins)
		if at < 0 {
			continue
		}
		head := text[at:]
		if e, err := evidence.ParseEnvelope(look.decode(head[:min(len(head), maxHead)])); err == nil {
			return e, true
		}
	}
	return evidence.Envelope{}, false
}

// decodeBase64 decodes the whole groups at the beginning.
func decodeBase64(b []byte) []byte {
	end := 0
	for end < len(b) && (b[end] >= 'A' && b[end] <= 'Z' || b[end] >= 'a' && b[end] <= 'z' || b[end] >= '0' && b[end] <= '9' || b[end] == '+' || b[end] == '/') {
		end++
	}
	for end < len(b) && end%4 != 0 && b[end] == '=' {
		end++
	}
	whole := b[:end-end%4]
	out := make([]byte, base64.StdEncoding.DecodedLen(len(whole)))
	n, err := base64.StdEncoding.Decode(out, whole)
	if err != nil {
		return nil
	}
	return out[:n]
}
