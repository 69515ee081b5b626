package systems

// needs lists them all, each with the optional interface that meets it; nil where
// only Description.Lacks can say that it is not met.
var needs = []struct {
	need Need
	met  func(System, Instance) bool
}{
	{NeedLinks, instance[Networked]},
	{NeedFrames, func(_ System, i Instance) bool {
		n, ok := i.(Networked)
		return ok && n.Protocol() != nil
	}},
	{NeedProcess, instance[Process]},
	{NeedBytes, nil},
	{NeedPause, nil},
	{NeedRows, instance[Inspector]},
	{NeedDeadLetters, instance[Administrator]},
	{NeedStoreFaults, instance[StoreFaulter]},
	{NeedClock, instance[Clocked]},
	{NeedIdentity, instance[Configurable]},
	{NeedPlanting, instance[Planter]},
	{NeedLookup, nil}, // a Producer's: see Resolver
	{NeedNack, nil},
	{NeedTTL, nil},
	{NeedModes, nil},
	{NeedDecline, nil},
	{NeedMessageID, nil},
	{NeedDedup, nil},
	{NeedAnswer, nil},
	{NeedAcks, nil},
	{NeedRedelivery, nil},
	{NeedCompeting, nil},
	{NeedHeaders, nil},
	{NeedFanOut, nil},
	{NeedWildcards, nil},
	{NeedWindow, nil},
	{NeedRewind, instance[Rewinder]},
	{NeedProbes, instance[Prober]},
	{NeedTimeout, nil}, // the profile says how it redelivers
	{NeedConnector, func(s System, _ Instance) bool {
		_, ok := s.(Connector)
		return ok
	}},
}

func instance[T any](_ System, i Instance) bool {
	_, ok := i.(T)
	return ok
}

// Needs is the list of them.
func Needs() []Need {
	list := make([]Need, len(needs))
	for i, n := range needs {
		list[i] = n.need
	}
	return list
}

// Meets says whether a need's interface, if it has one, is implemented.
func Meets(n Need, s System, i Instance) bool {
	for _, known := range needs {
		if known.need == n {
			return known.met == nil || known.met(s, i)
		}
	}
	return true
}
