package runner

import "context"

// work is how long the handler works on a message before its effect. An error
// is the end of the run, or of this consumer.
func (c *consumer) work(ctx context.Context, businessID string) error {
	takes := c.spec.Work(businessID)
	if takes == 0 {
		return nil
	}
	return c.rt.Sleep(ctx, takes)
}

// fails reports whether the handler fails on this delivery of a message.
func (c *consumer) fails(businessID string) bool {
	times, fails := c.spec.FailTimes(businessID)
	if !fails {
		return false
	}
	if c.failures == nil {
		c.failures = make(map[string]int)
	}
	c.failures[businessID]++
	return times == 0 || c.failures[businessID] <= times
}
