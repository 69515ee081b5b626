package bench

import (
	"errors"
	"strings"
	"testing"

	"github.com/custodymq/custody/script"
)

func TestARewindKnowsItsCheckpoint(t *testing.T) {
	const head = "scenario x\nproducer p1 to orders\nconsumer c1 on orders\n"
	for _, c := range []struct{ name, steps, says string }{
		{"known", "snapshot a\nsnapshot b\nrestore business to a\nrewind c1 to b by time", ""},
		{"below", "rewind c1 to a by time\nsnapshot a", `no "snapshot a" stands above`},
		{"another", "snapshot a\nrestore business to b", `no "snapshot b" stands above`},
		{"no consumer", "snapshot a\nrewind p1 to a by position", "p1 is no consumer"},
		{"twice above", "snapshot a\nsnapshot a\nrestore business to a", "several snapshots are called a"},
		{"once more below", "snapshot a\nrewind c1 to a by time\nsnapshot a", "several snapshots are called a"},
		{"the harness's own name", "snapshot await\nrestore business to await", "several snapshots are called await"},
		{"twice, and nobody goes back", "snapshot a\nsnapshot a", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := script.Parse("x", head+c.steps)
			if err != nil {
				t.Fatal(err)
			}
			err = Check(s)
			var usage *UsageError
			if c.says == "" && err != nil || c.says != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("says %v, want %q", err, c.says)
			}
		})
	}
}
