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

// PipeSink is the Sink of a child process. It writes each event to an
// inherited pipe before Record returns, so that the event survives the child's
// SIGKILL. Safe for concurrent use.
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

// Record sets At if it is zero, and returns 0, since the parent assigns Seq.
// After an error it writes nothing more.
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
		p.err = fmt.Errorf("evidence: the parent no longer reads events: %w", err)
	}
	return 0
}

// Err returns the first error. A child that has one is no longer recorded and
// must exit.
func (p *PipeSink) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Adopt records what a child writes to its PipeSink, until the end of the
// pipe. Events without an actor get actorDefault. A torn last line, from a
// child that died in the middle of a write, becomes a Noted event; any other
// malformed line is an error. After an error, or once ctx ends, nobody reads
// the pipe and the caller must end the child, so ctx should outlive it. ctx
// interrupts a blocked read only if r has SetReadDeadline, as a pipe's
// *os.File does.
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
		// Observers may keep an event, and the Decoder reuses Items and Exit.
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
