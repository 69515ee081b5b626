package nats

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

// saying returns the address of a proxy that changes the server's version.
func saying(t *testing.T, version, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var relays sync.WaitGroup
	t.Cleanup(func() { l.Close(); relays.Wait() })
	relays.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			relays.Go(func() {
				defer client.Close()
				upstream, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				defer upstream.Close()
				relays.Go(func() { _, _ = io.Copy(upstream, client); upstream.Close() })
				lines := bufio.NewReader(upstream)
				for { // everything ends with a line's end; a server may send its INFO again after CONNECT
					line, err := lines.ReadString('\n')
					if strings.HasPrefix(line, "INFO ") {
						line = strings.Replace(line, `"version":"`+server.VERSION+`"`, `"version":"`+version+`"`, 1)
					}
					if _, failed := io.WriteString(client, line); failed != nil || err != nil {
						return
					}
				}
			})
		}
	})
	return l.Addr().String()
}

// TestTheServerSaysItsVersion checks that the features of an external server
// follow from its version.
func TestTheServerSaysItsVersion(t *testing.T) {
	address := systemtest.Serve(t, named(t, "file-explicit-ack"))
	for _, c := range []struct {
		profile, version string
		lacksTTL         bool
		refused          string
	}{
		{"file-explicit-ack", server.VERSION, false, ""},
		{"file-explicit-ack", "2.11.0", false, ""},
		{"file-explicit-ack", "2.10.27", true, ""},
		{"file-explicit-ack", "2.9.25", true, ""},
		{"file-explicit-ack", "2.8.4", false, "nats-server 2.8.4 is too old: this adapter needs 2.9 or later"},
		{"core", "2.6.6", false, "nats-server 2.6.6 is too old"},
		{"async-persist", "2.11.4", false, "sets persist_mode, which needs nats-server 2.12 or later; this is 2.11.4"},
	} {
		t.Run(c.profile+" on "+c.version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s := named(t, c.profile).At(systems.Endpoint{Address: saying(t, c.version, address)})
			in, err := s.Start(ctx, systems.Env{Sink: systemtest.Discard{}})
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%v, want %q", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			d := systems.Describe(s, in)
			if d.Versions[program] != c.version {
				t.Errorf("versions %v", d.Versions)
			}
			if _, lacks := d.Lacks[systems.NeedTTL]; lacks != c.lacksTTL {
				t.Errorf("lacks a time to live: %v, want %v", lacks, c.lacksTTL)
			}
			for _, claim := range d.Claims {
				if claim.Guarantee == evidence.ExpiryHonoured && c.lacksTTL {
					t.Error("it claims to honour what it does not know")
				}
			}
			if err := in.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
