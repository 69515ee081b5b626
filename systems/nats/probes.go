package nats

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

var _ systems.Prober = (*instance)(nil)

// probe is what a client sends after the server's INFO, and the required
// outcome.
type probe struct {
	systems.Probe
	say func(maxPayload int) string
}

// place is the subject of probes, which no stream captures.
const place = "custody-probe"

const connect = `CONNECT {"verbose":false,"pedantic":false,"name":"stranger"}` + "\r\n"

// published is a PUB of size bytes to a subscription of the same client.
func published(size int) string {
	return fmt.Sprintf("%sSUB %s 1\r\nPUB %s %d\r\n%s\r\nPING\r\n", connect, place, place, size, strings.Repeat("x", size))
}

func listed(name, text string, wants evidence.ProbeOutcome, say func(maxPayload int) string) probe {
	return probe{systems.Probe{Kind: "strangers", Name: name, Text: text, Wants: wants}, say}
}

// probes test the client protocol (Reference, Client Protocol: its messages,
// -ERR and which errors close the connection) and max_payload.
var probes = []probe{
	listed("not-nats", "A client of another protocol connects.", evidence.ProbeEnded, func(int) string { return "GET / HTTP/1.1\r\nHost: broker\r\n\r\n" }),
	listed("unknown-operation", "A client that has connected says what is no operation.", evidence.ProbeEnded, func(int) string { return connect + "BURN " + place + "\r\n" }),
	listed("endless-line", "A control line has more than 4 KiB.", evidence.ProbeEnded, func(int) string {
		return connect + "PUB " + strings.Repeat("x", 8<<10) + " 0\r\n\r\n"
	}),
	listed("ping", "A PING is answered with a PONG.", evidence.ProbeAnswered, func(int) string { return connect + "PING\r\n" }),
	listed("payload", "A payload has as many bytes as the server takes.", evidence.ProbeAccepted, published),
	listed("payload-over", "A payload has one byte more than the server takes.", evidence.ProbeEnded, func(maxPayload int) string { return published(maxPayload + 1) }),
}

func (in *instance) Probes() []systems.Probe {
	list := make([]systems.Probe, len(probes))
	for i := range probes {
		list[i] = probes[i].Probe
	}
	return list
}

// Probe runs one probe on a connection of its own, bypassing all links.
func (in *instance) Probe(ctx context.Context, name string) (systems.Probed, error) {
	for _, p := range probes {
		if p.Name == name {
			return p.make(ctx, in.address)
		}
	}
	return systems.Probed{}, fmt.Errorf("nats: no probe %q", name)
}

func (p probe) make(ctx context.Context, address string) (systems.Probed, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return systems.Probed{}, fmt.Errorf("nats: probe: %w", err)
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, tasks.Guarded(func() { nc.Close() }))
	defer stop()
	br := bufio.NewReader(nc)
	line, err := br.ReadString('\n')
	if err != nil {
		return systems.Probed{}, fmt.Errorf("nats: probe: the server's INFO: %w", err)
	}
	var info struct {
		MaxPayload int `json:"max_payload"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info); err != nil || info.MaxPayload <= 0 || info.MaxPayload > 64<<20 {
		return systems.Probed{}, fmt.Errorf("nats: probe: the server's INFO states no max_payload: %.100q", line)
	}
	// The server may close the connection early; its answer can still be read.
	_, _ = nc.Write([]byte(p.say(info.MaxPayload)))
	return hear(ctx, br, info.MaxPayload), nil
}

// hear reads up to the server's PONG or the end of the connection.
func hear(ctx context.Context, br *bufio.Reader, maxPayload int) systems.Probed {
	got := systems.Probed{Outcome: evidence.ProbeAnswered}
	for {
		line, err := br.ReadString('\n')
		line = strings.TrimSpace(line)
		size := 0
		switch {
		case ctx.Err() != nil:
			return systems.Probed{Outcome: evidence.ProbeUnanswered, Reason: "no answer within the bound"}
		case err != nil:
			return systems.Probed{Outcome: evidence.ProbeEnded, Reason: got.Reason}
		case line == "PONG":
			return got
		case strings.HasPrefix(line, "-ERR"):
			got.Outcome, got.Reason = evidence.ProbeRefused, line
		case scanned(line, &size):
			if n, err := br.Discard(size + 2); err != nil || size != maxPayload {
				return systems.Probed{Outcome: evidence.ProbeMisanswered, Reason: fmt.Sprintf("a payload of %d bytes came back with %d", maxPayload, min(n, size))}
			}
			got.Outcome = evidence.ProbeAccepted
		}
	}
}

// scanned parses the size in the header line of a delivery.
func scanned(line string, size *int) bool {
	_, err := fmt.Sscanf(line, "MSG "+place+" 1 %d", size)
	return err == nil
}
