package evidence

import "strings"

// Filter is the destination of a subscription as the harness writes it, for
// systems that have wildcards (systems.NeedWildcards): "/" separates levels,
// "+" matches one level, and "#" matches its parent level and everything
// below. This is MQTT's notation, and the only one understood.
type Filter string

// Foreign reports whether the filter contains wildcards of a system's own
// notation, for which Matches is meaningless.
func (f Filter) Foreign() bool { return strings.ContainsAny(string(f), "*>") }

// Matches reports whether a message published to destination passes the
// filter.
func (f Filter) Matches(destination string) bool {
	filter := string(f)
	if filter == destination {
		return true
	}
	if !strings.ContainsAny(filter, "+#") {
		return false
	}
	for {
		level, restF, moreF := strings.Cut(filter, "/")
		if level == "#" {
			return true
		}
		name, restD, moreD := strings.Cut(destination, "/")
		if level != "+" && level != name {
			return false
		}
		if !moreF || !moreD {
			return moreF == moreD || moreF && restF == "#" // "a/#" matches "a"
		}
		filter, destination = restF, restD
	}
}
