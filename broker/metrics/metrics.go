// Package metrics exposes a broker's state to Prometheus and its profiles to
// pprof, on a separate address.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/custodymq/custody/broker"
)

// Source is queried at each scrape; *broker.Server implements it.
type Source interface {
	State(ctx context.Context) (broker.State, error)
}

const (
	namespace    = "custody_broker"
	answerWithin = 2 * time.Second // deadline for the state machine at a scrape
)

// collector queries the source at each scrape, so that it neither keeps state nor
// counts anything twice.
type collector struct {
	source Source
	descs  map[string]*prometheus.Desc
}

// metric is one number derived from the broker's state.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	loop       bool // known only while the state machine answers
	value      func(*broker.State) float64
}

func gauge(name, help string, v func(*broker.State) float64) metric {
	return metric{name, help, prometheus.GaugeValue, false, v}
}

func loopGauge(name, help string, v func(*broker.State) float64) metric {
	return metric{name, help, prometheus.GaugeValue, true, v}
}

func counter(name, help string, v func(*broker.State) float64) metric {
	return metric{name, help, prometheus.CounterValue, true, v}
}

var metrics = []metric{
	gauge("connections", "Connections that have said Hello.", func(s *broker.State) float64 { return float64(s.Sessions) }),
	gauge("strangers", "Connections that have not said Hello.", func(s *broker.State) float64 { return float64(s.Strangers) }),
	gauge("waiting_sessions", "Sessions of which requests wait for the state machine.", func(s *broker.State) float64 { return float64(s.Waiting) }),
	gauge("outgoing_bytes", "Bytes that wait for peers to read, in sum.", func(s *broker.State) float64 { return float64(s.OutgoingBytes) }),
	loopGauge("store_queue", "Operations that wait for the store's next turn.", func(s *broker.State) float64 { return float64(s.Gathered) }),
	loopGauge("subscriptions", "Subscriptions of all sessions.", func(s *broker.State) float64 { return float64(s.Core.Subscriptions) }),
	loopGauge("unsettled_messages", "Messages that are not settled, dead or expired.", func(s *broker.State) float64 { return float64(s.Core.Unsettled) }),
	counter("accepted_total", "Publishes that were accepted.", func(s *broker.State) float64 { return float64(s.Core.Accepted) }),
	counter("declined_total", "Publishes that were declined.", func(s *broker.State) float64 { return float64(s.Core.Declined) }),
	counter("rejected_total", "Publishes that were rejected.", func(s *broker.State) float64 { return float64(s.Core.Rejected) }),
	counter("unknown_total", "Publishes whose outcome is unknown.", func(s *broker.State) float64 { return float64(s.Core.Unknown) }),
	counter("delivered_total", "Deliveries.", func(s *broker.State) float64 { return float64(s.Core.Delivered) }),
	counter("redelivered_total", "Deliveries that were not the first.", func(s *broker.State) float64 { return float64(s.Core.Redelivered) }),
	counter("settled_total", "Messages that were acknowledged.", func(s *broker.State) float64 { return float64(s.Core.Settled) }),
	counter("expired_total", "Messages whose time to live passed.", func(s *broker.State) float64 { return float64(s.Core.Expired) }),
	counter("dead_lettered_total", "Messages that became dead letters.", func(s *broker.State) float64 { return float64(s.Core.DeadLettered) }),
	counter("store_failures_total", "Operations that the store failed.", func(s *broker.State) float64 { return float64(s.Core.StoreFailures) }),
}

func newCollector(s Source) *collector {
	c := &collector{source: s, descs: map[string]*prometheus.Desc{
		"up":      prometheus.NewDesc(namespace+"_state_machine_answers", "1 if the state machine answered this scrape in time.", nil, nil),
		"refused": prometheus.NewDesc(namespace+"_refused_total", "What was turned away before the state machine heard of it, by why.", []string{"why"}, nil),
		"turns":   prometheus.NewDesc(namespace+"_store_turn_seconds", "How long the store's turns (one commit each) took.", nil, nil),
		"written": prometheus.NewDesc(namespace+"_store_operations_total", "Operations in the store's turns.", nil, nil),
	}}
	for _, m := range metrics {
		c.descs[m.name] = prometheus.NewDesc(namespace+"_"+m.name, m.help, nil, nil)
	}
	return c
}

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	st, err := c.source.State(ctx)
	answers := 1.0
	if err != nil {
		answers = 0
	}
	out <- prometheus.MustNewConstMetric(c.descs["up"], prometheus.GaugeValue, answers)
	for why, n := range st.Refused {
		out <- prometheus.MustNewConstMetric(c.descs["refused"], prometheus.CounterValue, float64(n), string(why))
	}
	buckets := make(map[float64]uint64, len(st.Turns.Within))
	for bound, n := range st.Turns.Within {
		buckets[bound.Seconds()] = n
	}
	out <- prometheus.MustNewConstHistogram(c.descs["turns"], st.Turns.Count, st.Turns.Sum.Seconds(), buckets)
	out <- prometheus.MustNewConstMetric(c.descs["written"], prometheus.CounterValue, float64(st.Turns.Operations))
	for _, m := range metrics {
		if !m.loop || err == nil {
			out <- prometheus.MustNewConstMetric(c.descs[m.name], m.kind, m.value(&st))
		}
	}
}

// Handler serves /metrics and /debug/pprof/. The metrics include the Go runtime's
// and the process's.
func Handler(s Source) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(s), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 2 * answerWithin}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// Server serves a Handler until Close.
type Server struct {
	http *http.Server
	ln   net.Listener
	done chan struct{}
}

// Serve listens on address. There is no authentication: whoever can connect can
// read the broker's memory through its profiles.
func Serve(address string, s Source) (*Server, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: listen: %w", err)
	}
	m := &Server{http: &http.Server{Handler: Handler(s), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}, ln: ln, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		_ = m.http.Serve(ln) // ends with Close
	}()
	return m, nil
}

// Addr returns the listener's host:port.
func (m *Server) Addr() string { return m.ln.Addr().String() }

// Close stops serving and aborts requests in flight.
func (m *Server) Close() error {
	err := m.http.Close()
	<-m.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
