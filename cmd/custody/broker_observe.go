package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/spf13/pflag"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/metrics"
)

// observeFlags configure a broker's logging and metrics.
type observeFlags struct {
	address       string
	remote        bool
	level, format string
}

func (f *observeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.address, "observe", "", "address for metrics (/metrics, for Prometheus) and profiles (/debug/pprof/); none without it")
	flags.BoolVar(&f.remote, "observe-remote", false, "let --observe be another address than loopback: whoever reaches it can read the broker's memory")
	flags.StringVar(&f.level, "log-level", "info", "of what is written to standard error: debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "text", "text or json")
}

func (f *observeFlags) check() error {
	if _, err := f.logger(io.Discard); err != nil {
		return err
	}
	if f.address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(f.address)
	switch {
	case err != nil:
		return fmt.Errorf("--observe takes HOST:PORT, as in 127.0.0.1:9577: %w", err)
	case !loopback(host) && !f.remote:
		return fmt.Errorf("--observe %s can be reached from other machines, and asks nobody for a token: add --observe-remote if that is meant", f.address)
	}
	return nil
}

var logFormats = map[string]func(io.Writer, *slog.HandlerOptions) slog.Handler{
	"text": func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(w, o) },
	"json": func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewJSONHandler(w, o) },
}

func (f *observeFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: there are debug, info, warn and error", f.level)
	}
	handler := logFormats[f.format]
	if handler == nil {
		return nil, fmt.Errorf("--log-format %q: there are text and json", f.format)
	}
	return slog.New(handler(w, &slog.HandlerOptions{Level: level})), nil
}

// serve serves metrics and profiles, if --observe asks for them, until the result
// is closed.
func (f *observeFlags) serve(server *broker.Server, log *slog.Logger) (io.Closer, error) {
	if f.address == "" {
		return io.NopCloser(nil), nil
	}
	m, err := metrics.Serve(f.address, server)
	if err != nil {
		return nil, fmt.Errorf("--observe: %w", err)
	}
	log.Info("metrics and profiles are served", "address", m.Addr())
	return m, nil
}
