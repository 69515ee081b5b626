package linktest

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/links"
)

// Splitting checks that a capture of one frame per chunk gives the same frames
// however its bytes are split: each frame at every byte, in pieces of every
// small size, and whole streams, whose pieces may span frames, also in random
// pieces.
func Splitting(t *testing.T, open func() links.Protocol, c Capture) {
	t.Helper()
	longest := 0
	for _, x := range c {
		longest = max(longest, len(x.Bytes))
	}
	check := func(whole Capture) func(sizes ...int) {
		want := whole.Understood(t, open())
		if len(want) != len(c) || len(c) == 0 {
			t.Fatalf("%d frames, want one of each of %d chunks", len(want), len(c))
		}
		return func(sizes ...int) {
			t.Helper()
			if split, refused := whole.InPieces(sizes...).Frames(t, open()); refused != nil || !sameFrames(split, want) {
				t.Fatalf("in pieces of %v: %d frames (%v), want %d", sizes, len(split), refused, len(want))
			}
		}
	}
	frames, streams := check(c), check(c.apart())
	for at := 1; at < longest; at++ {
		frames(at, math.MaxInt)
	}
	for size := 1; size <= 64; size++ {
		frames(size)
		streams(size)
	}
	rapid.Check(t, func(rt *rapid.T) {
		streams(rapid.SliceOfN(rapid.IntRange(1, 90), 1, 120).Draw(rt, "sizes")...)
	})
}

// Fuzz is the body of a fuzz target: both directions of a connection give the
// same frames in pieces, and corruption keeps a frame's length. Its seeds are
// the captures' connections.
func Fuzz(f *testing.F, open func() links.Protocol, seeds ...Capture) {
	for _, c := range seeds {
		for way := range slices.Chunk(c.apart(), 2) {
			f.Add(way[0].Bytes, way[1].Bytes, uint(3))
		}
	}
	f.Fuzz(func(t *testing.T, toBroker, toClient []byte, piece uint) {
		// At most a few thousand pieces: a framer may rescan a frame at each.
		size := int(piece%64) + 1 + max(len(toBroker), len(toClient))>>12
		c := Streams(toBroker, toClient)
		whole, refused1 := c.Frames(t, open())
		split, refused2 := c.InPieces(size).Frames(t, open())
		if !sameFrames(whole, split) || len(refused1) != len(refused2) {
			t.Fatalf("whole: %d frames, %v; in pieces of %d: %d frames, %v", len(whole), refused1, size, len(split), refused2)
		}
		corrupter, can := open().(links.Corrupter)
		for _, frame := range whole {
			if !can {
				break
			}
			if corrupted, err := corrupter.Corrupt(frame); err == nil && len(corrupted) != len(frame.Raw) {
				t.Fatal("corrupt changed the length")
			}
		}
	})
}

func sameFrames(a, b []links.Frame) bool {
	return slices.EqualFunc(a, b, func(x, y links.Frame) bool {
		return x.Kind == y.Kind && x.Status == y.Status && slices.Equal(x.Items, y.Items) && bytes.Equal(x.Raw, y.Raw)
	})
}

// Legal checks whether the protocol allows an action on a frame kind.
func Legal(t *testing.T, p links.Protocol, kind string, a links.Action, want bool) {
	t.Helper()
	err := p.Legal(kind, a)
	var illegal *links.ErrIllegal
	if (err == nil) != want || err != nil && !errors.As(err, &illegal) {
		t.Errorf("%s of %s: %v, legal %v", a, kind, err, want)
	}
}

// EveryKind checks that the captures contain every kind a script can name.
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
