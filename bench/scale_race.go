//go:build race

package bench

// DefaultScale is the factor on deadlines, bounds and periods: SQLite is about
// ten times slower under the race detector.
const DefaultScale = 4.0
