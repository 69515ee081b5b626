package evidence

import "strings"

// Filter is the destination of a subscription as the harness writes it, for
// systems that have wildcards (systems.NeedWildcards): levels are parted by
// "/"; "+" is one level, and "#" this level's parent and all below it. That is
// MQTT's notation; no other is read.
type Filter string

// Foreign reports whether the filter holds wildcards of a system's own notation,
// so that Matches says nothing.
func (f Filter) Foreign() bool { return strings.ContainsAny(string(f), "*>") }

// Matches reports whether what is published to a destination passes the filter.
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
