package certificates

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/custodymq/custody/broker/certificates/certificatestest"
)

func TestWhatCannotBeUsedIsNamed(t *testing.T) {
	authority := certificatestest.New(t)
	certificate, key := authority.Sign(t, "a")
	_, other := authority.Sign(t, "b")
	dir := t.TempDir()
	text, long := filepath.Join(dir, "text.pem"), filepath.Join(dir, "long.pem")
	for file, content := range map[string]string{text: "no certificate", long: strings.Repeat("x", maxFile+1)} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for want, files := range map[string]ServerFiles{
		"gone.pem":                          {Certificate: filepath.Join(dir, "gone.pem"), Key: key},
		"not a regular file":                {Certificate: dir, Key: key},
		"long.pem: longer than":             {Certificate: long, Key: key},
		"do not go together":                {Certificate: certificate, Key: other},
		"text.pem and the key in":           {Certificate: text, Key: key},
		"text.pem holds no certificate":     {Certificate: certificate, Key: key, ClientCA: text},
		"no such file or directory":         {Certificate: certificate, Key: key, ClientCA: filepath.Join(dir, "gone.pem")},
		"read a certificate or key: stat /": {Certificate: "/dev/null/x", Key: key},
	} {
		if _, err := Open(files); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want one line with %q", files, err, want)
		}
	}
	if _, err := Client("", certificate, ""); err == nil {
		t.Error("a certificate without a key")
	}
	if c, err := Client("", "", ""); err != nil || c.RootCAs != nil {
		t.Errorf("the authorities of the machine: %v", err)
	}
}
