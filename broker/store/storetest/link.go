package storetest

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Link forwards connections to a database server, and can make the outcome of one
// write uncertain.
type Link struct {
	listener net.Listener
	to       string
	swallow  atomic.Pointer[swallow]
	done     sync.WaitGroup
}

type swallow struct {
	word    []byte
	command bool
}

// NewLink listens until the test ends.
func NewLink(t testing.TB, to string) *Link {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{listener: listener, to: to}
	l.done.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			silent := &atomic.Bool{}
			l.done.Go(func() { l.pass(server, client, silent, true) })
			l.done.Go(func() { l.pass(client, server, silent, false) })
		}
	})
	t.Cleanup(func() { listener.Close(); l.done.Wait() })
	return l
}

// Address returns the address on which the link listens.
func (l *Link) Address() string { return l.listener.Addr().String() }

// SwallowCommand withholds the next command that contains this word from the
// server, and closes its connection.
func (l *Link) SwallowCommand(word string) { l.swallow.Store(&swallow{[]byte(word), true}) }

// SwallowReply forwards the next command that contains this word, but nothing
// that the server sends from then on.
func (l *Link) SwallowReply(word string) { l.swallow.Store(&swallow{[]byte(word), false}) }

func (l *Link) pass(to, from net.Conn, silent *atomic.Bool, asking bool) {
	defer to.Close()
	defer from.Close()
	chunk := make([]byte, 64<<10)
	for {
		n, err := from.Read(chunk)
		if s := l.swallow.Load(); asking && s != nil && bytes.Contains(chunk[:n], s.word) {
			l.swallow.Store(nil)
			silent.Store(true)
			if s.command {
				return
			}
		}
		if !asking && silent.Load() {
			_, _ = io.Copy(io.Discard, from) // let the server reply into the void
			return
		}
		if _, werr := to.Write(chunk[:n]); err != nil || werr != nil {
			return
		}
	}
}
