package core

// ValidFilter says whether a topic filter may be subscribed to.
func ValidFilter(filter string) bool { return validFilter(filter) }
