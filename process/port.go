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

// Port reserves a TCP port on 127.0.0.1 for one server until closed, whether
// the server runs or not: a socket is bound to it and never listens. Linux lets
// a server with SO_REUSEADDR, which they all set to be restartable, bind beside
// it; others find the port taken.
type Port struct {
	Address string // host:port
	held    *os.File
}

// The ports lie below Linux's ephemeral range (from 32768), from which any
// outgoing connection could take one.
const (
	firstPort = 20000
	ports     = 12000
)

// FreePort reserves a free port. One that is not closed is released by the
// garbage collector.
func FreePort() (*Port, error) {
	var last error
	for range 100 {
		number := firstPort + rand.IntN(ports)
		held, err := bind(number)
		if err == nil {
			return &Port{net.JoinHostPort("127.0.0.1", strconv.Itoa(number)), held}, nil
		}
		last = err
	}
	return nil, fmt.Errorf("process: no free port between %d and %d: %w", firstPort, firstPort+ports-1, last)
}

// bind binds without SO_REUSEADDR, which succeeds only if the port is free, and
// then sets it for the server.
func bind(number int) (*os.File, error) {
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

// Number returns the port in decimal.
func (p *Port) Number() string {
	_, number, _ := net.SplitHostPort(p.Address)
	return number
}

// Close releases the port.
func (p *Port) Close() error { return p.held.Close() }
