// Package admission bounds what connections may take that have not shown who
// they are, so that they can neither use up the broker's memory nor keep its
// clients out.
package admission

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Gate gives out places to connections that have not said Hello, and remembers
// which addresses have shown wrong tokens. Safe for concurrent use.
//
// A newcomer is let in wherever that is possible: when the places are taken, the
// oldest loses its own. A client says Hello within milliseconds, so it is through
// before its turn comes; a stranger who waits is not.
type Gate struct {
	limits Limits
	now    func() time.Time

	mu        sync.Mutex
	hosts     map[netip.Addr][]*Place // in order of arrival
	taken     int
	offenders map[netip.Addr]*offender
}

// Limits of a Gate; all are required.
type Limits struct {
	Places    int           // at once
	PerHost   int           // of these, for one address
	Offenders int           // addresses that are remembered
	Penalty   time.Duration // for the first wrong token; doubles with each
	Worst     time.Duration // is where it stops
	Forgive   time.Duration // without a wrong token, and an address is forgotten
}

type offender struct {
	failures int
	last     time.Time
}

// New makes a Gate. now is the clock.
func New(limits Limits, now func() time.Time) *Gate {
	return &Gate{limits: limits, now: now, hosts: map[netip.Addr][]*Place{}, offenders: map[netip.Addr]*offender{}}
}

// Place is what one connection holds until Leave.
type Place struct {
	gate      *Gate
	host      netip.Addr
	conn      io.Closer
	penalized bool
	lost      chan struct{}
}

// Enter gives conn a place. It may close another connection for it: the oldest of
// the same address, if that has its share; else, if all places are taken, the
// oldest of the address that has the most. It gives nil if all places of the
// address are serving a penalty, which only wrong tokens earn.
func (g *Gate) Enter(peer net.Addr, conn io.Closer) *Place {
	p := &Place{gate: g, host: hostOf(peer), conn: conn, lost: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if mine := g.hosts[p.host]; len(mine) >= g.limits.PerHost {
		oldest := slices.IndexFunc(mine, func(p *Place) bool { return !p.penalized })
		if oldest < 0 {
			return nil
		}
		mine[oldest].lose()
	} else if g.taken >= g.limits.Places {
		g.crowd().lose()
	}
	g.hosts[p.host] = append(g.hosts[p.host], p)
	g.taken++
	return p
}

// crowd is who must go when all places are taken.
func (g *Gate) crowd() *Place {
	var most []*Place
	for _, places := range g.hosts {
		if len(places) > len(most) {
			most = places
		}
	}
	return most[max(0, slices.IndexFunc(most, func(p *Place) bool { return !p.penalized }))]
}

func (p *Place) lose() {
	p.remove()
	close(p.lost)
	p.conn.Close()
}

func (p *Place) remove() bool {
	places := p.gate.hosts[p.host]
	i := slices.Index(places, p)
	if i < 0 {
		return false
	}
	if places = slices.Delete(places, i, i+1); len(places) == 0 {
		delete(p.gate.hosts, p.host)
	} else {
		p.gate.hosts[p.host] = places
	}
	p.gate.taken--
	return true
}

// Leave gives the place back: the connection has ended, or said its Hello.
// False if it was lost to another before.
func (p *Place) Leave() bool {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	return p.remove()
}

// Lost is closed when the place was given to another; the connection is closed.
func (p *Place) Lost() <-chan struct{} { return p.lost }

// Penalize counts a wrong token of the address, and says how many there were and
// for how long the connection must stay where it is, without an answer, whatever
// its peer does. Other connections of the address are served meanwhile, so that a
// stranger who guesses does not keep out a client behind the same address.
func (p *Place) Penalize() (failures int, wait time.Duration) {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	p.penalized = true
	now := g.now()
	o := g.offenders[p.host]
	if o == nil || now.Sub(o.last) > g.limits.Forgive {
		g.makeRoom(now)
		o = &offender{}
		g.offenders[p.host] = o
	}
	o.failures++
	o.last = now
	wait = g.limits.Penalty
	for n := 1; n < o.failures && wait < g.limits.Worst; n++ {
		wait *= 2
	}
	return o.failures, min(wait, g.limits.Worst)
}

// makeRoom for one more offender: those who are forgiven go, else the quietest.
func (g *Gate) makeRoom(now time.Time) {
	if len(g.offenders) < g.limits.Offenders {
		return
	}
	var quietest netip.Addr
	var since time.Time
	for host, o := range g.offenders {
		if now.Sub(o.last) > g.limits.Forgive {
			delete(g.offenders, host)
		} else if since.IsZero() || o.last.Before(since) {
			quietest, since = host, o.last
		}
	}
	if len(g.offenders) >= g.limits.Offenders {
		delete(g.offenders, quietest)
	}
}

// Taken is how many places are taken.
func (g *Gate) Taken() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken
}

// hostOf is what counts as one address: in IPv6 the network of 64 bits, because
// whoever has one address of it has them all.
func hostOf(peer net.Addr) netip.Addr {
	tcp, ok := peer.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	host := tcp.AddrPort().Addr().Unmap().WithZone("")
	if host.Is6() {
		network, _ := host.Prefix(64) // 64 is never too long
		return network.Addr()
	}
	return host
}
