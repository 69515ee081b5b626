package runner

import (
	"fmt"
	"math/rand/v2"
)

// longestHeader bounds a generated value, in bytes.
const longestHeader = 64

// headers generates n headers of random length, determined by the seed.
func headers(r *rand.Rand, n int) map[string]string {
	if n == 0 {
		return nil
	}
	all := make(map[string]string, n)
	for i := range n {
		value := make([]byte, 1+r.IntN(longestHeader))
		for j := range value {
			value[j] = byte('!' + r.IntN('~'-'!'+1)) // printable ASCII, which every protocol carries
		}
		all[fmt.Sprintf("header-%d", i+1)] = string(value)
	}
	return all
}
