package docs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/custodymq/custody/broker/access"
	"github.com/custodymq/custody/systems/registry"
)

// TestProfilesOpen opens each profile of an external server, and each file of users.
func TestProfilesOpen(t *testing.T) {
	t.Setenv("REDIS_PASSWORD", "any")
	opened := 0
	for _, page := range documents(t) {
		for _, b := range blocks(read(t, page)) {
			if b.language != "yaml" {
				continue
			}
			if strings.HasPrefix(b.text, "users:") {
				if _, err := access.Parse(page, []byte(b.text)); err != nil {
					t.Errorf("block at line %d: %v", b.line, err)
				}
				continue
			}
			path := filepath.Join(t.TempDir(), "staging.yaml")
			if err := os.WriteFile(path, []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := registry.Find(path, 1); err != nil {
				t.Errorf("%s, block at line %d: %v", page, b.line, err)
			}
			opened++
		}
	}
	if opened == 0 {
		t.Error("no profile was found")
	}
}
