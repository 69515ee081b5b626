package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
)

// TestABrokerWhoseRowsMove swaps the store of a running broker, starts it again,
// empties what it has left, and moves its rows to another storage identity.
func TestABrokerWhoseRowsMove(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	custody := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "custody", args...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	dir := t.TempDir()
	lists := twoConnections(t, dir, "spare")
	t.Setenv("CUSTODY_STORAGE_IDENTITY", "old-host")
	begin := func() (*exec.Cmd, string, *lines) {
		log := &lines{more: make(chan struct{}, 1)}
		b, address := startBrokerWith(t, ctx, log, "broker", "--listen", "127.0.0.1:0", "--name", "orders", "--connections", lists)
		return b, address, log
	}
	maintain := func(name string) (string, error) {
		return custody("broker", "maintain", "--name", name, "--connections", lists, "--format", "json")
	}

	b, address, _ := begin()
	defer publishOrders(t, ctx, address, 0, 10).Close()
	if out, err := maintain("orders"); err == nil || !strings.Contains(out, "is owned by broker orders") {
		t.Errorf("maintain beside the broker: %v, %s", err, out)
	}
	if out, err := custody("broker", "swap", "--to", "Spare", "--address", address); err == nil || !strings.Contains(out, `check case and blanks`) || !strings.Contains(out, "the second list") {
		t.Errorf("swap to no connection: %v, %s", err, out)
	}
	out, err := custody("broker", "swap", "--to", "spare", "--address", address)
	if err != nil || !strings.Contains(out, "orders@old-host was swapped for spare@old-host: 10 pending, 0 dead") {
		t.Errorf("swap: %v, %s", err, out)
	}
	if err := b.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = b.Wait() // killed

	b, address, log := begin()
	log.find(t, ctx, `the rows were handed over.*from=orders to=spare`)
	log.find(t, ctx, `recovered.*pending=10`)
	endInOrder(t, b)

	left := func(out string, err error, state string) int {
		t.Helper()
		var report struct{ After map[string]int }
		if err != nil || json.Unmarshal([]byte(out), &report) != nil {
			t.Fatalf("maintain: %v, %s", err, out)
		}
		return report.After[state]
	}
	out, err = maintain("orders")
	if n := left(out, err, "pending"); n != 0 {
		t.Errorf("%d copies are left in the store that was swapped away", n)
	}
	out, err = maintain("spare")
	if n := left(out, err, "pending"); n != 10 {
		t.Errorf("%d rows are left in the store that is in charge", n)
	}

	t.Setenv("CUSTODY_STORAGE_IDENTITY", "new-host")
	out, err = custody("broker", "migrate", "--from-identity", "old-host", "--to-identity", "new-host", "--name", "spare", "--connections", lists)
	if err != nil || !strings.Contains(out, "spare@new-host has the rows of spare@old-host: 10 pending") {
		t.Errorf("migrate: %v, %s", err, out)
	}
	out, err = maintain("spare")
	if n := left(out, err, "pending"); n != 10 {
		t.Errorf("%d rows are left under the new identity", n)
	}
	t.Setenv("CUSTODY_STORAGE_IDENTITY", "old-host")
	if out, err := custody("broker", "--listen", "127.0.0.1:0", "--name", "spare", "--connections", lists); err == nil || !strings.Contains(out, "handed over to spare@new-host") {
		t.Errorf("a start under the old identity: %v, %s", err, out)
	}
	_ = address
}

// twoConnections writes a list of the connections orders and other, each a file.
func twoConnections(t *testing.T, dir, other string) (lists string) {
	t.Helper()
	lists = filepath.Join(dir, "connections.json")
	text := fmt.Sprintf(`[{"name": "orders", "driver": "sqlite", "dsn": %q}, {"name": %q, "driver": "sqlite", "dsn": %q}]`,
		filepath.Join(dir, "orders.db"), other, filepath.Join(dir, other+".db"))
	if err := os.WriteFile(lists, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return lists
}

// publishOrders has n more messages accepted. Until it is closed, the connection
// holds the first.
func publishOrders(t *testing.T, ctx context.Context, address string, published, n int) *client.Conn {
	t.Helper()
	conn, err := client.Dial(ctx, address, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Subscribe(ctx, client.Filter{Topic: "orders", Mode: wire.AtLeastOnce, Window: 1}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		call, err := conn.Publish(ctx, wire.Message{Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: fmt.Sprint("order-", published+i+1)})
		if err != nil {
			t.Fatal(err)
		}
		if reply, err := call.Wait(ctx); err != nil || reply.Answer != wire.Accepted {
			t.Fatalf("publish: %+v, %v", reply, err)
		}
	}
	return conn
}
