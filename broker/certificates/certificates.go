// Package certificates loads one side's TLS certificates from files, and reloads
// them after renewal.
package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// Server holds a broker's certificates. It is safe for concurrent use.
type Server struct {
	files   ServerFiles
	current atomic.Pointer[tls.Config]
}

// ServerFiles names the PEM files.
type ServerFiles struct {
	Certificate string // the certificate and the chain up to an authority that clients trust
	Key         string
	// ClientCA holds the authorities that sign client certificates. If it is
	// empty, no client certificate is requested.
	ClientCA string
	// RequireClient refuses clients without a certificate from ClientCA.
	RequireClient bool
}

// Open loads the files.
func Open(files ServerFiles) (*Server, error) {
	s := &Server{files: files}
	return s, s.Reload()
}

// Reload loads the files again, for future connections. On an error the previous
// certificates stay in use.
func (s *Server) Reload() error {
	c := base()
	pair, err := pair(s.files.Certificate, s.files.Key)
	if err != nil {
		return err
	}
	c.Certificates = []tls.Certificate{pair}
	if s.files.ClientCA != "" {
		if c.ClientCAs, err = authorities(s.files.ClientCA); err != nil {
			return err
		}
		c.ClientAuth = tls.VerifyClientCertIfGiven
		if s.files.RequireClient {
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	s.current.Store(c)
	return nil
}

// Config returns the configuration for the broker's listener. It follows Reload.
func (s *Server) Config() *tls.Config {
	c := base()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load(), nil }
	return c
}

// Client returns a client's configuration. It trusts the authorities in the file
// ca, or the machine's if ca is empty, and presents a certificate if one is
// given.
func Client(ca, certificate, key string) (*tls.Config, error) {
	c := base()
	if ca != "" {
		var err error
		if c.RootCAs, err = authorities(ca); err != nil {
			return nil, err
		}
	}
	if certificate == "" && key == "" {
		return c, nil
	}
	pair, err := pair(certificate, key)
	if err != nil {
		return nil, err
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// base disables session tickets: a resumed session is not verified against
// authorities that have changed meanwhile, and connections are long-lived here,
// so resumption gains little.
func base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true}
}

func pair(certificate, key string) (tls.Certificate, error) {
	cert, err := read(certificate)
	if err != nil {
		return tls.Certificate{}, err
	}
	private, err := read(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, private)
	if err != nil {
		return pair, fmt.Errorf("the certificate in %s and the key in %s, both in PEM, do not go together: %w", certificate, key, err)
	}
	return pair, nil
}

func authorities(file string) (*x509.CertPool, error) {
	text, err := read(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}

const maxFile = 1 << 20

func read(file string) ([]byte, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("not a regular file")
	case info.Size() > maxFile:
		err = fmt.Errorf("longer than %d bytes", maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read a certificate or key: %w", naming(file, err))
	}
	return os.ReadFile(file)
}

func naming(file string, err error) error {
	var at *os.PathError
	if errors.As(err, &at) {
		return err
	}
	return fmt.Errorf("%s: %w", file, err)
}
