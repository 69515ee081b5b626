package metrics

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, m *Server, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, answer.Status, err)
	}
	return string(text)
}

func serve(t *testing.T, s Source) *Server {
	t.Helper()
	m, err := Serve("127.0.0.1:0", s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestWhatABrokerDidIsShown(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const token = "a-token-of-24-characters"
	rows := memory.New(store.Partition{Connection: "broker", Identity: "test"}, memory.Options{})
	b, err := broker.Open(ctx, broker.Config{Store: rows, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(ctx)
	m := serve(t, b)
	if _, err := client.Dial(ctx, b.Addr(), client.Options{Token: "wrong"}); err == nil {
		t.Fatal("a wrong token was taken")
	}
	c, err := client.Dial(ctx, b.Addr(), client.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Subscribe(ctx, client.Filter{Topic: "a", Mode: wire.AtLeastOnce, Window: 1}); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"a", "a", "nobody"} {
		call, err := c.Publish(ctx, wire.Message{Topic: topic, Mode: wire.AtLeastOnce})
		if err == nil {
			_, err = call.Wait(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text := get(t, m, "/metrics")
	for _, want := range []string{
		"custody_broker_state_machine_answers 1", "custody_broker_connections 1", "custody_broker_strangers 0", "custody_broker_subscriptions 1",
		"custody_broker_accepted_total 2", "custody_broker_declined_total 1", "custody_broker_unsettled_messages 2",
		`custody_broker_refused_total{why="token"} 1`, `custody_broker_store_turn_seconds_bucket{le="5"} `,
		"go_memstats_heap_alloc_bytes ",
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "custody_broker_store_operations_total 0\n") {
		t.Error("no operation of the store was counted")
	}
	if !strings.Contains(get(t, m, "/debug/pprof/"), "goroutine") || get(t, m, "/debug/pprof/heap?debug=1") == "" {
		t.Error("no profiles")
	}
}

type hung struct{}

func (hung) State(context.Context) (broker.State, error) {
	return broker.State{Sessions: 7, Refused: map[broker.Refusal]uint64{broker.RefusedToken: 3}}, errors.New("no answer")
}

// TestAStateMachineThatHangsIsSeen covers the case in which metrics are needed
// most.
func TestAStateMachineThatHangsIsSeen(t *testing.T) {
	text := get(t, serve(t, hung{}), "/metrics")
	for _, want := range []string{"custody_broker_state_machine_answers 0", "custody_broker_connections 7", `custody_broker_refused_total{why="token"} 3`} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "custody_broker_accepted_total") {
		t.Error("what is not known is shown as a number")
	}
}
