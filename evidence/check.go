package evidence

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// maxLimit bounds every period in a profile. A longer one would make its
// guarantee impossible to violate in any real run.
const maxLimit = 24 * time.Hour

// orderScopes lists the scopes within which a profile may promise order.
var orderScopes = []string{"", "connection", "key", "partition"}

// check rejects a manifest with values that no run can have.
func (m *Manifest) check() error {
	for _, list := range []struct {
		field   string
		entries int
	}{
		{"claims", len(m.Claims)}, {"expect", len(m.Expect)}, {"reached", len(m.Reached)}, {"faults", len(m.Faults)},
		{"known", len(m.Known)}, {"versions", len(m.Versions)},
	} {
		if list.entries > maxList {
			return fmt.Errorf("%s: %d entries exceed the limit of %d", list.field, list.entries, maxList)
		}
	}
	l := m.Profile.Limits
	for _, p := range []struct {
		field string
		value time.Duration
	}{
		{"redeliveryPeriod", l.RedeliveryPeriod}, {"recoveryBound", l.RecoveryBound}, {"inFlightBound", l.InFlightBound},
		{"expiryTolerance", l.ExpiryTolerance}, {"deleteBound", l.DeleteBound}, {"drainDeadline", l.DrainDeadline},
	} {
		switch {
		case p.value < 0:
			return fmt.Errorf("profile.limits.%s: %s is negative", p.field, p.value)
		case p.value > maxLimit:
			return fmt.Errorf("profile.limits.%s: %s is more than %s", p.field, p.value, maxLimit)
		}
	}
	switch {
	case l.MaxAttempts < 0:
		return fmt.Errorf("profile.limits.maxAttempts: %d is negative", l.MaxAttempts)
	case !slices.Contains(orderScopes, l.OrderScope):
		return fmt.Errorf("profile.limits.orderScope: %q is no scope; there are %q", l.OrderScope, orderScopes[1:])
	case !(m.Scale > 0) || math.IsInf(m.Scale, 0): // rejects NaN, which compares false
		return fmt.Errorf("scale: %v is no factor; it must be more than 0", m.Scale)
	case m.End != nil && m.End.After < 0:
		return fmt.Errorf("end.after: %s is negative", m.End.After)
	}
	for i, k := range m.Known {
		if _, err := time.Parse(Day, k.Until); err != nil {
			return fmt.Errorf("known[%d].until: %q is no day, such as 2027-01-31", i, k.Until)
		}
	}
	for i, c := range m.Reached {
		if c.Times < 0 {
			return fmt.Errorf("reached[%d].times: %d is negative", i, c.Times)
		}
	}
	return nil
}
