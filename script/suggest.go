package script

import "strings"

// Suggest names the known word probably meant, or lists them all.
func Suggest(word string, known []string) string { return suggest(word, known) }

func suggest(word string, known []string) string {
	if best := Nearest(word, known); best != "" {
		return "; did you mean " + best + "?"
	}
	return "; known: " + strings.Join(known, ", ")
}

// Nearest returns the known word within edit distance two, or else one with
// word as a prefix, or "".
func Nearest(word string, known []string) string {
	best, distance := "", 3
	for _, k := range known {
		if d := editDistance(word, k); d < distance {
			best, distance = k, d
		}
	}
	for _, k := range known {
		if best == "" && len(word) > 2 && strings.HasPrefix(k, word) {
			best = k
		}
	}
	return best
}

// editDistance is the Levenshtein distance in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
