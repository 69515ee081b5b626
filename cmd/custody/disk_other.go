//go:build !unix

package main

import "math"

// freeDisk is not known here.
func freeDisk(string) (uint64, error) { return math.MaxUint64, nil }
