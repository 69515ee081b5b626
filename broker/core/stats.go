package core

// Stats returns the counters that Admin "stats" reports.
func (c *Core) Stats() Stats {
	stats := c.stats
	stats.Subscriptions, stats.Unsettled, stats.Held = c.subscriptions, c.unsettled, c.held
	return stats
}
