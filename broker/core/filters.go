package core

import "strings"

// filters is a trie of the topic filters that are subscribed to, a node for each
// level: who listens to a topic is found in the number of its levels, however
// many filters there are.
type filters struct {
	root    filterNode
	version uint64 // changes whenever who listens to what may have changed
}

type filterNode struct {
	parent      *filterNode
	level       string
	below       map[string]*filterNode // by level; + and # stand for themselves
	copies      *audience              // at-most-once subscriptions of the filter that ends here
	competitors *competitors           // at-least-once subscriptions of it
}

// find gives the node of a filter, which it makes if it is not there.
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

// has says whether somebody subscribes to exactly this filter.
func (f *filters) has(filter string) bool {
	n := &f.root
	for level := range strings.SplitSeq(filter, "/") {
		if n = n.below[level]; n == nil {
			return false
		}
	}
	return n.copies != nil || n.competitors != nil
}

// prune removes a node without subscriptions, and what only led to it.
func (f *filters) prune(n *filterNode) {
	for n.parent != nil && n.copies == nil && n.competitors == nil && len(n.below) == 0 {
		delete(n.parent.below, n.level)
		n = n.parent
	}
}

// match calls fn for each filter that matches a topic, in an order that depends
// on the filters only.
func (f *filters) match(name string, fn func(*filterNode)) {
	system := strings.HasPrefix(name, "$") // left out by a wildcard at the beginning (MQTT 5, 4.7.2)
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

// Matches says whether a topic filter matches a topic name. It follows MQTT: + is
// exactly one level (which may be empty), # is the parent and everything below,
// and a filter that begins with a wildcard leaves out topics that begin with $
// (MQTT 5, 4.7.2).
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
