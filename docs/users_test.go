package docs_test

import (
	"testing"

	"github.com/custodymq/custody/broker/access"
)

// TestUsersAreParsed reads the file of users that docs/broker.md shows.
func TestUsersAreParsed(t *testing.T) {
	shown := 0
	for _, b := range blocks(read(t, "docs/broker.md")) {
		if b.language != "yaml" {
			continue
		}
		shown++
		if _, err := access.Parse("docs/broker.md", []byte(b.text)); err != nil {
			t.Errorf("block at line %d: %v", b.line, err)
		}
	}
	if shown != 1 {
		t.Errorf("%d files of users are shown", shown)
	}
}
