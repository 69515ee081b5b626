package store

import "context"

// Counter is an optional ability of a Store: say about how many rows Load will
// give, so that whoever waits for a recovery knows how far it is.
type Counter interface {
	Count(ctx context.Context, settled int) (int, error)
}
