package evidence

import "time"

// Memory records a run that leaves no files. It is not safe for concurrent use:
// a simulated run has one thread.
type Memory struct {
	Now func() time.Duration

	manifest  Manifest
	events    []Event
	snapshots []Snapshot
	observers []*observer
}

// NewMemory begins a recording in the room that an earlier one has left; nil
// gives it room of its own.
func NewMemory(m Manifest, now func() time.Duration, room []Event) *Memory {
	m.Format, m.End = FormatVersion, nil
	return &Memory{Now: now, manifest: m, events: room[:0]}
}

// Record stamps Seq, and At where it is zero.
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

// Observe has fn called with every event from now on, until stop.
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

// Close ends the recording; what comes later is not recorded.
func (m *Memory) Close(end End) error {
	end.Events = uint64(len(m.events))
	m.manifest.End = &end
	return nil
}

// History of what was recorded. Its events share the recording's room.
func (m *Memory) History() *History {
	return &History{Manifest: m.manifest, Snapshots: m.snapshots, Events: func(yield func(*Event, error) bool) {
		for i := range m.events {
			if !yield(&m.events[i], nil) {
				return
			}
		}
	}}
}

// Events is the room, for the next recording.
func (m *Memory) Events() []Event { return m.events }
