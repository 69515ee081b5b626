package evidence

import "time"

// Memory records a run in memory only. It is not safe for concurrent use,
// since a simulated run has one thread.
type Memory struct {
	Now func() time.Duration

	manifest  Manifest
	events    []Event
	snapshots []Snapshot
	observers []*observer
}

// NewMemory starts a recording. It reuses room, the buffer of an earlier
// recording (see Events), if given.
func NewMemory(m Manifest, now func() time.Duration, room []Event) *Memory {
	m.Format, m.End = FormatVersion, nil
	return &Memory{Now: now, manifest: m, events: room[:0]}
}

// Record sets Seq, and At if it is zero.
func (m *Memory) Record(e Event) uint64 {
	if m.manifest.End != nil {
		return 0
	}
	e.Seq = uint64(len(m.events) + 1)
	if e.At == 0 {
		e.At = m.Now()
	}
	m.events = append(m.events, e)
	for _, o := range m.observers {
		o.fn(e)
	}
	return e.Seq
}

// Observe calls fn with every later event until stop is called.
func (m *Memory) Observe(fn func(Event)) (stop func()) {
	o := &observer{fn: fn}
	m.observers = append(m.observers, o)
	return func() {
		for i := range m.observers {
			if m.observers[i] == o {
				m.observers = append(m.observers[:i:i], m.observers[i+1:]...)
				return
			}
		}
	}
}

func (m *Memory) WriteSnapshot(s Snapshot) error {
	m.snapshots = append(m.snapshots, s)
	return nil
}

func (m *Memory) UpdateManifest(change func(*Manifest)) error {
	change(&m.manifest)
	return nil
}

// Close ends the recording; later events are discarded.
func (m *Memory) Close(end End) error {
	end.Events = uint64(len(m.events))
	m.manifest.End = &end
	return nil
}

// History returns the recording. Its events share the recording's buffer.
func (m *Memory) History() *History {
	return &History{Manifest: m.manifest, Snapshots: m.snapshots, Events: func(yield func(*Event, error) bool) {
		for i := range m.events {
			if !yield(&m.events[i], nil) {
				return
			}
		}
	}}
}

// Events returns the buffer, for the next recording to reuse.
func (m *Memory) Events() []Event { return m.events }
