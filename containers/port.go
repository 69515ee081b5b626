package containers

import (
	"fmt"
	"net"
)

// FreeAddress picks a free port on 127.0.0.1, for a server that must keep its
// address over a restart. The port is free when this returns; another process
// could still take it first, and then the server's start says so.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("containers: find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
