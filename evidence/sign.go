package evidence

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
)

// signatureFile holds the 64-byte ed25519 signature of manifest.json. The
// manifest seals every other file, so signing it signs the run.
const signatureFile = "manifest.sig"

// ErrNotSigned: the run has no signature.
var ErrNotSigned = errors.New("evidence: the run is not signed")

// Sign signs a run, which must be sealed and intact.
func (r *Run) Sign(key ed25519.PrivateKey) error {
	if !r.Sealed() {
		return fmt.Errorf("evidence: %s is not sealed, so it cannot be signed", r.dir)
	}
	if damage := r.Damage(); damage != "" {
		return fmt.Errorf("evidence: %s cannot be signed: it is damaged: %s", r.dir, damage)
	}
	return r.dir.replaceFile(signatureFile, ed25519.Sign(key, r.raw))
}

// CheckSignature verifies that the manifest was signed with this key. Damage
// reports whether the other files match the manifest's seal.
func (r *Run) CheckSignature(key ed25519.PublicKey) error {
	sig, err := r.dir.read(signatureFile, ed25519.SignatureSize)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s has no %s", ErrNotSigned, r.dir, signatureFile)
	}
	if err != nil {
		return err
	}
	if len(sig) != ed25519.SignatureSize || !ed25519.Verify(key, r.raw, sig) {
		return fmt.Errorf("evidence: %s is not a signature of %s by this key", r.dir.path(signatureFile), manifestFile)
	}
	return nil
}

// Signed reports whether there is a signature, by whatever key.
func (r *Run) Signed() bool { return r.dir.exists(signatureFile) }

// maxKey bounds a key file, in bytes.
const maxKey = 64 << 10

// ReadPrivateKey reads an ed25519 key in PEM (PKCS#8). Errors never quote it.
func ReadPrivateKey(name string) (ed25519.PrivateKey, error) {
	block, err := readPEM(name, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s holds no private ed25519 key in PKCS#8; make one with: openssl genpkey -algorithm ed25519 -out FILE", name)
	}
	return key, nil
}

// ReadPublicKey reads an ed25519 key in PEM (PKIX).
func ReadPublicKey(name string) (ed25519.PublicKey, error) {
	block, err := readPEM(name, "PUBLIC KEY")
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKIXPublicKey(block)
	key, ok := parsed.(ed25519.PublicKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s holds no public ed25519 key; take it from the private one with: openssl pkey -in KEY -pubout -out FILE", name)
	}
	return key, nil
}

func readPEM(name, kind string) ([]byte, error) {
	text, err := ReadRegular(name, maxKey)
	if err != nil {
		return nil, fmt.Errorf("read a key: %w", err)
	}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil, fmt.Errorf("%s holds no %s in PEM (a block that starts with -----BEGIN %s-----)", name, kind, kind)
		}
		if block.Type == kind {
			return block.Bytes, nil
		}
	}
}
