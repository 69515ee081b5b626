package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

// withUsers requires the broker's clients to authenticate by password.
const withUsers = `listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="tester" password="of the test" user_tester="of the test";
`

// somebodys is an external broker with users, which advertises its own address
// behind one that requires TLS.
func somebodys(t *testing.T) systems.Endpoint {
	t.Helper()
	p := profile(t, "transactions")
	p.at.User, p.at.Password, p.mechanism = "tester", "of the test", "PLAIN"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log, err := systemtest.Env(t, systemtest.Discard{}, nil).Log(serverName)
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.newBroker(systemtest.Discard{}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	config, err := os.OpenFile(filepath.Join(b.dir, "server.properties"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = config.WriteString(withUsers)
		err = errors.Join(err, config.Close())
	}
	if err = errors.Join(err, p.startBroker(ctx, b)); err != nil {
		t.Fatal(err)
	}
	endpoint := p.at
	endpoint.Address, endpoint.TLS = behindTLS(t, b.address)
	return endpoint
}

// behindTLS returns the address of a TLS proxy, and a configuration that trusts
// it.
func behindTLS(t *testing.T, upstream string) (string, *tls.Config) {
	t.Helper()
	certificate, authority := systemtest.Certificate(t, "kafka.internal")
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}})
	if err != nil {
		t.Fatal(err)
	}
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", upstream)
			if err != nil {
				client.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
				relays.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					way[0].Close()
					way[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() { l.Close(); relays.Wait() })
	return l.Addr().String(), systemtest.Trusting(t, "kafka.internal", authority)
}

// elsewhere also declares what an external broker does not allow as lacking.
type elsewhere struct{ Profile }

func (e elsewhere) Describe() systems.Description {
	d := e.Profile.Describe()
	d.Lacks[systems.NeedProcess] = "it is somebody else's"
	d.Lacks[systems.NeedFrames] = "TLS ends at the server"
	return d
}

func TestRemote(t *testing.T) {
	p := profile(t, "transactions")
	systemtest.Require(t, p)
	endpoint := somebodys(t)
	systemtest.Exercise(t, elsewhere{p.At(endpoint).(Profile)})

	endpoint.Password = "of nobody"
	p.scale = 0.1 // shortens waiting
	_, err := p.At(endpoint).Start(t.Context(), systemtest.Env(t, systemtest.Discard{}, nil))
	if err == nil || !strings.Contains(err.Error(), "take its user") || strings.Contains(err.Error(), endpoint.Password) {
		t.Errorf("with a wrong password: %v", err)
	}
}
