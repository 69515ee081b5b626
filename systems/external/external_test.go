package external_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/runner/child"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/external"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) {
	child.Run(registry.Find)
	goleak.VerifyTestMain(m)
}

// secret is a password that must appear nowhere.
const secret = "hunter2-of-the-test"

func profile(t *testing.T, text string) string {
	t.Helper()
	t.Setenv("TEST_PASSWORD", secret)
	t.Setenv("TEST_USER", "tester")
	path := filepath.Join(t.TempDir(), "staging.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string) systems.System {
	t.Helper()
	s, err := registry.Find(path, 1)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func freePort(t *testing.T) *process.Port {
	t.Helper()
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Close() })
	return port
}

// somebodysRedis runs with a password until the test ends. Its profile has the
// commands to strike it.
func somebodysRedis(t *testing.T) string {
	t.Helper()
	base, err := registry.Find("redis", 1)
	if err != nil {
		t.Fatal(err)
	}
	systemtest.Require(t, base)
	port := freePort(t)
	dir := t.TempDir()
	config, pid := filepath.Join(dir, "redis.conf"), filepath.Join(dir, "redis.pid")
	text := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nappendonly yes\nappendfsync always\nsave \"\"\ndaemonize yes\npidfile %s\nlogfile %s\nrequirepass %s\n",
		port.Number(), dir, pid, filepath.Join(dir, "log"), secret)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "redis-server", config).CombinedOutput(); err != nil {
		t.Fatalf("redis-server: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("sh", "-c", "kill -KILL $(cat "+pid+")").CombinedOutput(); err != nil {
			t.Errorf("the run has left the server dead: %v: %s", err, out)
		}
	})
	return profile(t, fmt.Sprintf(`system: redis:aof-always-claim
address: %s
password-from: TEST_PASSWORD
start: [redis-server, %s]
stop: [sh, -c, "kill -TERM $(cat %[3]s)"]
kill: [sh, -c, "kill -KILL $(cat %[3]s)"]
`, port.Address, config, pid))
}

// somebodysMosquitto runs with a user until the test ends. Its profile has the
// commands to strike it.
func somebodysMosquitto(t *testing.T) string {
	t.Helper()
	base, err := registry.Find("mqtt-mosquitto", 1)
	if err != nil {
		t.Fatal(err)
	}
	systemtest.Require(t, base)
	port := freePort(t)
	dir := t.TempDir()
	config, pid, users := filepath.Join(dir, "mosquitto.conf"), filepath.Join(dir, "mosquitto.pid"), filepath.Join(dir, "users")
	text := fmt.Sprintf("listener %s 127.0.0.1\npassword_file %s\nuser root\npid_file %s\npersistence true\npersistence_location %s/\nautosave_on_changes true\nautosave_interval 1\nlog_dest file %s\n",
		port.Number(), users, pid, dir, filepath.Join(dir, "log"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mosquitto_passwd", "-c", "-b", users, "tester", secret).CombinedOutput(); err != nil {
		t.Fatalf("mosquitto_passwd: %v: %s", err, out)
	}
	const path = "PATH=$PATH:/usr/sbin "
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", path+"mosquitto -d -c "+config).CombinedOutput(); err != nil {
		t.Fatalf("mosquitto: %v: %s", err, out)
	}
	t.Cleanup(func() {
		// It is stopped in order, to save its state.
		end := "kill -TERM $(cat " + pid + ") && timeout 20 tail --pid=$(cat " + pid + ") -f /dev/null"
		if out, err := exec.Command("sh", "-c", end).CombinedOutput(); err != nil {
			t.Errorf("the run has left the server dead: %v: %s", err, out)
		}
		if stored, err := os.ReadFile(filepath.Join(dir, "mosquitto.db")); err != nil || bytes.Contains(stored, []byte("custody-")) {
			t.Errorf("the runs have left something on the server (%v)", err)
		}
	})
	return profile(t, fmt.Sprintf(`system: mqtt-mosquitto:qos1
address: %s
user-from: TEST_USER
password-from: TEST_PASSWORD
start: [sh, -c, "%smosquitto -d -c %s"]
stop: [sh, -c, "kill -TERM $(cat %[4]s)"]
kill: [sh, -c, "kill -KILL $(cat %[4]s)"]
`, port.Address, path, config, pid))
}

// somebodysNATS runs with a user and TLS until the test ends. It cannot be struck.
func somebodysNATS(t *testing.T) string {
	t.Helper()
	certificate, authority := systemtest.Certificate(t, "nats.internal")
	o := &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Username: "tester", Password: secret, SyncAlways: true, MaxPayload: 4 << 20,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}, TLSTimeout: 5,
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("nats-server does not start")
	}
	path := profile(t, fmt.Sprintf(`system: nats:file-explicit-ack
address: %s
user-from: TEST_USER
password-from: TEST_PASSWORD
tls: {ca: ca.pem, server-name: nats.internal}
`, s.Addr()))
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "ca.pem"), authority, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// somebodysMochi runs with a user and TLS until the test ends. It cannot be struck.
func somebodysMochi(t *testing.T) string {
	t.Helper()
	certificate, authority := systemtest.Certificate(t, "nats.internal")
	s := mochi.New(&mochi.Options{Logger: slog.New(slog.DiscardHandler)})
	users := auth.Ledger{Auth: auth.AuthRules{{Username: "tester", Password: secret, Allow: true}}}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	if err := errors.Join(err, s.AddHook(new(auth.Hook), &auth.Options{Ledger: &users})); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.AddListener(listeners.NewNet("tls", l)), s.Serve()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	path := profile(t, fmt.Sprintf(`system: mqtt-mochi:qos1-memory
address: %s
user-from: TEST_USER
password-from: TEST_PASSWORD
tls: {ca: ca.pem, server-name: nats.internal}
`, l.Addr()))
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "ca.pem"), authority, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// somebodysKafka runs until the test ends. It cannot be struck.
func somebodysKafka(t *testing.T) string {
	t.Helper()
	base, err := registry.Find("kafka", 1)
	if err != nil {
		t.Fatal(err)
	}
	return profile(t, fmt.Sprintf("system: kafka:acks-all\naddress: %s\n", systemtest.Serve(t, base)))
}

// somebodysRabbit runs until the test ends. It cannot be struck.
func somebodysRabbit(t *testing.T) string {
	t.Helper()
	base, err := registry.Find("rabbitmq", 1)
	if err != nil {
		t.Fatal(err)
	}
	return profile(t, fmt.Sprintf("system: rabbitmq:delivery-limit-dlx\naddress: %s\n", systemtest.Serve(t, base)))
}

func TestConformance(t *testing.T) {
	t.Run("redis", func(t *testing.T) { systemtest.Exercise(t, open(t, somebodysRedis(t))) })
	t.Run("mosquitto", func(t *testing.T) { systemtest.Exercise(t, open(t, somebodysMosquitto(t))) })
	t.Run("mochi-mqtt over TLS", func(t *testing.T) { systemtest.Exercise(t, open(t, somebodysMochi(t))) })
	t.Run("nats over TLS", func(t *testing.T) { systemtest.Exercise(t, open(t, somebodysNATS(t))) })
}

func TestRunsHoldAndKeepTheSecret(t *testing.T) {
	for _, c := range []struct {
		name         string
		start        func(*testing.T) string
		held, others []string
	}{
		{"redis", somebodysRedis, []string{"baseline", "broker-killed", "broker-restart", "consumer-crash", "ack-lost"}, []string{"broker-paused"}},
		{"mosquitto", somebodysMosquitto, []string{"baseline", "broker-restart", "consumer-crash", "ack-lost"}, []string{"broker-paused"}},
		{"nats over TLS", somebodysNATS, []string{"baseline", "link-reset"}, []string{"broker-killed", "ack-lost"}},
		{"rabbitmq", somebodysRabbit, []string{"poison-message"}, []string{"broker-killed"}}, // its dead letters are read
		{"kafka", somebodysKafka, []string{"baseline", "consumer-crash", "link-reset", "recover-from-sequence"}, []string{"broker-killed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := c.start(t)
			dir := t.TempDir()
			plan := scenarios.Plan{Dir: dir, Parallel: 4, Options: runner.Options{System: open(t, path), Spec: path, Seed: 1, Scale: 1}}
			for _, name := range append(c.held, c.others...) {
				s, err := scenarios.Find(name)
				if err != nil {
					t.Fatal(err)
				}
				plan.Scenarios = append(plan.Scenarios, s)
			}
			outcomes, err := plan.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i, o := range outcomes {
				want := guarantees.Held
				if i >= len(c.held) {
					want = guarantees.NotApplicable
				}
				if o.Err != nil || o.Judgement.Outcome != want {
					t.Errorf("%s: %v, want %v: %s (%v)", plan.Scenarios[i].Name, o.Judgement.Outcome, want, o.Judgement.Why, o.Err)
				}
			}
			nowhere(t, dir)
		})
	}
}

// nowhere checks that no file of the runs contains the secret.
func nowhere(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && strings.HasSuffix(path, ".zst") {
			text, err = exec.Command("zstd", "-dc", path).Output()
		}
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("%s holds the password", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpenAndStartRefuse(t *testing.T) {
	t.Setenv("TEST_EMPTY", "")
	for name, c := range map[string]struct{ text, want string }{
		"no such system":      {"system: rediss\naddress: 127.0.0.1:1\n", `staging.yaml:1: system: no system "rediss"`},
		"an adapter without":  {"system: zeromq\naddress: 127.0.0.1:1\n", "staging.yaml:1: system: the adapter of zeromq supports only servers that it starts itself"},
		"no such variable":    {"system: redis\naddress: 127.0.0.1:1\npassword-from: TEST_NOT_SET\n", "staging.yaml:3: password-from: the environment variable TEST_NOT_SET is not set"},
		"no such authority":   {"system: redis\naddress: 127.0.0.1:1\ntls: {ca: no.pem}\n", "staging.yaml:3: tls.ca: "},
		"no authority in it":  {"system: redis\naddress: 127.0.0.1:1\ntls: {ca: staging.yaml}\n", "contains no PEM certificate"},
		"limits that collide": {"system: redis\naddress: 127.0.0.1:1\nlimits: {recovery-bound: 1h}\n", "staging.yaml:3: limits: drain-deadline"},
		"another machine":     {"system: redis\naddress: 192.0.2.1:6379\n", "staging.yaml:2: address: 192.0.2.1:6379 is not on this machine"},
		"nobody there":        {"system: redis\naddress: 127.0.0.1:1\npassword-from: TEST_PASSWORD\n", "the server at 127.0.0.1:1 must run"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := registry.Find(profile(t, c.text), 1)
			if err == nil {
				_, err = s.Start(context.Background(), systems.Env{})
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	far := open(t, profile(t, "system: redis\naddress: 192.0.2.1:6379\n"))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := external.AllowRemote(far).Start(over, systems.Env{}); err == nil || strings.Contains(err.Error(), "--allow-remote") {
		t.Errorf("allowed, but %v", err)
	}
}
