package core

import "strings"

// filters is a trie of the subscribed topic filters, with one node per level.
// Finding a topic's listeners takes time proportional to its levels, however many
// filters there are.
type filters struct {
	root    filterNode
	version uint64 // incremented whenever any topic's listeners may have changed
}

type filterNode struct {
	parent      *filterNode
	level       string
	below       map[string]*filterNode // by level, including + and #
	copies      *audience              // at-most-once subscriptions to the filter that ends here
	competitors *competitors           // at-least-once subscriptions to it
}

// find returns a filter's node, creating it if necessary.
func (f *filters) find(filter string) *filterNode {
	n := &f.root
	for level := range strings.SplitSeq(filter, "/") {
		next := n.below[level]
		if next == nil {
			next = &filterNode{parent: n, level: strings.Clone(level)}
			if n.below == nil {
				n.below = map[string]*filterNode{}
			}
			n.below[next.level] = next
		}
		n = next
	}
	return n
}

// has reports whether anyone subscribes to exactly this filter.
func (f *filters) has(filter string) bool {
	n := &f.root
	for level := range strings.SplitSeq(filter, "/") {
		if n = n.below[level]; n == nil {
			return false
		}
	}
	return n.copies != nil || n.competitors != nil
}

// prune removes a node without subscriptions, and ancestors that led only to it.
func (f *filters) prune(n *filterNode) {
	for n.parent != nil && n.copies == nil && n.competitors == nil && len(n.below) == 0 {
		delete(n.parent.below, n.level)
		n = n.parent
	}
}

// match calls fn for each filter that matches a topic, in an order that depends
// only on the set of filters.
func (f *filters) match(name string, fn func(*filterNode)) {
	system := strings.HasPrefix(name, "$") // not matched by a leading wildcard (MQTT 5, 4.7.2)
	var visit func(n *filterNode, rest string, more bool)
	visit = func(n *filterNode, rest string, more bool) {
		wildcards := n.parent != nil || !system
		if all := n.below["#"]; all != nil && wildcards {
			fn(all)
		}
		if !more {
			if n.copies != nil || n.competitors != nil {
				fn(n)
			}
			return
		}
		level, rest, more := strings.Cut(rest, "/")
		if next := n.below[level]; next != nil {
			visit(next, rest, more)
		}
		if next := n.below["+"]; next != nil && wildcards {
			visit(next, rest, more)
		}
	}
	visit(&f.root, name, true)
}

// ValidFilter reports whether a topic filter may be subscribed to: + stands alone in its level; # stands alone in the last level.
func ValidFilter(filter string) bool {
	if filter == "" || strings.ContainsRune(filter, 0) {
		return false
	}
	levels := strings.Split(filter, "/")
	for i, level := range levels {
		switch {
		case level == "#" && i == len(levels)-1, level == "+":
		case strings.ContainsAny(level, "+#"):
			return false
		}
	}
	return true
}

// Matches reports whether a topic filter matches a topic name. As in MQTT, +
// matches exactly one level (possibly empty), # the parent and everything below,
// and a leading wildcard does not match topics that begin with $ (MQTT 5, 4.7.2).
func Matches(filter, name string) bool {
	if strings.HasPrefix(name, "$") && (filter[0] == '+' || filter[0] == '#') {
		return false
	}
	for {
		want, restFilter, moreFilter := strings.Cut(filter, "/")
		if want == "#" {
			return true
		}
		have, restName, moreName := strings.Cut(name, "/")
		if want != "+" && want != have {
			return false
		}
		switch {
		case moreFilter && moreName:
			filter, name = restFilter, restName
		case moreFilter:
			return restFilter == "#" // a/# matches a
		default:
			return !moreName
		}
	}
}

func hasWildcard(filter string) bool { return strings.ContainsAny(filter, "+#") }
