package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
)

// Results is a file of JSON lines: a heading, then one Result per line. Safe
// for concurrent use.
type Results struct {
	mu   sync.Mutex
	file *os.File
	done map[Identity]Result
}

// heading is the first line: results of other code are not continued.
type heading struct {
	Command string `json:"command"` // digest of the command without mutants
}

// openResults creates a file, or with resume continues it. A truncated last
// line is measured again.
func openResults(name, command string, resume bool) (*Results, error) {
	r := &Results{done: map[Identity]Result{}}
	var whole int64
	if resume {
		text, err := os.ReadFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			if whole, err = r.read(name, text, command); err != nil {
				return nil, err
			}
		}
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	r.file = file
	if err := file.Truncate(whole); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if _, err := file.Seek(whole, io.SeekStart); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if whole == 0 {
		if err := r.append(heading{Command: command}); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	return r, nil
}

// read parses the complete lines and returns their length.
func (r *Results) read(name string, text []byte, command string) (whole int64, err error) {
	for n := 1; ; n++ {
		advance, line, err := bufio.ScanLines(text[whole:], false)
		if err != nil || advance == 0 {
			return whole, err
		}
		if n == 1 {
			var h heading
			if err := json.Unmarshal(line, &h); err != nil {
				return 0, fmt.Errorf("%s:1: %w", name, err)
			}
			if h.Command != command {
				return 0, fmt.Errorf("%s holds results of other code: remove it, or leave out -resume", name)
			}
		} else {
			var result Result
			if err := json.Unmarshal(line, &result); err != nil {
				return 0, fmt.Errorf("%s:%d: %w", name, n, err)
			}
			r.done[result.Identity] = result
		}
		whole += int64(advance)
	}
}

// Of returns the result of a mutant, if there is one.
func (r *Results) Of(id Identity) (Result, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	result, ok := r.done[id]
	return result, ok
}

// Add appends a result; it is on disk when Add returns.
func (r *Results) Add(result Result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[result.Identity] = result
	return r.append(result)
}

func (r *Results) append(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = r.file.Write(append(line, '\n'))
	return err
}

func (r *Results) Close() error { return r.file.Close() }
