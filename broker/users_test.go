package broker_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/access"
	"github.com/custodymq/custody/broker/certificates"
	"github.com/custodymq/custody/broker/certificates/certificatestest"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
)

func users(t testing.TB, text string) *access.Users {
	t.Helper()
	u, err := access.Parse("users.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// add returns the text with one more user, and that user's token.
func add(t testing.TB, text string, u access.User) (string, string) {
	t.Helper()
	token, hash := access.NewToken()
	out, err := access.Add("users.yaml", []byte(text), u, hash)
	if err != nil {
		t.Fatal(err)
	}
	return string(out), token
}

func TestUsersMayDoWhatIsTheirs(t *testing.T) {
	text, shop := add(t, "", access.User{Name: "shop", Publish: []string{"orders/+"}})
	text, stock := add(t, text, access.User{Name: "stock", Subscribe: []string{"orders/#"}})
	text, operator := add(t, text, access.User{Name: "operator", Administer: true})
	s := start(t, broker.Config{Store: newStore(), Users: users(t, text)})
	conns := map[string]*client.Conn{}
	for name, token := range map[string]string{"shop": shop, "stock": stock, "operator": operator} {
		c, err := enter(t, s, token)
		if err != nil {
			t.Fatal(err)
		}
		conns[name] = c
	}
	for _, wrong := range []string{"", shop[1:], strings.ToLower(shop)} {
		if _, err := enter(t, s, wrong); !errors.Is(err, client.ErrRefused) {
			t.Errorf("the token %q: %v", wrong, err)
		}
	}
	sub := subscribe(t, conns["stock"], "orders/#", wire.AtLeastOnce, 8)

	for _, c := range []struct {
		user, topic string
		want        wire.Answer
	}{
		{"shop", "orders/1", wire.Accepted},
		{"shop", "orders/1/2", wire.Declined},
		{"shop", "invoices", wire.Declined},
		{"stock", "orders/1", wire.Declined},
		{"operator", "orders/1", wire.Declined},
	} {
		m := order("order-" + c.user)
		m.Topic = c.topic
		reply := publish(t, conns[c.user], m)
		if reply.Answer != c.want || (reply.Cause == wire.Forbidden) != (c.want == wire.Declined) {
			t.Errorf("%s publishes to %s: %+v", c.user, c.topic, reply)
		}
		if c.want == wire.Declined && !strings.Contains(reply.Reason, c.user+" may not publish to") {
			t.Errorf("the reason is %q", reply.Reason)
		}
	}
	for user, topic := range map[string]string{"shop": "orders/1", "stock": "#", "operator": "orders/1"} {
		_, err := conns[user].Subscribe(within(t), client.Filter{Topic: topic, Mode: wire.AtLeastOnce, Window: 1})
		if err == nil || !strings.Contains(err.Error(), user+" may not subscribe to") {
			t.Errorf("%s subscribes to %s: %v", user, topic, err)
		}
	}
	for user, want := range map[string]wire.Answer{"shop": wire.Refused, "stock": wire.Refused, "operator": wire.Accepted} {
		for _, command := range []string{"stats", "rows", "dlq.list"} {
			reply, err := conns[user].Admin(within(t), command, "")
			if err != nil || reply.Answer != want || (reply.Cause == wire.Forbidden) != (want == wire.Refused) {
				t.Errorf("%s asks for %s: %+v, %v", user, command, reply, err)
			}
		}
	}
	for user, want := range map[string]wire.Answer{"shop": wire.Stored, "stock": wire.Refused, "operator": wire.Stored} {
		reply, err := conns[user].Lookup(within(t), "order-shop", time.Second)
		if err != nil || reply.Answer != want {
			t.Errorf("%s looks up: %+v, %v", user, reply, err)
		}
	}
	// Nothing forbidden was stored, and what was permitted is served.
	reply, err := conns["operator"].Admin(within(t), "rows", "")
	var view broker.RowsView
	if err := errors.Join(err, json.Unmarshal(reply.Payload, &view)); err != nil || len(view.Rows) != 1 || view.Rows[0].Topic != "orders/1" {
		t.Errorf("stored: %+v, %v", view.Rows, err)
	}
	ack(t, receive(t, sub), wire.Accepted)
	if n := state(t, s).Refused[broker.RefusedPermission]; n != 14 {
		t.Errorf("%d refusals are counted", n)
	}
}

func TestUsersAreReplacedWhileTheBrokerRuns(t *testing.T) {
	one, kept := add(t, "", access.User{Name: "kept", Publish: []string{"a"}})
	before, gone := add(t, one, access.User{Name: "gone", Publish: []string{"a"}})
	before, changed := add(t, before, access.User{Name: "changed", Subscribe: []string{"a"}})
	s := start(t, broker.Config{Users: users(t, before)})
	var conns []*client.Conn
	for _, token := range []string{kept, gone, changed} {
		c, err := enter(t, s, token)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	after, added := add(t, one, access.User{Name: "added"})
	s.SetUsers(users(t, after))
	for i, c := range conns[1:] {
		select {
		case <-c.Done():
			if !strings.Contains(c.Err().Error(), "this user was changed or removed") {
				t.Errorf("session %d was not told why: %v", i, c.Err())
			}
		case <-within(t).Done():
			t.Errorf("session %d goes on", i)
		}
	}
	if reply := publish(t, conns[0], wire.Message{Topic: "a", Mode: wire.AtMostOnce}); reply.Cause != wire.NoConsumer {
		t.Errorf("the session of a user that is as it was: %+v", reply)
	}
	if _, err := enter(t, s, gone); !errors.Is(err, client.ErrRefused) {
		t.Errorf("a user that is gone: %v", err)
	}
	if _, err := enter(t, s, added); err != nil {
		t.Errorf("a new user: %v", err)
	}
}

// secured serves with TLS and returns what a client needs to trust it.
func secured(t *testing.T, authority certificatestest.Authority, cfg broker.Config, files certificates.ServerFiles) (*broker.Server, *certificates.Server, *tls.Config) {
	t.Helper()
	files.Certificate, files.Key = authority.Sign(t, "broker")
	own, err := certificates.Open(files)
	if err != nil {
		t.Fatal(err)
	}
	cfg.TLS = own.Config()
	trust, err := certificates.Client(authority.File, "", "")
	if err != nil {
		t.Fatal(err)
	}
	return start(t, cfg), own, trust
}

func TestTLS(t *testing.T) {
	authority := certificatestest.New(t)
	s, _, trust := secured(t, authority, broker.Config{Store: newStore(), Token: token, Handshake: 2 * time.Second}, certificates.ServerFiles{})
	over := func(config *tls.Config) (*client.Conn, error) {
		t.Helper()
		c, err := client.Dial(within(t), s.Addr(), client.Options{Name: "c", Token: token, TLS: config})
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return c, err
	}
	c, err := over(trust)
	if err != nil {
		t.Fatal(err)
	}
	sub := subscribe(t, c, "orders", wire.AtLeastOnce, 8)
	cycle(t, c, sub, "order-1")
	big := order("order-2")
	big.Payload = make([]byte, wire.MaxPayload)
	if reply := publish(t, c, big); reply.Answer != wire.Accepted {
		t.Fatalf("a large payload over TLS: %+v", reply)
	}
	if d := receive(t, sub); len(d.Payload) != wire.MaxPayload {
		t.Errorf("%d bytes came", len(d.Payload))
	}

	old := trust.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	strange, err := certificates.Client(certificatestest.New(t).File, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]*tls.Config{"in the clear": nil, "TLS 1.2": old, "another authority": strange} {
		if _, err := over(config); err == nil {
			t.Errorf("%s: a session", name)
		}
	}
	lax := start(t, broker.Config{TLS: laxly(t, authority)})
	if c, err := client.Dial(within(t), lax.Addr(), client.Options{TLS: old}); err == nil {
		c.Close()
		t.Error("TLS 1.2, which the configuration allows: a session")
	}
	closedByPeer(t, raw(t, s)) // which never starts the handshake
	cycle(t, c, sub, "order-3")
}

// laxly allows what the transport must refuse.
func laxly(t *testing.T, authority certificatestest.Authority) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(authority.Sign(t, "broker"))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

// TestACertificateNamesItsUser checks that a client certificate replaces a token
// if the broker's authority has signed it and it names a user.
func TestACertificateNamesItsUser(t *testing.T) {
	authority, strangers := certificatestest.New(t), certificatestest.New(t)
	text, shop := add(t, "users:\n- name: stock\n  certificate: stock.example\n  subscribe: [orders]\n", access.User{Name: "shop", Publish: []string{"orders"}})
	s, _, _ := secured(t, authority, broker.Config{Store: newStore(), Users: users(t, text)}, certificates.ServerFiles{ClientCA: authority.File})
	dial := func(signer certificatestest.Authority, name, token string) (*client.Conn, error) {
		t.Helper()
		certificate, key := "", ""
		if name != "" {
			certificate, key = signer.Sign(t, name)
		}
		config, err := certificates.Client(authority.File, certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.Dial(within(t), s.Addr(), client.Options{Name: "c", Token: token, TLS: config})
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return c, err
	}
	stock, err := dial(authority, "stock.example", "")
	if err != nil {
		t.Fatal(err)
	}
	subscribe(t, stock, "orders", wire.AtLeastOnce, 1)
	if reply := publish(t, stock, order("order-1")); reply.Cause != wire.Forbidden {
		t.Errorf("stock publishes: %+v", reply)
	}
	producer, err := dial(authority, "stock.example", shop) // the token takes precedence
	if err != nil {
		t.Fatal(err)
	}
	if reply := publish(t, producer, order("order-1")); reply.Answer != wire.Accepted {
		t.Errorf("shop publishes: %+v", reply)
	}
	for name, c := range map[string]struct {
		signer      certificatestest.Authority
		name, token string
	}{
		"no certificate":              {authority, "", ""},
		"of nobody":                   {authority, "other.example", ""},
		"of a user without one":       {authority, "shop", ""},
		"of another authority":        {strangers, "stock.example", ""},
		"of a user, and a bad token":  {authority, "stock.example", "a-token-of-24-characters"},
		"of another, the right token": {strangers, "stock.example", shop},
	} {
		if _, err := dial(c.signer, c.name, c.token); err == nil {
			t.Errorf("a certificate %s: a session", name)
		}
	}
}

func TestCertificatesAreRenewedWhileTheBrokerRuns(t *testing.T) {
	old, renewed := certificatestest.New(t), certificatestest.New(t)
	files := certificates.ServerFiles{}
	files.Certificate, files.Key = old.Sign(t, "broker")
	own, err := certificates.Open(files)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, broker.Config{TLS: own.Config()})
	dial := func(ca string) error {
		t.Helper()
		config, err := certificates.Client(ca, "", "")
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.Dial(within(t), s.Addr(), client.Options{TLS: config})
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := dial(old.File); err != nil {
		t.Fatal(err)
	}
	certificate, key := renewed.Sign(t, "broker")
	replace(t, files.Certificate, certificate)
	if err := own.Reload(); err == nil || !strings.Contains(err.Error(), "do not go together") {
		t.Errorf("a certificate without its key: %v", err)
	}
	if err := dial(old.File); err != nil {
		t.Errorf("after a renewal that failed: %v", err)
	}
	replace(t, files.Key, key)
	if err := own.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := dial(renewed.File); err != nil {
		t.Errorf("after the renewal: %v", err)
	}
	if err := dial(old.File); err == nil {
		t.Error("the old certificate is still shown")
	}
}

func replace(t *testing.T, file, by string) {
	t.Helper()
	text, err := os.ReadFile(by)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
