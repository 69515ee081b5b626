package script

import (
	"strconv"
	"strings"
)

// IDs is one business ID, or a range of them: order-3..order-5. The zero value
// is none.
type IDs struct {
	Name     string // an ID, or the stem of a range
	From, To int    // a range when To > 0
}

// Has reports whether the business ID is among them.
func (i IDs) Has(businessID string) bool {
	if i.To == 0 {
		return i.Name != "" && i.Name == businessID
	}
	number, ok := strings.CutPrefix(businessID, i.Name)
	n, err := strconv.Atoi(number)
	return ok && err == nil && strconv.Itoa(n) == number && n >= i.From && n <= i.To
}

func (i IDs) String() string {
	if i.To == 0 {
		return i.Name
	}
	return i.Name + strconv.Itoa(i.From) + ".." + i.Name + strconv.Itoa(i.To)
}

// overlap reports whether some ID is in both.
func (i IDs) overlap(other IDs) bool {
	switch {
	case i.To == 0:
		return other.Has(i.Name)
	case other.To == 0:
		return i.Has(other.Name)
	}
	return i.Name == other.Name && i.From <= other.To && other.From <= i.To // a stem does not end in a digit
}

func (p *parser) ids(what string) IDs {
	w := p.name(what)
	if first, last, ok := strings.Cut(w, ".."); ok {
		var ids IDs
		ids.Name, ids.From, ids.To = p.span(first, last)
		return ids
	}
	return IDs{Name: w}
}
