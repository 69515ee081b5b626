package links

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/tasks"
)

// Toxic is a byte-level fault applied by Toxiproxy between link and upstream,
// to all connections, with toxicity 1: Toxiproxy's randomness is not
// reproducible.
type Toxic struct {
	Type       string             // latency, bandwidth
	To         evidence.Direction // one direction: Toxiproxy has no toxic for both
	Attributes map[string]any     // {"latency": 100} is 100 ms, {"rate": 64} is 64 KiB/s
}

// toxicTypes maps types to Toxiproxy's names.
var toxicTypes = map[string]string{"latency": "latency", "bandwidth": rateType}

// toxicTimeout bounds a call to Toxiproxy, which pauses each stream to change a
// toxic and waits forever for a peer that does not read.
const toxicTimeout = 3 * time.Second

// AddToxic arms a byte-level fault; it is in force when AddToxic returns, on
// open connections only with Options.Toxics. It fires once its effect is seen.
// Heal removes it; if a peer has stopped reading this means cutting the
// connections, so heal toxics before pausing a process.
func (l *Link) AddToxic(label string, t Toxic) (Injection, error) {
	if toxicTypes[t.Type] == "" {
		return nil, fmt.Errorf("links: unknown toxic %q", t.Type)
	}
	if t.To == evidence.NoDirection {
		return nil, fmt.Errorf("links: toxic %q needs one direction", t.Type)
	}
	chain, err := l.toxiproxy()
	if err != nil {
		return nil, err
	}
	a := l.newArmed(label, Action(t.Type))
	p := &probe{armed: a, to: t.To}
	if err := chain.add(t, p); err != nil {
		return nil, err
	}
	a.undo = func(ctx context.Context) error { return chain.remove(ctx, p) }
	return a, nil
}

func (l *Link) toxiproxy() (*chain, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if l.chain == nil {
		c, err := newChain(l.opts.Upstream)
		if err != nil {
			return nil, err
		}
		l.chain = c
	}
	return l.chain, nil
}

// chain is a link's Toxiproxy with its toxics.
type chain struct {
	mu       sync.Mutex
	upstream string
	proxy    *toxiproxy.Proxy
	armed    []armedToxic
	closed   bool
}

// armedToxic is a toxic followed by a probe.
type armedToxic struct {
	probe         *probe
	toxic, behind string // names
	specs         [2][]byte
}

var proxies = sync.OnceValue(func() *toxiproxy.ApiServer {
	toxics.Register(probeType, new(probeToxic))
	toxics.Register(rateType, new(rateToxic))
	return toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.New(io.Discard))
})

func newChain(upstream string) (*chain, error) {
	t := &chain{upstream: upstream}
	return t, t.start()
}

func (t *chain) start() error {
	t.proxy = toxiproxy.NewProxy(proxies(), "link", "127.0.0.1:0", t.upstream)
	if err := t.proxy.Start(); err != nil {
		return fmt.Errorf("links: toxiproxy cannot listen: %w", err)
	}
	for _, d := range t.armed {
		if err := t.put(context.Background(), d); err != nil {
			return err
		}
	}
	return nil
}

func (t *chain) addr() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.proxy.Listen
}

func (t *chain) restart() error {
	t.stop()
	return t.start()
}

func (t *chain) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, d := range t.armed {
		probes.Delete(d.probe.id)
	}
	t.armed = nil
	t.stop()
}

// stop cuts all connections of the proxy. If it times out Toxiproxy has
// deadlocked, and is abandoned.
func (t *chain) stop() {
	proxy := t.proxy
	_ = bounded(context.Background(), func() error { proxy.Stop(); return nil })
}

func (t *chain) add(x Toxic, p *probe) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	p.id = probeIDs.Add(1)
	name := strconv.FormatUint(p.id, 10)
	d := armedToxic{probe: p, toxic: "toxic" + name, behind: "behind" + name}
	for i, spec := range []struct {
		name, kind string
		attributes any
	}{
		{d.toxic, toxicTypes[x.Type], x.Attributes},
		{d.behind, probeType, probeToxic{ID: p.id}},
	} {
		b, err := json.Marshal(map[string]any{
			"name": spec.name, "type": spec.kind, "stream": streams[x.To], "toxicity": 1, "attributes": spec.attributes,
		})
		if err != nil {
			return fmt.Errorf("links: attributes of toxic %q: %w", x.Type, err)
		}
		d.specs[i] = b
	}
	probes.Store(p.id, p)
	if err := t.put(context.Background(), d); err != nil {
		probes.Delete(p.id)
		return fmt.Errorf("links: add toxic %q: %w", x.Type, errors.Join(err, t.restart()))
	}
	t.armed = append(t.armed, d)
	return nil
}

func (t *chain) put(ctx context.Context, d armedToxic) error {
	toxics := t.proxy.Toxics
	for _, spec := range d.specs {
		if err := bounded(ctx, func() error {
			_, err := toxics.AddToxicJson(bytes.NewReader(spec))
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (t *chain) remove(ctx context.Context, p *probe) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, d := range t.armed {
		if d.probe != p {
			continue
		}
		t.armed = append(t.armed[:i:i], t.armed[i+1:]...)
		defer probes.Delete(p.id)
		toxics := t.proxy.Toxics
		for _, name := range []string{d.behind, d.toxic} {
			if bounded(ctx, func() error { return toxics.RemoveToxic(context.Background(), name) }) != nil {
				return t.restart()
			}
		}
		return nil
	}
	return nil // closed meanwhile
}

var errToxiproxyHangs = errors.New("links: toxiproxy waits for a peer that does not read")

// bounded calls f, and abandons it at the deadline.
func bounded(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, toxicTimeout)
	defer cancel()
	done := make(chan error, 1)
	tasks.Go(func() { done <- f() })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errToxiproxyHangs, ctx.Err())
	}
}

var streams = [...]string{evidence.ToBroker: "upstream", evidence.ToClient: "downstream"}

// probe sees what comes out of a toxic, over all connections, which proves the
// effect.
type probe struct {
	id    uint64
	armed *Armed
	to    evidence.Direction
	once  sync.Once
}

const (
	probeType = "custody_probe"
	rateType  = "custody_bandwidth"
)

var (
	probes   sync.Map // ID → *probe: Toxiproxy creates toxics itself, from JSON
	probeIDs atomic.Uint64
)

// probeToxic forwards everything and notifies its probe.
type probeToxic struct {
	ID uint64 `json:"id"`
}

func (x *probeToxic) Pipe(stub *toxics.ToxicStub) {
	found, known := probes.Load(x.ID)
	if !known {
		new(toxics.NoopToxic).Pipe(stub)
		return
	}
	p := found.(*probe)
	for {
		select {
		case <-stub.Interrupt:
			return
		case chunk := <-stub.Input:
			if chunk == nil {
				stub.Close()
				return
			}
			p.once.Do(func() { p.armed.fire(nil, p.to, Frame{}) })
			stub.Output <- chunk
		}
	}
}

// rateToxic limits the rate. Toxiproxy's own writes to the global logger, which
// belongs to whoever runs the test.
type rateToxic struct {
	Rate int `json:"rate"` // KiB/s
}

// rateStep is the number of bytes forwarded at once.
const rateStep = 1 << 10

func (x *rateToxic) Pipe(stub *toxics.ToxicStub) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-stub.Interrupt:
			return
		case chunk := <-stub.Input:
			if chunk == nil {
				stub.Close()
				return
			}
			for rest := chunk.Data; len(rest) > 0; {
				piece := rest[:min(len(rest), rateStep)]
				pause.Reset(time.Duration(len(piece)) * time.Second / time.Duration(max(x.Rate, 1)<<10))
				select {
				case <-pause.C:
					stub.Output <- &stream.StreamChunk{Data: piece, Timestamp: chunk.Timestamp}
					rest = rest[len(piece):]
				case <-stub.Interrupt: // nothing is dropped
					stub.Output <- &stream.StreamChunk{Data: rest, Timestamp: chunk.Timestamp}
					return
				}
			}
		}
	}
}
