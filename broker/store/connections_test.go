package store

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	both := Connections{
		First:  ConnectionList{"flags", []Connection{{Name: "orders", Driver: "sqlite", DSN: "first"}, {Name: "a b", Driver: "memory"}}},
		Second: ConnectionList{"broker.json", []Connection{{Name: "orders", Driver: "sqlite", DSN: "second"}, {Name: "billing", Driver: "sqlite", DSN: "billing"}, {Name: "twice"}, {Name: "twice"}}},
	}
	for _, test := range []struct {
		name, dsn string
		err       []string // all in the error
		near      []string
	}{
		{name: "orders", dsn: "first"},
		{name: "billing", dsn: "billing"},
		{name: "Orders", err: []string{`"Orders"`, `flags has "orders", "a b"`, `broker.json has "orders", "billing"`, "check case and blanks"}, near: []string{"orders", "orders"}},
		{name: "billing ", err: []string{"nearly right"}, near: []string{"billing"}},
		{name: "ab", err: []string{"nearly right"}, near: []string{"a b"}},
		{name: "stock", err: []string{`"stock"`}},
		{name: "twice", err: []string{"broker.json", "two connections"}},
		{name: " ", err: []string{"no name"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			found, err := both.Find(test.name)
			if test.err == nil {
				if err != nil || found.DSN != test.dsn {
					t.Fatalf("got %+v, %v", found, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("found %+v", found)
			}
			for _, part := range test.err {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in %q", part, err)
				}
			}
			var missing *NoConnectionError
			if errors.As(err, &missing) && !reflect.DeepEqual(missing.Near(), test.near) {
				t.Errorf("near: %q, want %q", missing.Near(), test.near)
			}
			if test.near == nil && strings.Contains(err.Error(), "nearly") {
				t.Errorf("nothing is near: %v", err)
			}
		})
	}
	if _, err := (Connections{First: ConnectionList{Title: "flags"}}).Find("x"); err == nil || !strings.Contains(err.Error(), "flags is empty") {
		t.Errorf("empty list: %v", err)
	}
}

func TestIdentity(t *testing.T) {
	noHost := errors.New("no host")
	for _, test := range []struct {
		name, variable string
		set            bool
		host           string
		hostErr        error
		want           string // "" is an error
	}{
		{name: "variable wins", variable: "blue", set: true, host: "node-a", want: "blue"},
		{name: "host otherwise", host: "node-a", want: "node-a"},
		{name: "set but empty", set: true, host: "node-a"},
		{name: "blanks around", variable: "blue ", set: true, host: "node-a"},
		{name: "no host", hostErr: noHost},
		{name: "host without a name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			variable, set, host := test.variable, test.set, test.host
			identity := Identity(
				func(name string) (string, bool) {
					if name != "CUSTODY_STORAGE_IDENTITY" {
						t.Errorf("asked for %s", name)
					}
					return variable, set
				},
				func() (string, error) { return host, test.hostErr })
			got, err := identity()
			if got != test.want || (err == nil) != (test.want != "") || (test.hostErr != nil && !errors.Is(err, test.hostErr)) {
				t.Fatalf("got %q, %v", got, err)
			}
			variable, set, host = "changed", true, "renamed"
			if again, errAgain := identity(); again != got || errAgain != err {
				t.Fatalf("changed after first use: %q, %v", again, errAgain)
			}
		})
	}
}
