package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/certificates/certificatestest"
)

// lines collects a running process's log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{} // capacity 1
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	select {
	case l.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

// find waits until the log matches the expression and returns the last match.
func (l *lines) find(t *testing.T, ctx context.Context, expression string) []string {
	t.Helper()
	wanted := regexp.MustCompile(expression)
	for {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		if all := wanted.FindAllStringSubmatch(text, -1); all != nil {
			return all[len(all)-1]
		}
		select {
		case <-l.more:
		case <-ctx.Done():
			t.Fatalf("%s is not in the log:\n%s", expression, text)
		}
	}
}

// TestABrokerForSeveralUsers runs a broker with TLS and users, observes it, and
// changes its users while it runs.
func TestABrokerForSeveralUsers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	custody := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "custody", args...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	file := filepath.Join(t.TempDir(), "users.yaml")
	add := func(args ...string) string {
		t.Helper()
		token, err := custody(append([]string{"broker", "user", "add", "--users", file}, args...)...)
		if err != nil {
			t.Fatalf("add %s: %v, %s", args, err, token)
		}
		return token
	}
	t.Setenv("SHOP", add("shop", "--publish", "orders/+"))
	one, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("OPERATOR", add("operator", "--administer"))
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of users has mode %v, %v", info.Mode(), err)
	}

	authority := certificatestest.New(t)
	certificate, key := authority.Sign(t, "broker")
	log := &lines{more: make(chan struct{}, 1)}
	b, address := startBrokerWith(t, ctx, log, "broker", "--listen", "127.0.0.1:0", "--store", "memory", "--users", file, "--tls-cert", certificate, "--tls-key", key,
		"--observe", "127.0.0.1:0", "--log-format", "json", "--memory", "128MiB")
	dlq := func(user string) (string, error) {
		return custody("dlq", "list", "--address", address, "--tls-ca", authority.File, "--token-env", user)
	}
	if out, err := dlq("OPERATOR"); err != nil || out != "no dead letters" {
		t.Errorf("the operator: %v, %s", err, out)
	}
	if out, err := dlq("SHOP"); err == nil || !strings.Contains(out, `shop may not administer "dlq.list"`) {
		t.Errorf("the shop: %v, %s", err, out)
	}
	if out, err := custody("dlq", "list", "--address", address, "--token-env", "OPERATOR", "--timeout", "5s"); err == nil {
		t.Errorf("without TLS: %s", out)
	}
	t.Setenv("NOBODY", "a-token-of-24-characters")
	if out, err := dlq("NOBODY"); err == nil || !strings.Contains(out, "refuses the connection") || !strings.Contains(out, "the token is wrong") {
		t.Errorf("nobody: %v, %s", err, out)
	}
	log.find(t, ctx, `"level":"WARN","msg":"token refused","peer":"127.0.0.1:`)
	log.find(t, ctx, `"msg":"not permitted".*"user":"shop"`)

	where := log.find(t, ctx, `"metrics and profiles are served","address":"(127.0.0.1:\d+)"`)[1]
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request(t, ctx, "http://"+where+"/metrics"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || !strings.Contains(string(text), `custody_broker_refused_total{why="token"} 1`) {
		t.Errorf("metrics: %v\n%s", err, text)
	}

	reload := func(text []byte, told string) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		log.find(t, ctx, told)
	}
	reload([]byte("users:\n- nme: shop\n"), `"msg":"nothing was reloaded: what was read before stays","error":".*users.yaml:2: a user has no field`)
	if out, err := dlq("OPERATOR"); err != nil {
		t.Errorf("the operator, after a file that is wrong: %v, %s", err, out)
	}
	reload(one, `"msg":"users and certificates were reloaded"`)
	if out, err := dlq("OPERATOR"); err == nil || !strings.Contains(out, "the token is wrong") {
		t.Errorf("the operator, who is gone: %v, %s", err, out)
	}

	endInOrder(t, b)
}

func request(t *testing.T, ctx context.Context, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
