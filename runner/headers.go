package runner

import (
	"fmt"
	"math/rand/v2"
)

// longestHeader is that of a generated value, in bytes.
const longestHeader = 64

// headers are n generated ones, with values of every length up to the longest.
// The same seed gives the same.
func headers(r *rand.Rand, n int) map[string]string {
	if n == 0 {
		return nil
	}
	all := make(map[string]string, n)
	for i := range n {
		value := make([]byte, 1+r.IntN(longestHeader))
		for j := range value {
			value[j] = byte('!' + r.IntN('~'-'!'+1)) // printable: what every protocol carries
		}
		all[fmt.Sprintf("header-%d", i+1)] = string(value)
	}
	return all
}
