package docs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/licensecheck"
)

// licencesFile is built into the command: a line for each module in it.
const licencesFile = "cmd/custody/licences.txt"

// Licences are read from the modules themselves.
func TestLicencesAreUpToDate(t *testing.T) {
	command := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=Module", "./cmd/custody")
	command.Dir = root
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for modules := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ Module *struct{ Path, Dir string } }
		if err := modules.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Module != nil && found[p.Module.Path] == "" {
			found[p.Module.Path] = licenceIn(t, p.Module.Path, p.Module.Dir)
		}
	}
	var want strings.Builder
	for _, path := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&want, "%s %s\n", path, found[path])
	}
	switch {
	case want.String() == read(t, licencesFile):
	case *update:
		if err := os.WriteFile(filepath.Join(root, licencesFile), []byte(want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is behind go.mod: run go test ./docs -update", licencesFile)
	}
}

// licenceIn names the licences of a module, as SPDX does.
func licenceIn(t *testing.T, module, dir string) string {
	t.Helper()
	var ids []string
	for _, pattern := range []string{"LICEN[SC]E*", "COPYING*", "licen[sc]e*"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range licensecheck.Scan(text).Match {
				ids = append(ids, m.ID)
			}
		}
	}
	slices.Sort(ids)
	if len(ids) == 0 {
		t.Errorf("the licence of %s is not known: look at it, and leave the module out if it has none", module)
	}
	return strings.Join(slices.Compact(ids), " AND ")
}
