// Package admission bounds the resources of connections that have not
// authenticated, so that they can neither exhaust the broker's memory nor keep
// its clients out.
package admission

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Gate allots places to connections that have not said Hello, and remembers which
// addresses presented wrong tokens. It is safe for concurrent use.
//
// A newcomer is admitted whenever possible: if all places are taken, the oldest
// loses its own. A client says Hello within milliseconds, well before it becomes
// the oldest; a stranger who lingers does not.
type Gate struct {
	limits Limits
	now    func() time.Time

	mu        sync.Mutex
	hosts     map[netip.Addr][]*Place // in order of arrival
	taken     int
	offenders map[netip.Addr]*offender
}

// Limits of a Gate. All are required.
type Limits struct {
	Places    int           // places in total
	PerHost   int           // places per address
	Offenders int           // addresses remembered for wrong tokens
	Penalty   time.Duration // delay after the first wrong token; doubles with each further one
	Worst     time.Duration // maximum penalty
	Forgive   time.Duration // time without a wrong token after which an address is forgotten
}

type offender struct {
	failures int
	last     time.Time
}

// New returns a Gate. now is its clock.
func New(limits Limits, now func() time.Time) *Gate {
	return &Gate{limits: limits, now: now, hosts: map[netip.Addr][]*Place{}, offenders: map[netip.Addr]*offender{}}
}

// Place is a slot held by one connection until Leave.
type Place struct {
	gate      *Gate
	host      netip.Addr
	conn      io.Closer
	penalized bool
	lost      chan struct{}
}

// Enter gives conn a place. To make room it may close another connection: the
// oldest of the same address if that address has used up its share, otherwise, if
// all places are taken, the oldest of the address that holds the most. It returns
// nil if every place of the address is serving a penalty, which only wrong tokens
// incur.
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

// crowd chooses the place to evict when all are taken. Places serving a penalty
// are spared if possible.
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

// Leave returns the place, because the connection has ended or said Hello. It
// returns false if the place was already lost to another connection.
func (p *Place) Leave() bool {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	return p.remove()
}

// Lost returns a channel that is closed when the place went to another
// connection; this one's connection is then closed.
func (p *Place) Lost() <-chan struct{} { return p.lost }

// Penalize counts a wrong token against the address. It returns the number of
// failures and how long the connection must keep its place, unanswered, whatever
// its peer does. Other connections of the address are served meanwhile, so that
// someone guessing tokens does not lock out a client behind the same address.
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

// makeRoom makes room for one more offender: it drops the forgiven ones, or else
// the one quiet for longest.
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

// Taken returns how many places are taken.
func (g *Gate) Taken() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken
}

// hostOf returns what counts as one address. For IPv6 that is the /64 network,
// because whoever has one of its addresses has them all.
func hostOf(peer net.Addr) netip.Addr {
	tcp, ok := peer.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	host := tcp.AddrPort().Addr().Unmap().WithZone("")
	if host.Is6() {
		network, _ := host.Prefix(64) // 64 is always a valid prefix length
		return network.Addr()
	}
	return host
}
