package core

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestFinishedRemembersTheNewest compares it with a list, across chunk boundaries
// and after emptying it.
func TestFinishedRemembersTheNewest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFinished()
		type entry struct {
			id, business string
			state        state
			inserted     int64
		}
		var want []entry
		n := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			for range rapid.SampledFrom([]int{1, 1, 50, 700}).Draw(t, "add") {
				n++
				e := entry{fmt.Sprint("m-", n), "", settled, int64(n)}
				if b := n % 7; b > 0 {
					e.business = strings.Repeat("b", b*b*3)
				}
				if n%5 == 0 {
					e.state = expired
				}
				if f.add(e.id, e.business, e.state, e.inserted, e.inserted+1) != 0 {
					t.Fatal("displaced")
				}
				want = append(want, e)
			}
			for range min(len(want), rapid.SampledFrom([]int{0, 1, 60, 2000}).Draw(t, "drop")) {
				if o := f.oldest(); string(o.id) != want[0].id || o.until != want[0].inserted+1 {
					t.Fatalf("the oldest is %s, want %s", o.id, want[0].id)
				}
				gone := want[0]
				f.drop()
				want = want[1:]
				if _, there := f.find(gone.id); there {
					t.Fatalf("%s is still there", gone.id)
				}
			}
			if f.n != len(want) {
				t.Fatalf("%d records, want %d", f.n, len(want))
			}
			latest := map[string]string{}
			for _, e := range want {
				if r, there := f.find(e.id); !there || r.state != e.state || string(r.businessID) != e.business || r.inserted != e.inserted {
					t.Fatalf("%s: %v %+v", e.id, there, r)
				}
				latest[fmt.Sprint(e.state, e.business)] = e.id
			}
			for _, e := range want {
				if e.business == "" {
					continue
				}
				if r, there := f.latest(e.business, e.state); !there || string(r.id) != latest[fmt.Sprint(e.state, e.business)] {
					t.Fatalf("%q: %v %s", e.business, there, r.id)
				}
			}
		}
	})
}

// TestWhatAFinishedIDCosts checks the claim in docs/security.md: at most 120
// bytes each, including both IDs.
func TestWhatAFinishedIDCosts(t *testing.T) {
	const n, limit = 1 << 18, 120
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f := newFinished()
	for i := range n {
		f.add(fmt.Sprintf("ABCDEFGH-%d", i), fmt.Sprintf("order-%d", i), settled, 1, 2)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := float64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%.0f bytes for each, reckoned as %.0f", each, float64(f.bytes())/n)
	if each > limit || each > 1.3*float64(f.bytes())/n {
		t.Errorf("%.0f bytes for each, want at most %d, and not much more than is reckoned", each, limit)
	}
	runtime.KeepAlive(&f)
}

// TestWhatAMessageCosts checks that a message costs what the memory budget
// assumes, apart from its IDs and content.
func TestWhatAMessageCosts(t *testing.T) {
	const n = 20_000
	cfg := config()
	cfg.Limits.Messages, cfg.Limits.PublishWindow = n, n
	w := scene(t, cfg, 0)
	w.unstored = true
	m := offer("")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	held := w.core.held
	for i := range n {
		m.Request, m.BusinessID = uint64(i+1), fmt.Sprintf("order-%d", i)
		in := Input{Kind: Received, Session: 1, Message: m}
		for _, e := range w.core.Step(&in, w.now, nil) {
			if e.Kind == Persist {
				in := Input{Kind: Stored, Ticket: e.Ticket}
				w.core.Step(&in, w.now, nil)
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	is, reckoned := float64(after.HeapAlloc-before.HeapAlloc)/n, float64(w.core.held-held)/n
	t.Logf("%.0f bytes for each, reckoned as %.0f", is, reckoned)
	if is > 1.2*reckoned {
		t.Errorf("a message takes %.0f bytes, and is reckoned as %.0f", is, reckoned)
	}
}
