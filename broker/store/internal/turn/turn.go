// Package turn lets one caller at a time use a resource.
package turn

import (
	"context"
	"fmt"

	"github.com/custodymq/custody/broker/store"
)

// Take receives the resource from a channel of capacity one, into which its
// holder returns it. The error is store.ErrClosed once closing is closed, or
// ctx's.
func Take[T any](ctx context.Context, from <-chan T, closing <-chan struct{}) (taken T, err error) {
	if err := ctx.Err(); err != nil {
		return taken, err
	}
	select {
	case <-closing:
		return taken, store.ErrClosed
	default:
	}
	select {
	case taken = <-from:
		return taken, nil
	case <-closing:
		return taken, store.ErrClosed
	case <-ctx.Done():
		return taken, fmt.Errorf("waiting for the write before: %w", ctx.Err())
	}
}
