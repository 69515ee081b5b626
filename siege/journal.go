package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Journal is the evidence: one line per event of an honest message, in the order
// observed. Messages are numbered from 0. It is safe for concurrent use.
type Journal struct {
	mu   sync.Mutex
	out  *bufio.Writer
	next uint64
	err  error
}

// Words of the journal. Each is followed by a message's number.
const (
	sent       = "sent"       // about to be published
	accepted   = "accepted"   // followed by the message ID
	refused    = "refused"    // Declined, Rejected, or proven never sent
	unknown    = "unknown"    // the connection ended before the answer
	unanswered = "unanswered" // no answer on a live connection
	delivered  = "delivered"  // as it was published
	altered    = "altered"    // not as it was published
	settled    = "settled"    // its acknowledgement was accepted
	kept       = "kept"       // found in the store at the end
)

// NewJournal returns a journal that writes to out, buffered until Flush.
func NewJournal(out io.Writer) *Journal { return &Journal{out: bufio.NewWriterSize(out, 64<<10)} }

// Send allots the next message's number and journals it as sent.
func (j *Journal) Send() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := j.next
	j.next++
	j.write(sent, n, "")
	return n
}

// Note journals a word about message n.
func (j *Journal) Note(word string, n uint64, messageID string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.write(word, n, messageID)
}

func (j *Journal) write(word string, n uint64, messageID string) {
	if _, err := fmt.Fprintln(j.out, word, n, messageID); err != nil && j.err == nil {
		j.err = err
	}
}

// Flush writes what is buffered and returns the first write error.
func (j *Journal) Flush() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.out.Flush(); j.err == nil {
		j.err = err
	}
	return j.err
}

// Custody is the summary of a journal.
type Custody struct {
	Sent       int `json:"sent"`
	Accepted   int `json:"accepted"`
	Refused    int `json:"refused"`
	Unknown    int `json:"unknown"`
	Unanswered int `json:"unanswered"`
	Delivered  int `json:"delivered"`
	Again      int `json:"deliveredAgain"`
	Settled    int `json:"settled"`
	Kept       int `json:"kept"` // of those accepted but not delivered

	Lost     int      `json:"lost"`     // accepted, not delivered, not kept
	Invented int      `json:"invented"` // delivered altered, unsent, or though refused
	Examples []string `json:"examples,omitempty"`
}

const maxExamples = 20

// fate is the set of words that a message's lines contain.
type fate uint16

var fates = map[string]fate{
	sent: 1, accepted: 2, refused: 4, unknown: 8, unanswered: 16, delivered: 32, altered: 64, settled: 128, kept: 256,
}

// Judge summarises a journal. It returns an error if a line cannot be parsed.
func Judge(journal io.Reader) (Custody, error) {
	var c Custody
	of := map[uint64]fate{}
	lines := bufio.NewScanner(journal)
	for at := 1; lines.Scan(); at++ {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || fates[f[0]] == 0 {
			return c, fmt.Errorf("journal: line %d: %q is not a word and a number", at, lines.Text())
		}
		n, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			return c, fmt.Errorf("journal: line %d: %w", at, err)
		}
		if f[0] == delivered && of[n]&fates[delivered] != 0 {
			c.Again++
		}
		of[n] |= fates[f[0]]
	}
	if err := lines.Err(); err != nil {
		return c, fmt.Errorf("journal: %w", err)
	}
	for _, n := range slices.Sorted(maps.Keys(of)) {
		is := func(word string) bool { return of[n]&fates[word] != 0 }
		for word, count := range map[string]*int{
			sent: &c.Sent, accepted: &c.Accepted, refused: &c.Refused, unknown: &c.Unknown, unanswered: &c.Unanswered,
			delivered: &c.Delivered, settled: &c.Settled,
		} {
			if is(word) {
				*count++
			}
		}
		switch {
		case is(altered), is(delivered) && !is(sent), is(delivered) && is(refused):
			c.Invented++
			c.example("invented", n)
		case is(accepted) && !is(delivered) && is(kept):
			c.Kept++
		case is(accepted) && !is(delivered):
			c.Lost++
			c.example("lost", n)
		}
		if is(unanswered) {
			c.example("unanswered", n)
		}
	}
	return c, nil
}

func (c *Custody) example(what string, n uint64) {
	if len(c.Examples) < maxExamples {
		c.Examples = append(c.Examples, fmt.Sprint(what, " ", n))
	}
}
