package main

import (
	"strings"
	"testing"

	"github.com/custodymq/custody/evidence"
)

// TestReplayStartsNoAdapterOfTheEvidence: its command is given by who replays.
func TestReplayStartsNoAdapterOfTheEvidence(t *testing.T) {
	m := evidence.Manifest{System: "own", Spec: "adapter:rm -rf /", Profile: evidence.Profile{Name: "fast"}}
	if spec, err := specToReplay(t.TempDir(), m, "", ""); err == nil || !strings.Contains(err.Error(), "--adapter COMMAND") {
		t.Errorf("%q, %v", spec, err)
	}
	if spec, err := specToReplay(t.TempDir(), m, "", "python3 mine.py"); err != nil || spec != "adapter/fast:python3 mine.py" {
		t.Errorf("%q, %v", spec, err)
	}
}
