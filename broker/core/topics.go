package core

import "strings"

// validTopic: a name to publish to has at least one character and no wildcard
// (MQTT 5, 4.7.1 and 4.7.3).
func validTopic(name string) bool {
	return name != "" && !strings.ContainsAny(name, "+#\x00")
}

// validFilter: + stands alone in its level; # stands alone in the last level.
func validFilter(filter string) bool {
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

// Matches says whether a topic filter takes a topic name. It follows MQTT: + is exactly one level (which may be empty), # is the
// parent and everything below, and a filter that begins with a wildcard leaves
// out topics that begin with $ (MQTT 5, 4.7.2).
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
