package runner

import "context"

// work simulates the handler's processing time. It returns an error when the
// run or this consumer ends.
func (c *consumer) work(ctx context.Context, businessID string) error {
	takes := c.spec.Work(businessID)
	if takes == 0 {
		return nil
	}
	return c.rt.Sleep(ctx, takes)
}

// fails reports whether the handler fails on this delivery.
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
