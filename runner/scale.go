//go:build !race

package runner

// DefaultScale is the factor on deadlines, bounds and periods.
const DefaultScale = 1.0
