package evidence

import "testing"

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		filter, destination string
		want                bool
	}{
		{"a/b", "a/b", true}, {"a/b", "a/c", false}, {"a/+", "a/b", true}, {"a/+", "a/b/c", false},
		{"a/+/c", "a/b/c", true}, {"#", "a/b", true}, {"a/#", "a/b/c", true}, {"a/#", "a", true}, {"a/#", "b", false},
		{"+", "a", true}, {"+", "a/b", false}, {"a/b/#", "a", false},
	} {
		if got := Filter(c.filter).Matches(c.destination); got != c.want {
			t.Errorf("%q on %q: %v", c.filter, c.destination, got)
		}
	}
}
