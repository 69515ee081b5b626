package systems

// Composite is an optional interface of an Instance whose optional interfaces
// are known only at run time, such as that of an adapter in another process. It
// has those that it implements, and those of its parts.
type Composite interface {
	// Parts returns the same parts each time.
	Parts() []any
}

// As returns the optional interface T of in, an Instance. Use it instead of a type
// assertion, which does not find what a Composite's parts implement.
func As[T any](in any) (T, bool) {
	if t, ok := in.(T); ok {
		return t, true
	}
	if c, ok := in.(Composite); ok {
		for _, part := range c.Parts() {
			if t, ok := part.(T); ok {
				return t, true
			}
		}
	}
	var none T
	return none, false
}
