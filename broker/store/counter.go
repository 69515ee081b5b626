package store

import "context"

// Counter is an optional interface of a Store. Count estimates the number of rows
// that Load will return, to report the progress of a recovery.
type Counter interface {
	Count(ctx context.Context, settled int) (int, error)
}
