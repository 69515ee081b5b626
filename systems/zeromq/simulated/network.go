package simulated

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/zmtp"
)

// link is an actor's connection to the broker: it observes frames and applies
// faults to them.
type link struct {
	in       *instance
	opts     links.Options
	conns    []*conn
	accepted int
	armed    []*strike
	hole     *strike // drops everything
	down     bool
}

func (l *link) Addr() string       { return "link of " + l.opts.Name }
func (l *link) Lag() time.Duration { return 0 }
func (l *link) Close() error {
	l.cutAll("link closed")
	return nil
}

// conn is one connection. Order is preserved in each direction, and a close is
// ordered like a frame.
type conn struct {
	link    *link // nil: direct and unobserved
	in      *instance
	number  int
	pipes   [3]*pipe // by direction
	gate    *hold    // holds both directions
	cut     bool
	client  *client
	process *brokerProcess
	session uint64 // number given by the broker; 0 until Hello
}

type pipe struct {
	conn     *conn
	to       evidence.Direction
	framer   links.Framer
	arrives  time.Duration // of the latest packet at the link
	delivers time.Duration // of the latest packet at the peer
	queue    []packet      // queued at the link behind a hold
	hold     *hold
	gone     bool // the receiver has closed
}

// packet is a frame, or the sender's close.
type packet struct {
	end   bool
	raw   []byte
	parts [2][]byte // share raw
}

// hold suspends a connection.
type hold struct {
	strike *strike
	pipe   *pipe
	frame  *packet // forwarded on release; nil if it already was
}

// zmtpGreeting must precede the frames given to a framer.
var zmtpGreeting = append([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 3}, make([]byte, 53)...)

// connect opens a connection over a link, or directly if the address is empty;
// nil if nobody listens.
func (in *instance) connect(address string, c *client) *conn {
	l := in.links[address]
	if l != nil && l.down || in.broker == nil || in.broker.stopping {
		return nil
	}
	n := &conn{link: l, in: in, client: c, process: in.broker}
	n.pipes[evidence.ToBroker] = &pipe{conn: n, to: evidence.ToBroker}
	n.pipes[evidence.ToClient] = &pipe{conn: n, to: evidence.ToClient}
	in.broker.conns = append(in.broker.conns, n)
	if l == nil {
		return n
	}
	l.accepted++
	n.number = l.accepted
	l.conns = append(l.conns, n)
	toBroker, toClient := zmtp.Protocol{}.NewConn(l.opts.Index)
	n.pipes[evidence.ToBroker].framer, n.pipes[evidence.ToClient].framer = toBroker, toClient
	for _, p := range n.pipes[1:] {
		_, _, _ = p.framer.Next(zmtpGreeting) // cannot fail
	}
	n.event(evidence.LinkConnected, "")
	return n
}

func (n *conn) event(kind evidence.Kind, reason string) {
	if n.link != nil {
		name := n.link.opts.Name
		n.link.opts.Sink.Record(evidence.Event{Kind: kind, Actor: name, Link: name, Conn: n.number, Reason: reason})
	}
}

// send transmits a message. An error means that it cannot be encoded.
func (n *conn) send(to evidence.Direction, m *wire.Message) error {
	var room [2][]byte
	parts, err := wire.Encode(room[:0], m)
	if err != nil {
		return err
	}
	n.pipes[to].put(pack(parts))
	return nil
}

// pack frames a two-part message in ZMTP (https://rfc.zeromq.org/spec/23).
func pack(parts [][]byte) packet {
	raw := make([]byte, 0, 18+len(parts[0])+len(parts[1]))
	var at [2]int
	for i, part := range parts {
		more := byte(1 - i)
		if len(part) < 256 {
			raw = append(raw, more, byte(len(part)))
		} else {
			raw = binary.BigEndian.AppendUint64(append(raw, more|2), uint64(len(part)))
		}
		at[i] = len(raw)
		raw = append(raw, part...)
	}
	return packet{raw: raw, parts: [2][]byte{raw[at[0] : at[0]+len(parts[0])], raw[at[1]:]}}
}

// corrupted alters one byte of the packet's payload.
func (p packet) corrupted() packet {
	raw, err := zmtp.Protocol{}.Corrupt(links.Frame{Raw: p.raw})
	if err != nil {
		return p
	}
	head := len(p.raw) - len(p.parts[1]) // the payload is at the end of the frame
	return packet{raw: raw, parts: [2][]byte{p.parts[0], raw[head:]}}
}

// put enqueues a packet for the link, preserving order.
func (p *pipe) put(x packet) {
	in := p.conn.in
	p.arrives = max(p.arrives, in.Now()+in.Jitter())
	in.At(p.arrives, func() {
		switch {
		case p.conn.cut:
		case p.hold != nil || p.conn.gate != nil:
			p.queue = append(p.queue, x)
		default:
			p.carry(x)
		}
	})
}

// flush forwards queued packets up to the next hold.
func (p *pipe) flush() {
	for len(p.queue) > 0 && p.hold == nil && p.conn.gate == nil && !p.conn.cut {
		x := p.queue[0]
		p.queue = p.queue[1:]
		p.carry(x)
	}
}

// carry observes a packet at the link and strikes or forwards it.
func (p *pipe) carry(x packet) {
	l := p.conn.link
	if l != nil && l.hole != nil {
		p.swallow(x, l.hole)
		return
	}
	if l == nil || x.end {
		p.forward(x)
		return
	}
	f, _, _ := p.framer.Next(x.raw) // a whole frame that this package encoded
	if f.Kind == "" {
		p.forward(x)
		return
	}
	var s *strike
	links.Hit(l.armed, p.to, f, func(a *strike) bool {
		s = a
		return true
	})
	struck := ""
	if s != nil {
		struck = s.Struck()
	}
	p.record(f, struck)
	if s == nil {
		p.forward(x)
		return
	}
	p.strike(s, f, x)
}

func (p *pipe) record(f links.Frame, struck string) {
	o := &p.conn.link.opts
	o.Sink.Record(links.Carried(o.Name, p.conn.number, p.to, f, struck))
}

// forward delivers a packet, preserving order.
func (p *pipe) forward(x packet) {
	if p.gone {
		return
	}
	in := p.conn.in
	p.delivers = max(p.delivers, in.Now()+in.Jitter())
	in.At(p.delivers, func() {
		if !p.gone {
			p.conn.receive(p.to, x)
		}
	})
}

func (n *conn) receive(to evidence.Direction, x packet) {
	if to == evidence.ToBroker {
		n.process.receive(n, x)
		return
	}
	if x.end {
		n.client.end(errors.New("the broker closed the connection"))
		return
	}
	n.client.take(x)
}

// hangUp closes one side, for sending and receiving.
func (n *conn) hangUp(side evidence.Direction) {
	if n.pipes[side].gone {
		return
	}
	n.pipes[side].gone = true
	n.pipes[opposite[side]].put(packet{end: true})
	if n.pipes[opposite[side]].gone {
		n.leave("closed by its peers")
	}
}

var opposite = [...]evidence.Direction{evidence.ToBroker: evidence.ToClient, evidence.ToClient: evidence.ToBroker}

// reset closes both sides, ordered behind what was forwarded. It returns false
// if they were closed already.
func (n *conn) reset(reason string) bool {
	if n.cut {
		return false
	}
	n.cut = true
	for _, p := range n.pipes[1:] {
		p.queue, p.hold = nil, nil
		p.forward(packet{end: true})
	}
	n.leave(reason)
	return true
}

func (n *conn) leave(reason string) {
	if n.link == nil || !slices.Contains(n.link.conns, n) {
		return
	}
	n.link.conns = slices.DeleteFunc(n.link.conns, func(o *conn) bool { return o == n })
	n.event(evidence.LinkDisconnected, reason)
}

// silent closes a side that receives nothing for three heartbeats.
func (n *conn) silent(side evidence.Direction, still func() bool) {
	n.in.After(3*n.in.heartbeat, func() {
		if n.pipes[side].gone || !still() {
			return
		}
		if side == evidence.ToBroker {
			n.process.lose(n)
			return
		}
		n.client.end(errors.New("nothing was received for three heartbeats"))
	})
}

// strike is an armed fault on a link.
type strike struct {
	links.Aim
	link   *link
	fired  chan struct{}
	hits   int
	holds  []*hold
	gapped []*conn
}

func (l *link) newStrike(label string, action links.Action) *strike {
	return &strike{Aim: links.Aim{Strike: links.Strike{Label: label, Action: action}}, link: l, fired: make(chan struct{})}
}

func (l *link) Arm(s links.Strike) (links.Injection, error) {
	aim, err := links.NewAim(zmtp.Protocol{}, s)
	if err != nil {
		return nil, err
	}
	a := &strike{Aim: aim, link: l, fired: make(chan struct{})}
	l.armed = append(l.armed, a)
	return a, nil
}

// BlackHole drops every byte from now on, in both directions.
func (l *link) BlackHole(label string, _ evidence.Direction) (links.Injection, error) {
	s := l.newStrike(label, "black-hole")
	l.hole = s
	for _, n := range l.conns {
		for _, p := range n.pipes[1:] {
			n.silent(p.to, func() bool { return l.hole == s })
		}
	}
	return s, nil
}

func (l *link) Down(label string) (links.Injection, error) {
	if l.down {
		return nil, links.ErrDown
	}
	s := l.newStrike(label, "down")
	l.down = true
	l.cutAll("link down")
	s.fire(0, evidence.NoDirection, links.Frame{})
	return s, nil
}

func (l *link) Reset(label string) links.Injection {
	s := l.newStrike(label, "reset")
	for _, n := range l.cutAll("reset") {
		s.fire(n.number, evidence.NoDirection, links.Frame{})
	}
	return s
}

func (l *link) AddToxic(string, links.Toxic) (links.Injection, error) {
	return nil, errors.New("simulated: the network carries frames whole")
}

func (s *strike) Fired() <-chan struct{} { return s.fired }
func (s *strike) Count() int             { return s.hits }

func (s *strike) fire(conn int, to evidence.Direction, f links.Frame) {
	if s.Label != "" {
		s.link.opts.Sink.Record(s.FiredAt(s.link.opts.Name, conn, to, f))
	}
	if s.hits++; s.hits > 1 {
		return
	}
	close(s.fired)
	if s.Then != nil {
		s.Then()
	}
}

// strike applies the fault's action. A withholding action has fired once
// decided, a forwarding one once written.
func (p *pipe) strike(s *strike, f links.Frame, x packet) {
	n := p.conn
	fire := func() { s.fire(n.number, p.to, f) }
	switch s.Action {
	case links.Drop:
		fire()
	case links.Hold:
		p.holdBack(&hold{s, p, &x})
		fire()
	case links.Delay:
		h := &hold{s, p, &x}
		p.holdBack(h)
		fire()
		n.in.After(s.Delay, func() { h.release() })
	case links.CutBefore:
		fire()
		n.reset("cut before " + f.Kind)
	case links.HoldAfter:
		h := &hold{s, p, nil}
		n.gate = h
		s.holds = append(s.holds, h)
		p.forward(x)
		for _, side := range n.pipes[1:] {
			n.silent(side.to, func() bool { return n.gate == h })
		}
		fire()
	case links.Duplicate:
		p.forward(x)
		p.record(f, string(links.Duplicate))
		p.forward(x)
		fire()
	case links.Corrupt:
		p.forward(x.corrupted())
		fire()
	case links.CutAfter:
		p.forward(x)
		n.reset("cut after " + f.Kind)
		fire()
	}
}

func (p *pipe) holdBack(h *hold) {
	p.hold = h
	h.strike.holds = append(h.strike.holds, h)
	p.conn.silent(p.to, func() bool { return p.hold == h })
}

// release forwards what was held, in order.
func (h *hold) release() {
	n := h.pipe.conn
	if n.gate == h {
		n.gate = nil
	} else if h.pipe.hold != h {
		return
	} else {
		h.pipe.hold = nil
		h.pipe.forward(*h.frame)
	}
	for _, p := range n.pipes[1:] {
		p.flush()
	}
}

func (p *pipe) swallow(x packet, s *strike) {
	n := p.conn
	if !slices.Contains(s.gapped, n) {
		s.gapped = append(s.gapped, n)
	}
	if x.end {
		return // dropped with everything else
	}
	f, _, _ := p.framer.Next(x.raw)
	if f.Kind != "" {
		p.record(f, string(s.Action))
	}
	if f.Kind != "" || s.hits == 0 {
		s.fire(n.number, p.to, f)
	}
}

func (l *link) cutAll(reason string) (cut []*conn) {
	for _, n := range slices.Clone(l.conns) {
		if n.reset(reason) {
			cut = append(cut, n)
		}
	}
	return cut
}

// Heal ends the fault and releases what it holds.
func (s *strike) Heal(context.Context) error {
	l := s.link
	l.armed = slices.DeleteFunc(l.armed, func(o *strike) bool { return o == s })
	if l.hole == s {
		l.hole = nil
	}
	s.Release(true)
	for _, n := range s.gapped {
		n.reset("lost bytes in a black hole")
	}
	if s.Action == "down" {
		l.down = false
	}
	s.gapped = nil
	return nil
}

// Release forwards what is held, or resets its connections.
func (s *strike) Release(forward bool) {
	holds := s.holds
	s.holds = nil
	for _, h := range holds {
		if forward {
			h.release()
		} else {
			h.pipe.conn.reset("held frames discarded")
		}
	}
}
