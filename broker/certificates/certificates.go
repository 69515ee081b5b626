// Package certificates reads the certificates of one side of a TLS connection
// from files, and reads them again when they have been renewed.
package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// Server has the certificates of a broker. Safe for concurrent use.
type Server struct {
	files   ServerFiles
	current atomic.Pointer[tls.Config]
}

// ServerFiles are in PEM.
type ServerFiles struct {
	Certificate string // and those that lead to an authority that clients trust
	Key         string
	// ClientCA are the authorities whose client certificates are taken; empty
	// asks for none.
	ClientCA string
	// RequireClient refuses clients without such a certificate.
	RequireClient bool
}

// Open reads the files.
func Open(files ServerFiles) (*Server, error) {
	s := &Server{files: files}
	return s, s.Reload()
}

// Reload reads them again, for the connections that come. With an error those
// that were read before stay.
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

// Config is for the broker's listener: it follows Reload.
func (s *Server) Config() *tls.Config {
	c := base()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load(), nil }
	return c
}

// Client is the configuration of a client that trusts the authorities in ca (those
// of the machine if it is empty), and shows a certificate if one is given.
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

// base has no session tickets: a session that is resumed is not checked against
// authorities that were changed meanwhile, and connections here live long.
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
