package linktest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/links"
)

// Splitting checks that a recorded capture, of one frame in each chunk, gives
// the same frames however its bytes arrive: its frames cut in two at every byte, and its streams, where pieces
// hold the ends of frames, in pieces of every small size and of drawn ones.
func Splitting(t *testing.T, open func() links.Protocol, c Capture) {
	t.Helper()
	if n := len(c.Understood(t, open())); n != len(c) || n == 0 {
		t.Fatalf("%d frames of %d chunks", n, len(c))
	}
	longest := 0
	for _, x := range c {
		longest = max(longest, len(x.Bytes))
	}
	check := func(whole Capture) func(t testing.TB, sizes ...int) {
		want, _ := whole.Frames(t, open())
		return func(t testing.TB, sizes ...int) {
			t.Helper()
			if split, _ := whole.InPieces(sizes...).Frames(t, open()); !sameFrames(split, want) {
				t.Fatalf("in pieces of %v: %d frames, want %d", sizes, len(split), len(want))
			}
		}
	}
	frames, streams := check(c), check(c.apart())
	for at := 1; at < longest; at++ {
		frames(t, at, math.MaxInt)
	}
	for size := 1; size <= 64; size++ {
		frames(t, size)
		streams(t, size)
	}
	rapid.Check(t, func(rt *rapid.T) {
		streams(t, rapid.SliceOfN(rapid.IntRange(1, 90), 1, 120).Draw(rt, "sizes")...)
	})
}

// Fuzz is the body of a fuzz target: both directions of a connection give the
// same frames in pieces, and a corrupted frame keeps its length. The seeds are
// the connections of captures.
func Fuzz(f *testing.F, open func() links.Protocol, seeds ...Capture) {
	for _, c := range seeds {
		for way := range slices.Chunk(c.apart(), 2) {
			f.Add(way[0].Bytes, way[1].Bytes, uint(3))
		}
	}
	f.Fuzz(func(t *testing.T, toBroker, toClient []byte, piece uint) {
		// No more than some thousand pieces: a framer may look at a frame anew with each.
		size := int(piece%64) + 1 + max(len(toBroker), len(toClient))>>12
		c := Streams(toBroker, toClient)
		whole, err1 := c.Frames(t, open())
		split, err2 := c.InPieces(size).Frames(t, open())
		if !sameFrames(whole, split) || fmt.Sprint(err1) != fmt.Sprint(err2) {
			t.Fatalf("whole: %d frames, %v; in pieces of %d: %d frames, %v", len(whole), err1, size, len(split), err2)
		}
		for _, frame := range whole {
			if corrupted, err := open().(links.Corrupter).Corrupt(frame); err == nil && len(corrupted) != len(frame.Raw) {
				t.Fatal("corrupt changed the length")
			}
		}
	})
}

func sameFrames(a, b []links.Frame) bool {
	return slices.EqualFunc(a, b, func(x, y links.Frame) bool {
		return x.Kind == y.Kind && x.Says == y.Says && slices.Equal(x.Items, y.Items) && bytes.Equal(x.Raw, y.Raw)
	})
}

// Legal checks whether the protocol allows an action on a kind of frame.
func Legal(t *testing.T, p links.Protocol, kind string, a links.Action, want bool) {
	t.Helper()
	err := p.Legal(kind, a)
	var illegal *links.ErrIllegal
	if (err == nil) != want || err != nil && !errors.As(err, &illegal) {
		t.Errorf("%s of %s: %v, legal %v", a, kind, err, want)
	}
}

// EveryKind checks that captures show every kind which a script can name.
func EveryKind(t *testing.T, open func() links.Protocol, captures ...Capture) {
	t.Helper()
	seen := make(map[string]bool)
	for _, c := range captures {
		for _, f := range c.Understood(t, open()) {
			seen[f.Kind] = true
		}
	}
	for _, k := range open().Kinds() {
		if !seen[k.Name] {
			t.Errorf("no %s in the captures", k.Name)
		}
	}
}
