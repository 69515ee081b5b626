package process

import (
	"net"
	"strconv"
	"strings"
	"testing"
)

func TestPortIsKept(t *testing.T) {
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port.Number())
	if err != nil || number < firstPort || number >= firstPort+ports || !strings.HasPrefix(port.Address, "127.0.0.1:") {
		t.Fatalf("%q, %v", port.Address, err)
	}
	taken := func(when string) {
		t.Helper()
		if other, err := bind(number); err == nil {
			other.Close()
			t.Errorf("somebody else could take the port %s", when)
		}
	}
	taken("before the server started")
	for range 3 { // start, connect, and end
		l, err := net.Listen("tcp4", port.Address)
		if err != nil {
			t.Fatal(err)
		}
		taken("while the server ran")
		if second, err := net.Listen("tcp4", port.Address); err == nil {
			second.Close()
			t.Error("two servers listen")
		}
		client, err := net.Dial("tcp4", port.Address)
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []interface{ Close() error }{l, server, client} { // the server first, so that its side keeps TIME_WAIT
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		taken("after the server ended")
		if c, err := net.Dial("tcp4", port.Address); err == nil {
			c.Close()
			t.Error("somebody answers where no server runs")
		}
	}
	if err := port.Close(); err != nil {
		t.Error(err)
	}
}

func TestPortIsGivenBack(t *testing.T) {
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port.Number())
	if err != nil {
		t.Fatal(err)
	}
	if err := port.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := bind(number)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
