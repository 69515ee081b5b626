package core

// Stats are what Admin "stats" answers.
func (c *Core) Stats() Stats {
	stats := c.stats
	stats.Subscriptions, stats.Unsettled, stats.Held = c.subscriptions, c.unsettled, c.held
	return stats
}
