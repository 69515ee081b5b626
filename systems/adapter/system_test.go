package adapter_test

import (
	"strings"
	"testing"

	"github.com/custodymq/custody/systems/adapter"
)

func TestSpecs(t *testing.T) {
	for spec, is := range map[string]bool{
		"adapter:python3 x.py": true, "adapter/fast:python3 x.py": true, "adapter": false, "adapters:x": false, "nats:core": false, "staging.yaml": false,
	} {
		if adapter.IsSpec(spec) != is {
			t.Errorf("%s: %v", spec, !is)
		}
	}
	if _, err := adapter.Named("adapter: ", 1); err == nil || !strings.Contains(err.Error(), "write adapter:COMMAND") {
		t.Error(err)
	}
	command := skeleton(t, "go")
	found, err := adapter.Named(adapter.Spec(command, "default"), 3)
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	if d := found[0].Describe(); d.System != "memory-queue" || d.Profile.Limits.RecoveryBound.String() != "15s" {
		t.Errorf("%+v", d)
	}
	if spec := found[0].(interface{ Spec() string }).Spec(); spec != adapter.Spec(command, "default") {
		t.Errorf("found again by %q", spec)
	}
	if _, err := adapter.Named(adapter.Spec(command, "defalt"), 1); err == nil || !strings.Contains(err.Error(), `no profile "defalt"; did you mean default?`) {
		t.Error(err)
	}
}

func TestNewTellsWhatIsWrong(t *testing.T) {
	if err := adapter.New("pyton", t.TempDir()); err == nil || !strings.Contains(err.Error(), "did you mean python?") {
		t.Error(err)
	}
	dir := t.TempDir()
	if err := adapter.New("python", dir); err != nil {
		t.Fatal(err)
	}
	if err := adapter.New("python", dir); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Error(err)
	}
}
