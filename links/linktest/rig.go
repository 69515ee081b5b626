package linktest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// Timeout ends a hanging test; nothing else waits that long.
const Timeout = time.Minute

// Sink keeps events in memory. Safe for concurrent use.
type Sink struct {
	mu     sync.Mutex
	events []evidence.Event
}

func (s *Sink) Record(e evidence.Event) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	return uint64(len(s.events))
}

// Carried returns the frames of this kind so far, or all if kind is empty.
func (s *Sink) Carried(kind string) (list []evidence.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == evidence.FrameCarried && (kind == "" || e.Frame == kind) {
			list = append(list, e)
		}
	}
	return list
}

// Rig is a link to a server, for one test.
type Rig struct {
	T    *testing.T
	Ctx  context.Context // ends with the test, or after Timeout
	Link *links.Link
	Sink *Sink
}

// Open opens a link.
func Open(t *testing.T, upstream string, p links.Protocol) *Rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	t.Cleanup(cancel)
	r := &Rig{T: t, Ctx: ctx, Sink: &Sink{}}
	var err error
	r.Link, err = links.Open(ctx, links.Options{Name: "c1", Upstream: upstream, Protocol: p, Index: links.NewIndex(), Sink: r.Sink})
	r.Must(err)
	t.Cleanup(func() { r.Link.Close() })
	return r
}

// Must ends the test unless err is nil.
func (r *Rig) Must(err error) {
	r.T.Helper()
	if err != nil {
		r.T.Fatal(err)
	}
}

// Arm arms a strike.
func (r *Rig) Arm(s links.Strike) *links.Armed {
	r.T.Helper()
	s.Label = "f"
	a, err := r.Link.Arm(s)
	r.Must(err)
	return a.(*links.Armed)
}

// Fired waits until it has fired.
func (r *Rig) Fired(a links.Injection) {
	r.T.Helper()
	select {
	case <-a.Fired():
	case <-r.Ctx.Done():
		r.T.Fatal("never fired")
	}
}

// Payload returns the payload of the first publish of p1's n-th message, order-n.
func Payload(n, body string) []byte {
	return evidence.Envelope{PublishID: "p1-" + n + "-1", BusinessID: "order-" + n, Body: []byte(body)}.Encode()
}

// Dialogue is a client that receives what it publishes.
type Dialogue struct {
	*Rig
	Publish func(n, body string) // see Payload
	Receive func() (payload []byte)
}

// StrikeDeliveries checks what arrives of two messages when the first one's
// delivery is struck, in a new dialogue each.
func StrikeDeliveries(t *testing.T, start func(*testing.T) Dialogue) {
	for action, bodies := range map[links.Action][]string{
		links.Duplicate: {"body", "body", "last"},
		links.Corrupt:   {"bodx", "last"},
		links.Delay:     {"body", "last"},
		links.Drop:      {"last"},
	} {
		t.Run(string(action), func(t *testing.T) {
			d := start(t)
			a := d.Arm(links.Strike{Action: action, Kind: links.FrameDeliver, Of: "order-1", Delay: time.Millisecond})
			d.Publish("1", "body")
			d.Publish("2", "last")
			for _, want := range bodies {
				if e, err := evidence.ParseEnvelope(d.Receive()); err != nil || string(e.Body) != want {
					t.Errorf("got %q (%v), want %q", e.Body, err, want)
				}
			}
			d.Fired(a)
		})
	}
}
