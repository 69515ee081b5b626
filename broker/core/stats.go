package core

// Stats are what Admin "stats" answers.
func (c *Core) Stats() Stats {
	stats := c.stats
	stats.Subscriptions, stats.Unsettled = len(c.subs), c.unsettled
	return stats
}
