package main

import (
	"strings"
	"testing"
)

func TestColumns(t *testing.T) {
	lines := []string{"ack-lost\tThe broker never hears the first acknowledgement of order-1.", "baseline-of-all\tNothing goes wrong.", "custody run a-line-to-copy-that-is-longer-than-any-other"}
	for _, c := range []struct {
		width int
		want  string
	}{
		{0, `  ack-lost         The broker never hears the first acknowledgement of order-1.
  baseline-of-all  Nothing goes wrong.
  custody run a-line-to-copy-that-is-longer-than-any-other
`},
		{50, `  ack-lost         The broker never hears the
                   first acknowledgement of
                   order-1.
  baseline-of-all  Nothing goes wrong.
  custody run a-line-to-copy-that-is-longer-than-any-other
`},
		{40, `  ack-lost
      The broker never hears the first
      acknowledgement of order-1.
  baseline-of-all
      Nothing goes wrong.
  custody run a-line-to-copy-that-is-longer-than-any-other
`},
	} {
		var b strings.Builder
		writeColumns(&b, "  ", lines, c.width)
		if got := b.String(); got != c.want {
			t.Errorf("width %d:\n%s\nwant:\n%s", c.width, got, c.want)
		}
	}
}
