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
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
	zlog "github.com/rs/zerolog/log"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/tasks"
)

// Toxic is a byte-level fault, done by Toxiproxy between the link and its
// upstream, on all connections and always (toxicity 1: its own randomness
// cannot be reproduced).
type Toxic struct {
	Type       string             // latency, bandwidth, slicer, slow_close, timeout, reset_peer, limit_data
	To         evidence.Direction // one of them: Toxiproxy has no toxic for both
	Attributes map[string]any     // as Toxiproxy documents them: {"latency": 100} is 100 ms
}

// sight is what shows that a toxic had an effect.
type sight uint8

const (
	_         sight = iota
	delayed         // a byte came out of it
	swallowed       // it took a byte
	severed         // the stream ended, and a byte that it took never came out
	ended           // the stream ended
)

var sights = map[string]sight{
	"latency": delayed, "bandwidth": delayed, "slicer": delayed, "slow_close": ended,
	"timeout": swallowed, "reset_peer": severed, "limit_data": severed,
}

// toxicBound is the time that one call to Toxiproxy may take. It changes a
// toxic by stopping each connection's stream for a moment, and waits for ever
// for a peer that does not read.
const toxicBound = 3 * time.Second

// AddToxic starts a byte-level fault; it is in force when AddToxic returns, on
// open connections only if the link was opened with Options.Toxics. It fires
// once its effect is seen. Heal takes it away; where a peer has stopped reading
// this cannot be done without cutting the connections, and they are cut: heal
// toxics before a process is paused.
func (l *Link) AddToxic(label string, t Toxic) (Injection, error) {
	if sights[t.Type] == 0 {
		return nil, fmt.Errorf("links: no toxic is named %q", t.Type)
	}
	if t.To == evidence.NoDirection {
		return nil, fmt.Errorf("links: toxic %q needs one direction", t.Type)
	}
	chain, err := l.toxiproxy()
	if err != nil {
		return nil, err
	}
	a := l.newArmed(label, Action(t.Type))
	w := &witness{sight: sights[t.Type], armed: a, to: t.To}
	if err := chain.add(t, w); err != nil {
		return nil, err
	}
	a.undo = func(ctx context.Context) error { return chain.remove(ctx, w) }
	return a, nil
}

func (l *Link) toxiproxy() (*toxins, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if l.toxins == nil {
		t, err := newToxins(l.upstream)
		if err != nil {
			return nil, err
		}
		l.toxins = t
	}
	return l.toxins, nil
}

// toxins is the Toxiproxy of one link, with the toxics that are in it.
type toxins struct {
	mu       sync.Mutex
	upstream string
	proxy    *toxiproxy.Proxy
	added    []dose
	closed   bool
}

// dose is one toxic with the witnesses before and behind it.
type dose struct {
	witness *witness
	before  string
	toxic   string
	behind  string
	specs   [3][]byte
}

var proxies = sync.OnceValue(func() *toxiproxy.ApiServer {
	// Its toxics log through zerolog's global logger, at trace level.
	zlog.Logger = zerolog.New(io.Discard)
	toxics.Register(witnessType, new(witnessToxic))
	return toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.New(io.Discard))
})

func newToxins(upstream string) (*toxins, error) {
	t := &toxins{upstream: upstream}
	return t, t.start()
}

func (t *toxins) start() error {
	t.proxy = toxiproxy.NewProxy(proxies(), "link", "127.0.0.1:0", t.upstream)
	if err := t.proxy.Start(); err != nil {
		return fmt.Errorf("links: toxiproxy cannot listen: %w", err)
	}
	for _, d := range t.added {
		if err := t.put(context.Background(), d); err != nil {
			return err
		}
	}
	return nil
}

func (t *toxins) addr() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.proxy.Listen
}

// retarget replaces the proxy: its upstream cannot be changed while it runs.
func (t *toxins) retarget(upstream string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || upstream == t.upstream {
		return nil
	}
	t.upstream = upstream
	return t.restart()
}

func (t *toxins) restart() error {
	t.stop()
	return t.start()
}

func (t *toxins) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, d := range t.added {
		witnesses.Delete(d.witness.id)
	}
	t.added = nil
	t.stop()
}

// stop cuts all connections of the proxy. That this takes too long can only
// mean that Toxiproxy waits for itself; it is left behind then.
func (t *toxins) stop() {
	proxy := t.proxy
	_ = bounded(context.Background(), func() error { proxy.Stop(); return nil })
}

func (t *toxins) add(x Toxic, w *witness) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	w.id = witnessIDs.Add(1)
	name := strconv.FormatUint(w.id, 10)
	d := dose{witness: w, before: "before" + name, toxic: "toxic" + name, behind: "behind" + name}
	for i, spec := range []struct {
		name, kind string
		attributes any
	}{
		{d.before, witnessType, witnessToxic{ID: w.id}},
		{d.toxic, x.Type, x.Attributes},
		{d.behind, witnessType, witnessToxic{ID: w.id, Behind: true}},
	} {
		b, err := json.Marshal(map[string]any{
			"name": spec.name, "type": spec.kind, "stream": streams[x.To], "toxicity": 1, "attributes": spec.attributes,
		})
		if err != nil {
			return fmt.Errorf("links: attributes of toxic %q: %w", x.Type, err)
		}
		d.specs[i] = b
	}
	witnesses.Store(w.id, w)
	if err := t.put(context.Background(), d); err != nil {
		witnesses.Delete(w.id)
		return fmt.Errorf("links: add toxic %q: %w", x.Type, errors.Join(err, t.restart()))
	}
	t.added = append(t.added, d)
	return nil
}

func (t *toxins) put(ctx context.Context, d dose) error {
	chain := t.proxy.Toxics
	for _, spec := range d.specs {
		if err := bounded(ctx, func() error {
			_, err := chain.AddToxicJson(bytes.NewReader(spec))
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (t *toxins) remove(ctx context.Context, w *witness) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, d := range t.added {
		if d.witness != w {
			continue
		}
		t.added = append(t.added[:i:i], t.added[i+1:]...)
		defer witnesses.Delete(w.id)
		chain := t.proxy.Toxics
		for _, name := range []string{d.behind, d.toxic, d.before} {
			if bounded(ctx, func() error { return chain.RemoveToxic(context.Background(), name) }) != nil {
				return t.restart()
			}
		}
		return nil
	}
	return nil // closed meanwhile
}

var errToxiproxyHangs = errors.New("links: toxiproxy waits for a peer that does not read")

// bounded calls f, and leaves it behind when it takes longer than it may.
func bounded(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, toxicBound)
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

// witness sees what goes into a toxic and what comes out, over all connections.
type witness struct {
	id      uint64
	sight   sight
	armed   *Armed
	to      evidence.Direction
	entered atomic.Int64 // bytes
	left    atomic.Int64
	once    sync.Once
}

func (w *witness) saw(what sight) {
	if what == w.sight {
		w.once.Do(func() { w.armed.fire(nil, w.to, Frame{}) })
	}
}

const witnessType = "custody_witness"

var (
	witnesses  sync.Map // ID → *witness: Toxiproxy makes each toxic itself, from JSON
	witnessIDs atomic.Uint64
)

// witnessToxic passes everything on and tells its witness.
type witnessToxic struct {
	ID     uint64 `json:"id"`
	Behind bool   `json:"behind"`
}

func (x *witnessToxic) Pipe(stub *toxics.ToxicStub) {
	found, known := witnesses.Load(x.ID)
	if !known {
		new(toxics.NoopToxic).Pipe(stub)
		return
	}
	w := found.(*witness)
	for {
		select {
		case <-stub.Interrupt:
			return
		case chunk := <-stub.Input:
			if chunk == nil {
				x.end(w)
				stub.Close()
				return
			}
			n := int64(len(chunk.Data))
			if x.Behind {
				w.left.Add(n)
				w.saw(delayed)
				stub.Output <- chunk
				continue
			}
			w.entered.Add(n)
			stub.Output <- chunk
			w.saw(swallowed)
		}
	}
}

func (x *witnessToxic) end(w *witness) {
	if !x.Behind {
		return
	}
	w.saw(ended)
	if w.entered.Load() > w.left.Load() {
		w.saw(severed)
	}
}
