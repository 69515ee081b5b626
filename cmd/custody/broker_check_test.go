package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/guarantees"
)

func TestBrokerCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.db")
	s, err := sqlite.Open(t.Context(), sqlite.Options{Path: path, Partition: store.Partition{Connection: "custody", Identity: "node"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"first", "second"} {
		err = errors.Join(err, s.Apply(t.Context(), []store.Operation{{Kind: store.Insert, Row: store.Row{
			MessageID: id, Topic: "orders", Version: wire.Version, Payload: []byte("payload of " + id), InsertedAt: time.Unix(1, 0),
		}}}))
	}
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout []string
	}{
		{"sound", []string{path}, 0, []string{"custody@node  2 ", "is sound"}},
		{"sound, as JSON", []string{path, "--format", "json"}, 0, []string{`"pending": 2`}},
		{"no file", []string{path + ".no"}, guarantees.ExitUnmeasured, nil},
		{"no argument", nil, guarantees.ExitUsage, nil},
		{"damaged", []string{path}, guarantees.ExitViolated, []string{`damaged: message "second", row 2 of custody@node: it fails its checksum (as pending)`, "is damaged"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "damaged" {
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, bytes.Replace(data, []byte("payload of second"), []byte("payload of SECOND"), 1), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := rootCommand()
			var stdout, stderr bytes.Buffer
			cmd.SetArgs(append([]string{"broker", "check"}, c.args...))
			cmd.SetOut(&stdout)
			cmd.SetErr(&stderr)
			err := cmd.ExecuteContext(t.Context())
			var told exit
			var failed unmeasured
			code := 0
			switch {
			case errors.As(err, &told):
				code = int(told)
			case errors.As(err, &failed):
				code = guarantees.ExitUnmeasured
			case err != nil:
				code = guarantees.ExitUsage
			}
			if code != c.code {
				t.Errorf("exit %d, want %d: %v", code, c.code, err)
			}
			for _, want := range c.stdout {
				if !strings.Contains(stdout.String(), want) {
					t.Errorf("want %q in\n%s", want, stdout.String())
				}
			}
		})
	}
}
