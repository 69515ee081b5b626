package adapter_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/adapter"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// skeletons are how each is run, once it is built.
var skeletons = map[string]struct {
	needs []string
	build []string // in its folder, which is %s
	run   string
}{
	"python": {[]string{"python3"}, nil, "python3 %s/adapter.py"},
	"node":   {[]string{"node"}, nil, "node %s/adapter.js"},
	"go":     {[]string{"go"}, []string{"go", "build", "-o", "adapter"}, "%s/adapter"},
}

// skeleton is the command of a new adapter. The test is skipped if its language
// is not on this machine.
func skeleton(t *testing.T, language string) string {
	t.Helper()
	s := skeletons[language]
	for _, program := range s.needs {
		_, err := exec.LookPath(program)
		systemtest.Needs(t, err)
	}
	dir := filepath.Join(t.TempDir(), "new")
	if err := adapter.New(language, dir); err != nil {
		t.Fatal(err)
	}
	if s.build != nil {
		cmd := exec.CommandContext(t.Context(), s.build[0], s.build[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	return fmt.Sprintf(s.run, dir)
}

func open(t *testing.T, command string) []systems.System {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found, err := adapter.Open(ctx, adapter.Command(command), 1)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestSkeletonsConform(t *testing.T) {
	for language := range skeletons {
		t.Run(language, func(t *testing.T) {
			systemtest.Exercise(t, open(t, skeleton(t, language))[0])
		})
	}
}
