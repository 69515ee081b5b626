package containers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
)

// The ports that servers get lie below those that Linux gives to outgoing
// connections (from 32768): otherwise any connection could take a server's
// port while it is being started, or started again.
const (
	firstPort = 20000
	ports     = 12000
)

// given are the ports that this process handed out last, so that no two servers
// of it get the same one between the choice and the start.
var given struct {
	sync.Mutex
	last [256]int
	next int
}

// FreeAddress chooses a port on 127.0.0.1 for a server that must keep its
// address over a restart. Another process could still take it before the
// server does; then the server's start says so.
func FreeAddress() (string, error) {
	given.Lock()
	defer given.Unlock()
	last := errors.New("all that were tried were given to others")
	for range 100 {
		port := firstPort + rand.IntN(ports)
		if slices.Contains(given.last[:], port) {
			continue
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp4", address)
		if err != nil {
			last = err
			continue
		}
		given.last[given.next] = port
		given.next = (given.next + 1) % len(given.last)
		return address, l.Close()
	}
	return "", fmt.Errorf("containers: no free port between %d and %d: %w", firstPort, firstPort+ports-1, last)
}
