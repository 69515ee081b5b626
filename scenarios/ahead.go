package scenarios

import (
	"iter"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/tasks"
)

const (
	aheadBatch = 256 // events
	aheadDepth = 4   // batches that wait to be judged
)

// ahead reads events in a task of its own, some batches ahead of who ranges over
// them, so that decoding and judging share the work of two cores. As with the
// decoder, an event is valid until the next.
func ahead(events iter.Seq2[*evidence.Event, error]) iter.Seq2[*evidence.Event, error] {
	return func(yield func(*evidence.Event, error) bool) {
		r := reader{full: make(chan batch, aheadDepth), free: make(chan []evidence.Event, aheadDepth+2), stop: make(chan struct{})}
		var group tasks.Group
		defer group.Wait()
		defer close(r.stop)
		group.Go(func() { r.read(events) })
		for b := range r.full {
			for i := range b.events {
				if !yield(&b.events[i], nil) {
					return
				}
			}
			if b.err != nil {
				yield(nil, b.err)
				return
			}
			r.free <- b.events
		}
	}
}

// batch is some events, and the error after them.
type batch struct {
	events []evidence.Event
	err    error
}

type reader struct {
	full chan batch            // closed after the last
	free chan []evidence.Event // judged, to be used again
	stop chan struct{}         // closed when nobody ranges any more
}

func (r reader) read(events iter.Seq2[*evidence.Event, error]) {
	defer close(r.full)
	var b batch
	defer func() {
		if p := recover(); p != nil { // nothing could be measured
			b.err = tasks.Panic(p)
		}
		r.pass(b)
	}()
	for e, err := range events {
		if err != nil {
			b.err = err
			return
		}
		b.events = appendEvent(b.events, e)
		if len(b.events) < aheadBatch {
			continue
		}
		if !r.pass(b) {
			b = batch{}
			return
		}
		b = batch{events: r.empty()}
	}
}

// pass is false if nobody takes the batch any more.
func (r reader) pass(b batch) bool {
	select {
	case r.full <- b:
		return true
	case <-r.stop:
		return false
	}
}

func (r reader) empty() []evidence.Event {
	select {
	case used := <-r.free:
		return used[:0]
	default:
		return make([]evidence.Event, 0, aheadBatch)
	}
}

// appendEvent copies an event and what it shares with the decoder.
func appendEvent(events []evidence.Event, e *evidence.Event) []evidence.Event {
	var items []evidence.FrameItem
	if n := len(events); n < cap(events) {
		items = events[:n+1][n].Items[:0] // of an event that was judged
	}
	events = append(events, *e)
	last := &events[len(events)-1]
	last.Items = append(items, e.Items...)
	if e.Exit != nil {
		exit := *e.Exit
		last.Exit = &exit
	}
	return events
}
