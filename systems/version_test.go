package systems_test

import (
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/systems"
)

func TestLibraryVersion(t *testing.T) {
	required, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if v := systems.LibraryVersion(rapid.Check); !strings.Contains(string(required), "pgregory.net/rapid "+v+"\n") {
		t.Errorf("%q is not what go.mod requires", v)
	}
	for _, none := range []any{systems.LibraryVersion, nil, 7, (func())(nil)} {
		if v := systems.LibraryVersion(none); v != "unknown" {
			t.Errorf("%T: %q", none, v)
		}
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		version, than string
		want          bool
	}{
		{"2.10.27", "2.11", true}, {"2.11.0", "2.11", false}, {"2.9.25", "2.10", true}, {"v3.9", "4.0", true},
		{"4.0.5-1~deb13", "4.0", false}, {"3.13.7", "4", true}, {"mosquitto version 1.6.9", "2.0", true},
		{"at least v4.1", "4.0", false}, {"not installed", "1.0", false}, {"", "1.0", false},
	} {
		if got := systems.Older(c.version, c.than); got != c.want {
			t.Errorf("%q older than %q: %v", c.version, c.than, got)
		}
	}
	if err := systems.TooOld("nats-server", "2.8.4", "2.9"); err == nil || err.Error() != "nats-server 2.8.4 is too old: this adapter needs 2.9 or later" {
		t.Error(err)
	}
}
