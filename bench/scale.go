//go:build !race

package bench

// DefaultScale is the factor on deadlines, bounds and periods.
const DefaultScale = 1.0
