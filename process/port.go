package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
)

// Port is a TCP port of 127.0.0.1 that is one server's until it is closed,
// whether the server runs or not: a socket is bound to it and never listens.
// Linux lets a server that sets SO_REUSEADDR, as they all do to be started
// again, bind beside it; whoever looks for a free port finds it taken.
type Port struct {
	Address string // host and port
	held    *os.File
}

// The ports that servers get lie below those that Linux gives to outgoing
// connections (from 32768), which any of these could take.
const (
	firstPort = 20000
	ports     = 12000
)

// FreePort takes a port that nobody has. One that its user does not close is
// given back when it is garbage.
func FreePort() (*Port, error) {
	var last error
	for range 100 {
		number := firstPort + rand.IntN(ports)
		held, err := hold(number)
		if err == nil {
			return &Port{net.JoinHostPort("127.0.0.1", strconv.Itoa(number)), held}, nil
		}
		last = err
	}
	return nil, fmt.Errorf("process: no free port between %d and %d: %w", firstPort, firstPort+ports-1, last)
}

// hold binds without SO_REUSEADDR, which succeeds only where nobody else is
// bound, and sets it for those that come.
func hold(number int) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	held := os.NewFile(uintptr(fd), "port "+strconv.Itoa(number))
	err = os.NewSyscallError("bind", syscall.Bind(fd, &syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}}))
	if err == nil {
		err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	}
	if err != nil {
		return nil, errors.Join(err, held.Close())
	}
	return held, nil
}

// Number of the port, in decimal.
func (p *Port) Number() string {
	_, number, _ := net.SplitHostPort(p.Address)
	return number
}

// Close gives the port back.
func (p *Port) Close() error { return p.held.Close() }
