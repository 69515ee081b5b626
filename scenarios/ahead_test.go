package scenarios

import (
	"errors"
	"iter"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
)

// numbered yields n events as a decoder does: always the same one, with items
// that it uses again, and then an error or a panic.
func numbered(n int, end error, panics bool) iter.Seq2[*evidence.Event, error] {
	return func(yield func(*evidence.Event, error) bool) {
		var e evidence.Event
		items, exit := make([]evidence.FrameItem, 1), new(evidence.ExitInfo)
		for i := range n {
			e = evidence.Event{Seq: uint64(i + 1)}
			if i%3 == 0 {
				items[0].PublishID = strconv.Itoa(i)
				exit.Code = i
				e.Items, e.Exit = items, exit
			}
			if !yield(&e, nil) {
				return
			}
		}
		if panics {
			panic("a decoder's fault")
		}
		if end != nil {
			yield(nil, end)
		}
	}
}

func TestAhead(t *testing.T) {
	defer goleak.VerifyNone(t)
	torn := errors.New("torn")
	for _, n := range []int{0, 1, aheadBatch - 1, aheadBatch, aheadBatch + 1, 20*aheadBatch + 7} {
		for _, end := range []error{nil, torn} {
			seen := 0
			var err error
			for e, failed := range ahead(numbered(n, end, false)) {
				if err = failed; err != nil {
					break
				}
				carries := seen%3 == 0
				if e.Seq != uint64(seen+1) || carries != (len(e.Items) == 1) || carries && (e.Items[0].PublishID != strconv.Itoa(seen) || e.Exit.Code != seen) {
					t.Fatalf("event %d of %d is %+v", seen, n, e)
				}
				seen++
			}
			if seen != n || !errors.Is(err, end) {
				t.Errorf("%d of %d events, then %v; want %v", seen, n, err, end)
			}
		}
	}
}

func TestAheadEndsWhenNobodyReads(t *testing.T) {
	defer goleak.VerifyNone(t)
	for e := range ahead(numbered(100*aheadBatch, nil, false)) {
		if e.Seq == 10 {
			break
		}
	}
}

func TestAheadTellsOfAPanic(t *testing.T) {
	defer goleak.VerifyNone(t)
	var last error
	seen := slices.Collect(func(yield func(uint64) bool) {
		for e, err := range ahead(numbered(5, nil, true)) {
			if last = err; err == nil && !yield(e.Seq) {
				return
			}
		}
	})
	if len(seen) != 5 || last == nil || !strings.Contains(last.Error(), "a decoder's fault") {
		t.Errorf("%d events, then %v", len(seen), last)
	}
}
