package transport

import (
	"crypto/tls"
	"fmt"
	"net"
)

// secured is a TLS connection whose Close never blocks: crypto/tls would spend up
// to 5 s sending close_notify to a peer that does not read. The peer sees the
// stream end without close_notify, which is harmless here because anything
// unanswered is unknown either way.
type secured struct {
	*tls.Conn
	below net.Conn
}

func (s secured) Close() error { return s.below.Close() }

// secure performs the TLS handshake within nc's deadlines.
func secure(nc net.Conn, server bool, config *tls.Config) (net.Conn, *tls.ConnectionState, error) {
	side := tls.Client
	if server {
		side = tls.Server
	}
	conn := side(nc, config)
	if err := conn.Handshake(); err != nil {
		return nil, nil, err
	}
	state := conn.ConnectionState()
	if state.Version < tls.VersionTLS13 {
		return nil, nil, fmt.Errorf("the peer speaks %s; at least TLS 1.3 is needed", tls.VersionName(state.Version))
	}
	return secured{Conn: conn, below: nc}, &state, nil
}
