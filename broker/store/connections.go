package store

import (
	"fmt"
	"strings"
	"unicode"
)

// Connection is where one broker keeps its rows.
type Connection struct {
	Name   string `json:"name"`   // the broker's exact name
	Driver string `json:"driver"` // names a backend
	DSN    string `json:"dsn"`    // what that backend needs: a path, a URL
}

// Connections are the two lists in which a broker looks up its connection; the
// first takes precedence. There is no default, because rows stored in an
// unintended place are lost to whoever looks for them.
type Connections struct{ First, Second ConnectionList }

// ConnectionList is one list, with a title that tells readers where it is
// defined.
type ConnectionList struct {
	Title   string // "flags", "broker.json"
	Entries []Connection
}

// Find returns the connection with exactly this name; case and spaces are
// significant.
func (c Connections) Find(name string) (Connection, error) {
	if strings.TrimSpace(name) == "" {
		return Connection{}, fmt.Errorf("store: the broker has no name, by which its connection is found; give it one")
	}
	for _, list := range []ConnectionList{c.First, c.Second} {
		found, err := list.find(name)
		if err != nil {
			return Connection{}, err
		}
		if found != nil {
			return *found, nil
		}
	}
	return Connection{}, &NoConnectionError{Name: name, Connections: c}
}

func (l ConnectionList) find(name string) (*Connection, error) {
	var found *Connection
	for i, entry := range l.Entries {
		if entry.Name != name {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("store: %s has two connections named %q; remove one", l.Title, name)
		}
		found = &l.Entries[i]
	}
	return found, nil
}

// NoConnectionError reports a name that is in neither list.
type NoConnectionError struct {
	Name        string
	Connections Connections
}

func (e *NoConnectionError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "store: no connection is named %q; %v; %v", e.Name, e.Connections.First, e.Connections.Second)
	if near := e.Near(); len(near) > 0 {
		fmt.Fprintf(&b, "; nearly right: %q: check case and blanks", near)
	}
	return b.String()
}

// Near returns the names that differ only in case or spaces.
func (e *NoConnectionError) Near() []string {
	var near []string
	for _, list := range []ConnectionList{e.Connections.First, e.Connections.Second} {
		for _, entry := range list.Entries {
			if fold(entry.Name) == fold(e.Name) {
				near = append(near, entry.Name)
			}
		}
	}
	return near
}

// String lists the names, for error messages.
func (l ConnectionList) String() string {
	if len(l.Entries) == 0 {
		return l.Title + " is empty"
	}
	names := make([]string, len(l.Entries))
	for i, entry := range l.Entries {
		names[i] = fmt.Sprintf("%q", entry.Name)
	}
	return l.Title + " has " + strings.Join(names, ", ")
}

func fold(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, name)
}
