package rabbitmq

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/external"
	"github.com/custodymq/custody/systems/systemtest"
)

const serverNamed = "rabbitmq.internal" // in its certificate

// somebodys is an external server with a single user other than guest; over is
// how that user connects with TLS.
func somebodys(t *testing.T) (s *server, plain, over systems.Endpoint) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := startServer(ctx, "", systemtest.Discard{}, nil)
	must(err)
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	secure, err := process.FreePort()
	must(err)
	t.Cleanup(func() { secure.Close() })
	config := filepath.Join(s.dir, "rabbitmq.conf")
	must(os.Chmod(config, 0o600))
	file, err := os.OpenFile(config, os.O_APPEND|os.O_WRONLY, 0)
	must(err)
	trusting := certificate(t, s.dir)
	_, err = fmt.Fprintf(file, "listeners.ssl.1 = %s\nssl_options.certfile = %s\nssl_options.keyfile = %s\n",
		secure.Address, filepath.Join(s.dir, "server.pem"), filepath.Join(s.dir, "key.pem"))
	must(errors.Join(err, file.Close(), s.Kill(ctx), s.Restart(ctx)))
	secret := rand.Text()
	for _, arguments := range [][]string{{"add_user", "tester", secret}, {"set_permissions", "tester", "^custody-", ".*", "^custody-"}, {"delete_user", "guest"}} {
		cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(serverProgram), "rabbitmqctl"), arguments...)
		cmd.Env = s.console.env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("rabbitmqctl %s: %v: %s", arguments[0], err, out)
		}
	}
	plain = systems.Endpoint{Address: s.address, User: "tester", Password: secret}
	over = plain
	over.Address, over.TLS = secure.Address, trusting
	return s, plain, over
}

// certificate writes server.pem and key.pem and returns a configuration that
// trusts them.
func certificate(t *testing.T, dir string) *tls.Config {
	t.Helper()
	made, authority := systemtest.Certificate(t, serverNamed)
	private, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	err = errors.Join(err,
		os.WriteFile(filepath.Join(dir, "server.pem"), authority, 0o600),
		os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return systemtest.Trusting(t, serverNamed, authority)
}

func TestRemote(t *testing.T) {
	systemtest.Require(t, Profiles(1)[0])
	s, plain, over := somebodys(t)
	t.Run("conformance", func(t *testing.T) { systemtest.Exercise(t, owned(t, plain)) })
	for name, at := range map[string]systems.Endpoint{"plain": plain, "TLS": over} {
		t.Run("dead letters over "+name, func(t *testing.T) { remoteDeadLetter(t, profile(t, "delivery-limit-dlx").At(at)) })
	}
	t.Run("only consumers make the queue", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		in, p := begin(ctx, t, profile(t, "mandatory").At(plain))
		pending, err := p.Send(ctx, systems.Message{Destination: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		if got := pending.Receipt(ctx); got.Acceptance != evidence.Declined {
			t.Errorf("%+v, want declined", got)
		}
		if err := errors.Join(p.Close(ctx), in.Stop(ctx)); err != nil {
			t.Error(err)
		}
	})
	t.Run("nothing is left behind", func(t *testing.T) {
		if counts, err := s.console.count(t.Context(), "custody-"); err != nil || len(counts) != 0 {
			t.Errorf("%v, %v", counts, err)
		}
	})
	t.Run("strangers are refused", func(t *testing.T) {
		for what, change := range map[string]func(*systems.Endpoint){
			"no user":        func(e *systems.Endpoint) { e.User, e.Password = "", "" },
			"wrong password": func(e *systems.Endpoint) { e.Password = "wrong" },
			"no TLS":         func(e *systems.Endpoint) { e.TLS = nil },
			"no trust": func(e *systems.Endpoint) {
				e.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverNamed}
			},
		} {
			at := over
			change(&at)
			_, err := profile(t, "quorum").At(at).Start(t.Context(), systems.Env{Sink: systemtest.Discard{}})
			if err == nil || strings.Contains(err.Error(), plain.Password) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// owned is the first profile, as read from the profile file of an external
// server.
func owned(t *testing.T, at systems.Endpoint) systems.System {
	t.Helper()
	t.Setenv("TEST_USER", at.User)
	t.Setenv("TEST_PASSWORD", at.Password)
	path := filepath.Join(t.TempDir(), "staging.yaml")
	text := "system: rabbitmq:quorum\naddress: " + at.Address + "\nuser-from: TEST_USER\npassword-from: TEST_PASSWORD\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := external.Open(path, 1, func(string, float64) (systems.System, error) { return profile(t, "quorum"), nil })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func begin(ctx context.Context, t *testing.T, s systems.System) (systems.Instance, systems.Producer) {
	t.Helper()
	in, err := s.Start(ctx, systems.Env{Sink: systemtest.Discard{}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := in.Producer(ctx, systems.ProducerOptions{Name: "p1", Session: "p1#1"})
	if err != nil {
		t.Fatal(err)
	}
	return in, p
}

// remoteDeadLetter rejects a message too often, through clients of another
// process, then finds and discards it.
func remoteDeadLetter(t *testing.T, s systems.System) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in, p := begin(ctx, t, s)
	pending, err := p.Send(ctx, systems.Message{Destination: "orders", MessageID: "m-1"})
	must(err)
	if got := pending.Receipt(ctx); got.Acceptance != evidence.Accepted {
		t.Fatalf("%+v", got)
	}
	connector := s.(systems.Connector)
	there, err := connector.Connect(connector.Credentials(in))
	must(err)
	c, err := there.Consumer(ctx, systems.ConsumerOptions{Name: "c1", Session: "c1#1", Destination: "orders", Subscription: "billing", Window: 1})
	must(err)
	for range deliveryLimit + 1 {
		d, err := c.Receive(ctx)
		must(err)
		_, err = d.(systems.Rejecter).Nack(ctx, "")
		must(err)
	}
	admin := in.(systems.Administrator)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for found := 0; found == 0; {
		rows, err := admin.DeadLetters(ctx)
		must(err)
		if found = len(rows); found == 0 {
			<-tick.C
		} else if rows[0].MessageID != "m-1" || rows[0].State != evidence.RowDead {
			t.Errorf("%+v", rows)
		}
	}
	// The dead letter is a row with its cause; absence from the rows proves
	// nothing.
	snapshot, err := in.(systems.Inspector).Rows(ctx)
	must(err)
	if len(snapshot.Rows) != 1 || snapshot.Rows[0].Cause != evidence.CauseAttempts || snapshot.Trust != evidence.Lagging {
		t.Errorf("rows %+v", snapshot)
	}
	must(admin.Discard(ctx, "m-1"))
	must(errors.Join(c.Close(ctx), p.Close(ctx), in.Stop(ctx)))
}
