package linktest_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links/linktest"
)

func TestCapturesAreReadAsWritten(t *testing.T) {
	var every []byte
	for b := range 256 {
		every = append(every, byte(b))
	}
	file := filepath.Join(t.TempDir(), "a.capture")
	c := linktest.Capture{{Conn: 1, To: evidence.ToBroker, Bytes: every}, {Conn: 12, To: evidence.ToClient, Bytes: []byte("é\"\r\n")}}
	c.Write(t, file)
	same := func(a, b linktest.Chunk) bool {
		return a.Conn == b.Conn && a.To == b.To && bytes.Equal(a.Bytes, b.Bytes)
	}
	if got := linktest.Read(t, file); !slices.EqualFunc(got, c, same) {
		t.Errorf("got %+v, want %+v", got, c)
	}
}
