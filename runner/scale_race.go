//go:build race

package runner

// DefaultScale is the factor on deadlines, bounds and periods: SQLite is about
// ten times slower under the race detector.
const DefaultScale = 4.0
