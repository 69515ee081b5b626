package links

import (
	"sync"

	"github.com/custodymq/custody/evidence"
)

// Index maps message IDs to publishes, over all links of a run, because an
// acknowledgement names only the message ID. Safe for concurrent use; it keeps
// the latest MaxIndexed.
type Index struct {
	mu     sync.Mutex
	byID   map[string]evidence.FrameItem
	oldest []string // ring of keys in insertion order
	next   int
}

// MaxIndexed bounds the message IDs in an Index.
const MaxIndexed = 1 << 20

func NewIndex() *Index { return &Index{byID: make(map[string]evidence.FrameItem)} }

// Learn stores the publish that a message ID stands for.
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

// Find returns the item of a message ID, or one with the ID alone if unknown.
func (ix *Index) Find(messageID string) evidence.FrameItem {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if item, ok := ix.byID[messageID]; ok {
		return item
	}
	return evidence.FrameItem{MessageID: messageID}
}
