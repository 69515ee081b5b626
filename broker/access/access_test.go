package access

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/broker/core"
)

const hash = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b" // of "secret"

func parse(t *testing.T, text string) *Users {
	t.Helper()
	users, err := Parse("users.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return users
}

func TestWhoIsKnown(t *testing.T) {
	users := parse(t, `
users:
  - name: billing
    token: `+hash+`
    publish: [invoices/#]
  - name: stock
    certificate: stock.example
    subscribe: [orders/+]
`)
	named := func(common string, dns ...string) *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: common}, DNSNames: dns}
	}
	for name, c := range map[string]struct {
		token       string
		certificate *x509.Certificate
		want        string
	}{
		"token":                                 {token: "secret", want: "billing"},
		"wrong token":                           {token: "secreT"},
		"nothing":                               {},
		"the hash is no token":                  {token: hash},
		"common name":                           {certificate: named("stock.example"), want: "stock"},
		"DNS name":                              {certificate: named("x", "y", "stock.example"), want: "stock"},
		"unknown certificate":                   {certificate: named("billing")},
		"certificate without a name":            {certificate: named("")},
		"a token decides over a certificate":    {token: "secret", certificate: named("stock.example"), want: "billing"},
		"a wrong token is not made good by one": {token: "wrong", certificate: named("stock.example")},
	} {
		got := ""
		if u := users.Known(c.token, c.certificate); u != nil {
			got = u.Name
		}
		if got != c.want {
			t.Errorf("%s: known as %q, want %q", name, got, c.want)
		}
	}
}

func TestPermissions(t *testing.T) {
	for _, c := range []struct {
		permission, filter string
		want               bool
	}{
		{"orders", "orders", true},
		{"orders", "order", false},
		{"orders", "orders/1", false},
		{"orders/+", "orders/1", true},
		{"orders/+", "orders/+", true},
		{"orders/+", "orders/#", false},
		{"orders/+", "orders", false},
		{"orders/+", "orders/1/2", false},
		{"orders/#", "orders", true},
		{"orders/#", "orders/#", true},
		{"orders/#", "orders/1/+/#", true},
		{"orders/#", "ordersx", false},
		{"orders/1", "orders/+", false},
		{"+/paid", "orders/paid", true},
		{"+/paid", "+/paid", true},
		{"+/paid", "#", false},
		{"#", "#", true},
		{"#", "a/b/+", true},
		{"#", "$internal/a", false},
		{"+/a", "$internal/a", false},
		{"$internal/#", "$internal/a", true},
		{"$internal/#", "#", false},
		{"a//b", "a//b", true},
		{"a/+/b", "a//b", true},
	} {
		if got := covers(c.permission, c.filter); got != c.want {
			t.Errorf("a permission for %q covers %q: %v, want %v", c.permission, c.filter, got, c.want)
		}
	}
}

// TestAPermissionLetsNothingElseThrough compares permissions with topic matching,
// which is implemented independently.
func TestAPermissionLetsNothingElseThrough(t *testing.T) {
	level := rapid.SampledFrom([]string{"a", "b", "", "$s"})
	pattern := rapid.SampledFrom([]string{"a", "b", "", "$s", "+", "+", "#"})
	rapid.Check(t, func(t *rapid.T) {
		permission := strings.Join(rapid.SliceOfN(pattern, 1, 4).Draw(t, "permission"), "/")
		filter := strings.Join(rapid.SliceOfN(pattern, 1, 4).Draw(t, "filter"), "/")
		if !core.ValidFilter(permission) || !core.ValidFilter(filter) {
			t.Skip()
		}
		topic := strings.Join(rapid.SliceOfN(level, 1, 4).Draw(t, "topic"), "/")
		if topic == "" {
			t.Skip()
		}
		user := User{Publish: []string{permission}, Subscribe: []string{permission}}
		if user.MayPublish(topic) != core.Matches(permission, topic) {
			t.Fatalf("a permission for %q: may publish to %q: %v", permission, topic, user.MayPublish(topic))
		}
		if user.MaySubscribe(filter) && core.Matches(filter, topic) && !core.Matches(permission, topic) {
			t.Fatalf("a permission for %q lets a subscription to %q through, which takes %q", permission, filter, topic)
		}
	})
}

func TestFilesThatAreRefused(t *testing.T) {
	for want, text := range map[string]string{
		"users.yaml:1: a file of users has one field":     "- name: a",
		"users.yaml:1: a file of users has one field, ":   "users: []\nmore: 1",
		"users.yaml:1: users is no list":                  "users: {name: a}",
		"users.yaml:2: this is no user":                   "users:\n- a",
		"users.yaml:3: a user has no field \"publishes\"": "users:\n- name: a\n  publishes: [x]",
		"users.yaml:2: a user needs a name":               "users:\n- token: " + hash,
		"users.yaml:2: a could never connect":             "users:\n- name: a",
		"users.yaml:2: a: token is no hash":               "users:\n- name: a\n  token: opensesame",
		"64 hexadecimal digits":                           "users:\n- name: a\n  token: " + hash + "00",
		"a: publish: topic filter \"a#\"":                 "users:\n- name: a\n  token: " + hash + "\n  publish: [a#]",
		"a: subscribe: topic filter \"\"":                 "users:\n- name: a\n  token: " + hash + "\n  subscribe: ['']",
		"users.yaml:4: there is a user \"a\" already":     "users:\n- name: a\n  certificate: x\n- name: a\n  certificate: y",
		"users.yaml:4: b has the token of a":              "users:\n- name: a\n  token: " + hash + "\n- name: b\n  token: " + hash,
		"users.yaml:4: b has the certificate of a":        "users:\n- name: a\n  certificate: x\n- name: b\n  certificate: x",
		"users.yaml:3: cannot unmarshal":                  "users:\n- name: a\n  publish: {a: b}",
		"users.yaml:3: mapping key":                       "users:\n- name: a\n  name: b",
		"more than one document":                          "users: []\n---\nusers: []",
		"users.yaml:2: found a tab":                       "users:\n- name: a\n\ttoken: b",
	} {
		_, err := Parse("users.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want one line with %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "opensesame") {
			t.Errorf("%q: the error tells the token: %v", text, err)
		}
	}
}

func TestAddKeepsTheRestOfTheFile(t *testing.T) {
	token, sum := NewToken()
	if CheckToken(token) != nil {
		t.Fatalf("a token that was drawn is too short: %d bytes", len(token))
	}
	if again, _ := NewToken(); again == token {
		t.Fatal("two tokens are the same")
	}
	for name, text := range map[string]string{
		"nothing":   "",
		"comment":   "# ours\n",
		"no users":  "users: []\n",
		"null":      "users:\n",
		"one user":  "# ours\nusers:\n  - name: a # the first\n    token: " + hash + "\n",
		"flow list": "users: [{name: a, certificate: a}]\n",
	} {
		out, err := Add("users.yaml", []byte(text), User{Name: "new", Publish: []string{"a/#"}, Administer: true}, sum)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		users := parse(t, string(out))
		u := users.Known(token, nil)
		if u == nil || u.Name != "new" || !u.MayPublish("a/b") || u.MaySubscribe("a/b") || !u.Administer {
			t.Errorf("%s: the new user is %+v in\n%s", name, u, out)
		}
		if strings.Contains(text, "#") && !bytes.Contains(out, []byte("# ours")) {
			t.Errorf("%s: the comment is gone:\n%s", name, out)
		}
		if strings.Contains(text, hash) && users.Known("secret", nil) == nil {
			t.Errorf("%s: the old user is gone:\n%s", name, out)
		}
		if bytes.Contains(out, []byte(token)) {
			t.Errorf("%s: the token is in the file:\n%s", name, out)
		}
	}
	if _, err := Add("users.yaml", []byte("users:\n- name: a\n  certificate: a\n"), User{Name: "a"}, sum); err == nil {
		t.Error("a user was added twice")
	}
}

func TestAUserThatWasChangedIsNotHad(t *testing.T) {
	const text = "users:\n- name: a\n  token: " + hash + "\n  publish: [x]\n- name: b\n  certificate: b\n"
	before := parse(t, text)
	a, b := before.Known("secret", nil), before.byCertificate["b"]
	for name, c := range map[string]struct {
		text string
		a, b bool
	}{
		"the same":        {text, true, true},
		"permission":      {strings.Replace(text, "[x]", "[x, y]", 1), false, true},
		"another token":   {strings.Replace(text, "2bb8", "2bb9", 1), false, true},
		"another name":    {strings.Replace(text, "name: a", "name: c", 1), false, true},
		"nobody":          {"users: []", false, false},
		"b is renamed":    {strings.Replace(text, "certificate: b", "certificate: c", 1), true, false},
		"b has a token":   {text + "  token: " + strings.Replace(hash, "2bb8", "2bb9", 1), true, false},
		"b administers":   {text + "  administer: true", true, false},
		"one user before": {strings.Replace(text, "users:\n", "users:\n- name: z\n  certificate: z\n", 1), true, true},
	} {
		after := parse(t, c.text)
		if after.Has(a) != c.a || after.Has(b) != c.b {
			t.Errorf("%s: a is as it was: %v, b: %v; want %v and %v", name, after.Has(a), after.Has(b), c.a, c.b)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "# a", "users:", "users: []", "users:\n- name: a\n  token: " + hash + "\n  publish: [a/#, +]\n", "a: &x [*x]", "users: &x\n- *x", "--- \n...", "\ufeffusers: []", "%YAML 1.1\n---\nusers: []"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		users, err := Parse("users.yaml", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "users.yaml:") || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %q", err)
			}
			return
		}
		token, sum := NewToken()
		out, err := Add("users.yaml", text, User{Name: "added by " + token}, sum)
		if err != nil {
			t.Fatalf("%q is read, and nobody can be added: %v", text, err)
		}
		again, err := Parse("users.yaml", out)
		if err != nil || again.Known(token, nil) == nil || len(again.byToken) != len(users.byToken)+1 {
			t.Fatalf("%q became %q: %v", text, out, err)
		}
		for _, u := range users.byToken {
			if !again.Has(u) {
				t.Fatalf("%+v is not as it was in %q", u, out)
			}
		}
	})
}

func ExampleUser_MaySubscribe() {
	user := User{Subscribe: []string{"orders/+"}}
	fmt.Println(user.MaySubscribe("orders/1"), user.MaySubscribe("orders/#"))
	// Output: true false
}
