package zeromq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// librarySays writes bytes that the client library never sends to its connection,
// followed by a request: the answer to the former reaches the library first.
func librarySays(say []byte) func(*attempt) (systems.Probed, error) {
	return relayed(func(a *attempt, conn *client.Conn, _ *interjection) (systems.Probed, error) {
		a.write(say)
		_, err := conn.Lookup(a.ctx, nowhere, time.Second)
		switch {
		case err == nil:
			return came(evidence.ProbeIgnored, "the session goes on"), nil
		case errors.Is(err, client.ErrRefused):
			return came(evidence.ProbeEnded, "%v", err), nil
		}
		return came(evidence.ProbeMisanswered, "%v", err), nil
	})
}

// libraryIsRefused makes the broker refuse a request of the client library, by
// inserting an unintelligible message with the same request number before it. If
// one of the library's own heartbeats got in between, it tries the next request.
func libraryIsRefused(a *attempt, conn *client.Conn, next *interjection) (systems.Probed, error) {
	for request := uint64(askedHello + 1); request < askedHello+6; request++ {
		say := message(head(kindPing, request, text(tagTopic, place)), nil)
		next.say.Store(&say)
		_, err := conn.Lookup(a.ctx, nowhere, time.Second)
		switch {
		case err == nil:
			continue
		case errors.Is(err, client.ErrRefused):
			return came(evidence.ProbeRefused, "%v", err), nil
		case a.ctx.Err() != nil:
			return came(evidence.ProbeUnanswered, "the library never says so: %v", err), nil
		}
		return came(evidence.ProbeMisanswered, "%v", err), nil
	}
	return came(evidence.ProbeIgnored, "every question had an answer"), nil
}

// libraryWorks makes the client library do everything that a client does. A
// session without the library first checks that the broker serves.
func libraryWorks(a *attempt) (systems.Probed, error) {
	if err := a.enter(); err != nil {
		return systems.Probed{}, err
	}
	doing := "connect"
	err := func() error {
		conn, err := client.Dial(a.ctx, a.in.address, client.Options{Name: "stranger", Token: a.in.token})
		if err != nil {
			return err
		}
		defer func() { _ = called(a.ctx, conn.Close)() }()
		const topic = place + "/library"
		doing = "subscribe"
		sub, err := conn.Subscribe(a.ctx, client.Filter{Topic: topic, Mode: wire.AtLeastOnce})
		if err != nil {
			return err
		}
		doing = "grant"
		if err := sub.Grant(1); err != nil {
			return err
		}
		doing = "publish"
		call, err := conn.Publish(a.ctx, wire.Message{Topic: topic, Mode: wire.AtLeastOnce, Payload: []byte("hello")})
		if err != nil {
			return err
		}
		if _, err := call.Wait(a.ctx); err != nil {
			return err
		}
		doing = "give an answer that is here to who waits no longer"
		ended, cancel := context.WithCancel(a.ctx)
		cancel()
		for range 32 {
			if _, err := call.Wait(ended); err != nil {
				return err
			}
		}
		for accepted := false; !accepted; { // a slow machine may redeliver it first
			doing = "receive"
			d, err := sub.Receive(a.ctx)
			if err != nil {
				return err
			}
			doing = "acknowledge"
			m, err := d.Ack(a.ctx)
			if err != nil {
				return err
			}
			accepted = m.Answer == wire.Accepted
		}
		doing = "unsubscribe"
		return sub.Unsubscribe(a.ctx)
	}()
	switch {
	case err == nil:
		return came(evidence.ProbeAccepted, "it does"), nil
	case a.ctx.Err() != nil:
		return came(evidence.ProbeUnanswered, "it did not %s: %v", doing, err), nil
	}
	return came(evidence.ProbeMisanswered, "it did not %s: %v", doing, err), nil
}

// interjection is written to the broker ahead of the client library's next
// message.
type interjection struct {
	io.Writer
	say atomic.Pointer[[]byte]
}

func (i *interjection) Write(b []byte) (int, error) {
	if say := i.say.Swap(nil); say != nil {
		if _, err := i.Writer.Write(*say); err != nil {
			return 0, err
		}
	}
	return i.Writer.Write(b)
}

// relayed connects the client library through the probe's own connection.
func relayed(try func(*attempt, *client.Conn, *interjection) (systems.Probed, error)) func(*attempt) (systems.Probed, error) {
	return func(a *attempt) (systems.Probed, error) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		}
		next := &interjection{Writer: a.nc}
		var relay tasks.Group
		defer relay.Wait()
		defer ln.Close()
		relay.Go(func() {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			// When one direction ends, so does the other.
			relay.Go(func() { _, _ = io.Copy(next, nc); a.nc.Close() })
			_, _ = io.Copy(nc, a.nc)
			nc.Close()
		})
		conn, err := client.Dial(a.ctx, ln.Addr().String(), client.Options{Name: "stranger", Token: a.in.token})
		if err != nil {
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		}
		defer func() { _ = called(a.ctx, conn.Close)() }()
		return try(a, conn, next)
	}
}
