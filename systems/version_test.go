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
