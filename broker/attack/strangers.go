package attack

import (
	"errors"
	"net"
	"os"
	"slices"
	"time"

	"github.com/custodymq/custody/broker/wire"
)

// Stranger is an attack by peers without the token.
type Stranger struct {
	Name        string
	Connections int
	First       []byte // what each connection sends first
	Again       []byte // and then every second
	Repeat      bool   // replace each connection that ends
}

// Strangers returns all of them.
func Strangers() []Stranger {
	entering := slices.Concat(Greeting(), Ready(Dealer))
	head := Frames(wire.Message{Kind: wire.Hello, Request: 1, Client: "x"})
	head = head[:len(head)-9] // strip the empty payload
	return []Stranger{
		{"no-Hello", 1, entering, nil, false},
		{"pings", 1024, entering, []byte(Ping), false},
		{"4-MiB-before-Hello", 500, slices.Concat(entering, head, Header(0, 4<<20), make([]byte, 4<<20-1)), nil, false},
		{"guesses", 16, slices.Concat(entering, Frames(wire.Message{Kind: wire.Hello, Request: 1, Client: "x", Token: "guess"})), nil, true},
	}
}

// Stay runs the attack on one connection until end, and reports whether the
// connection is still open then.
func (s Stranger) Stay(nc net.Conn, end time.Time) bool {
	_ = nc.SetWriteDeadline(end.Add(time.Second))
	_, _ = nc.Write(s.First) // the broker may close the connection before everything is sent
	buf := make([]byte, 4<<10)
	for time.Now().Before(end) {
		_ = nc.SetReadDeadline(time.Now().Add(min(time.Second, time.Until(end))))
		for {
			if _, err := nc.Read(buf); errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				return false
			}
		}
		if s.Again != nil {
			if _, err := nc.Write(s.Again); err != nil {
				return false
			}
		}
	}
	return true
}

// attack returns the attack without a time limit: a connection that ends is
// replaced.
func (s Stranger) attack() Attack {
	return Attack{s.Name, func(p *Party) error {
		for range s.Connections {
			p.forever(func() error {
				nc, err := p.raw()
				if err != nil {
					return err
				}
				s.Stay(nc, time.Now().Add(time.Minute))
				p.drop(nc)
				return nil
			})
		}
		return nil
	}}
}
