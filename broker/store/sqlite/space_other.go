//go:build !unix

package sqlite

import "math"

// freeSpace is not known here. SQLite's own error for a full disk remains.
func freeSpace(string) (uint64, error) { return math.MaxUint64, nil }
