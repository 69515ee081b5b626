//go:build !unix

package main

import "math"

// freeDisk is unknown on this platform.
func freeDisk(string) (uint64, error) { return math.MaxUint64, nil }
