package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestABrokersRowsAreRestored backs a running broker up, has it accept more, and
// restores it; then the same with a file, while it is stopped.
func TestABrokersRowsAreRestored(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	lists, file := twoConnections(t, dir, "nightly"), filepath.Join(dir, "rows.backup")
	t.Setenv("CUSTODY_STORAGE_IDENTITY", "host")
	says := func(want string, good bool, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(ctx, "custody", append([]string{"broker"}, args...)...).CombinedOutput()
		if (err == nil) != good || !strings.Contains(string(out), want) {
			t.Errorf("custody broker %s: %v, %s; want %q", strings.Join(args, " "), err, out, want)
		}
	}
	own := []string{"--name", "orders", "--connections", lists}
	running := func(do func(address string)) {
		t.Helper()
		b, address := startBrokerWith(t, ctx, &lines{more: make(chan struct{}, 1)}, append([]string{"broker", "--listen", "127.0.0.1:0"}, own...)...)
		do(address)
		endInOrder(t, b)
	}
	published := 0
	publish := func(address string, n int) {
		t.Helper()
		defer publishOrders(t, ctx, address, published, n).Close()
		published += n
	}

	running(func(address string) {
		publish(address, 10)
		says("orders@host was backed up to nightly@host", true, "backup", "--to", "nightly", "--address", address)
		publish(address, 5)
		says("is owned by broker orders", false, append([]string{"restore", "--from", "nightly", "--replace"}, own...)...)
	})
	says("say so", false, append([]string{"restore", "--from", "nightly"}, own...)...)
	says("is a complete copy of orders@host", false, "--listen", "127.0.0.1:0", "--name", "nightly", "--connections", lists)
	says("15 pending", true, append([]string{"backup", file}, own...)...)
	says("10 pending, 0 dead, 0 processed, 0 IDs of settled messages\n  dropped: 5 messages that waited", true,
		append([]string{"restore", "--from", "nightly", "--replace"}, own...)...)
	running(func(address string) { publish(address, 1) })
	says("15 pending, 0 dead, 0 processed, 0 IDs of settled messages\n  dropped: 1 messages that waited", true,
		append([]string{"restore", file, "--replace"}, own...)...)
	says("no such file", false, append([]string{"restore", filepath.Join(dir, "missing")}, own...)...)
	says("15 pending", true, append([]string{"backup", file}, own...)...)
	says("say where to", false, append([]string{"backup"}, own...)...)
}
