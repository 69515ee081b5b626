package evidence

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// PipeSink is the Sink of a child process: it writes each event to a pipe that
// it inherited. A write has reached the pipe when Record returns, and what is in
// the pipe survives the child's SIGKILL. Safe for concurrent use.
type PipeSink struct {
	base int64

	mu  sync.Mutex
	w   io.Writer
	buf []byte
	err error
}

// NewPipeSink writes to w; base is the parent's Recorder.Base.
func NewPipeSink(w io.Writer, base int64) *PipeSink {
	return &PipeSink{w: w, base: base}
}

// Record stamps At where it is zero, and returns 0: the parent numbers the
// event. After an error nothing more is written.
func (p *PipeSink) Record(e Event) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0
	}
	if p.err = e.named(); p.err != nil {
		return 0
	}
	e.Seq = 0
	stamp(&e, p.base)
	p.buf = append(AppendJSON(p.buf[:0], &e), '\n')
	if len(p.buf) > maxLine {
		p.err = fmt.Errorf("evidence: a %s event of %d bytes is longer than the bound of %d", e.Kind, len(p.buf), maxLine)
	} else if _, err := p.w.Write(p.buf); err != nil {
		p.err = fmt.Errorf("evidence: the parent reads no more events: %w", err)
	}
	return 0
}

// Err is the first error; a child that has one has lost its witness and must end.
func (p *PipeSink) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Adopt records what a child writes to its PipeSink, until the pipe's end.
// Events without an actor get actorDefault. A torn last line, from a child that
// died in the middle of a long write, becomes a Noted event. Any other line that
// is no event is an error: then, and when ctx ends, the rest of the pipe is not
// read, so the caller must end the child; give a ctx that outlives the child.
// To be interrupted while it waits, r must have SetReadDeadline, as a pipe's
// *os.File has.
func (r *Recorder) Adopt(ctx context.Context, pipe io.Reader, actorDefault string) error {
	if d, ok := pipe.(interface{ SetReadDeadline(time.Time) error }); ok {
		stop := context.AfterFunc(ctx, func() { _ = d.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
	}
	lines := bufio.NewReaderSize(pipe, maxLine)
	var d Decoder
	for n := 1; ; n++ {
		line, err := lines.ReadSlice('\n')
		if ctx.Err() != nil {
			return fmt.Errorf("evidence: events of %s: line %d: %w", actorDefault, n, context.Cause(ctx))
		}
		if errors.Is(err, io.EOF) {
			if len(line) > 0 {
				r.Record(Event{Kind: Noted, Actor: actorDefault,
					Reason: fmt.Sprintf("the process ended in the middle of an event: %q", line[:min(len(line), 200)])})
			}
			return r.Err()
		}
		if err != nil {
			return fmt.Errorf("evidence: events of %s: line %d (at most %d bytes): %w", actorDefault, n, maxLine, err)
		}
		var e Event
		if err := d.Decode(line, &e); err != nil {
			return fmt.Errorf("evidence: events of %s: line %d: %w", actorDefault, n, err)
		}
		// Observers may keep an event; the Decoder's parts of it change with the next.
		e.Items = slices.Clone(e.Items)
		if e.Exit != nil {
			exit := *e.Exit
			e.Exit = &exit
		}
		if e.Actor == "" {
			e.Actor = actorDefault
		}
		if r.Record(e) == 0 {
			return r.Err()
		}
	}
}
