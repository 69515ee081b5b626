// Package certificatestest creates certificates for tests.
package certificatestest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	File string // its own certificate, in PEM
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New returns an authority that is valid for a day.
func New(t testing.TB) Authority {
	t.Helper()
	a := Authority{}
	a.cert = template("authority")
	a.cert.IsCA, a.cert.BasicConstraintsValid, a.cert.KeyUsage = true, true, x509.KeyUsageCertSign
	a.File, _, a.key = a.sign(t, a.cert)
	return a
}

// Sign issues a certificate with this common name, for servers on 127.0.0.1 and
// for clients, and returns the files of certificate and key.
func (a Authority) Sign(t testing.TB, name string) (certificate, key string) {
	t.Helper()
	c := template(name)
	c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	certificate, key, _ = a.sign(t, c)
	return certificate, key
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

func (a Authority) sign(t testing.TB, c *x509.Certificate) (certificate, key string, private *ecdsa.PrivateKey) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if a.key == nil {
		a.key = private // self-signed
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, private.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return write(t, dir, "CERTIFICATE", der), write(t, dir, "PRIVATE KEY", secret), private
}

func write(t testing.TB, dir, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(dir, kind+".pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
