package links

import (
	"sync"

	"github.com/custodymq/custody/evidence"
)

// Index remembers which message ID belongs to which publish, over all links of
// a run: an acknowledgement names the message by the system's ID only. Safe for
// concurrent use; bounded by MaxIndexed (the oldest is forgotten).
type Index struct {
	mu     sync.Mutex
	byID   map[string]evidence.FrameItem
	oldest []string // ring of keys in order of learning
	next   int
}

// MaxIndexed is how many message IDs an Index remembers.
const MaxIndexed = 1 << 20

// NewIndex makes an empty index.
func NewIndex() *Index { return &Index{byID: make(map[string]evidence.FrameItem)} }

// Learn notes what a message ID stands for.
func (ix *Index) Learn(item evidence.FrameItem) {
	if item.MessageID == "" {
		return
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if _, known := ix.byID[item.MessageID]; !known {
		if len(ix.oldest) < MaxIndexed {
			ix.oldest = append(ix.oldest, item.MessageID)
		} else {
			delete(ix.byID, ix.oldest[ix.next])
			ix.oldest[ix.next] = item.MessageID
			ix.next = (ix.next + 1) % MaxIndexed
		}
	}
	ix.byID[item.MessageID] = item
}

// Find gives what is known of a message ID; an item with the ID alone if nothing is.
func (ix *Index) Find(messageID string) evidence.FrameItem {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if item, ok := ix.byID[messageID]; ok {
		return item
	}
	return evidence.FrameItem{MessageID: messageID}
}
