package systems

// needs lists every Need with the optional interface that meets it, or nil
// where only Description.Lacks can say that it is not met.
var needs = []struct {
	need Need
	met  func(System, Instance) bool
}{
	{NeedLinks, instance[Networked]},
	{NeedFrames, func(_ System, i Instance) bool {
		n, ok := As[Networked](i)
		return ok && n.Protocol() != nil
	}},
	{NeedProcess, instance[Process]},
	{NeedBytes, nil},
	{NeedPause, nil},
	{NeedRows, instance[Inspector]},
	{NeedDeadLetters, instance[Administrator]},
	{NeedStoreFaults, instance[StoreFaulter]},
	{NeedStoreLink, func(_ System, i Instance) bool {
		s, ok := As[StoreLinked](i)
		return ok && s.StoreProtocol() != nil
	}},
	{NeedStandby, func(_ System, i Instance) bool {
		s, ok := As[StoreLinked](i)
		if !ok {
			return false
		}
		_, ok = s.StoreProcess().(Replicated)
		return ok
	}},
	{NeedVolume, nil},
	{NeedClock, instance[Clocked]},
	{NeedIdentity, instance[Configurable]},
	{NeedPlanting, instance[Planter]},
	{NeedDamage, nil},
	{NeedMoves, instance[StoreMover]},
	{NeedStoreBackup, instance[StoreBackup]},
	{NeedLookup, nil}, // of a Producer: see Resolver
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
	{NeedSurvival, nil},
	{NeedRewind, instance[Rewinder]},
	{NeedProbes, instance[Prober]},
	{NeedTimeout, nil}, // follows from the profile's redelivery
	{NeedRelease, nil}, // the same
	{NeedConnector, func(s System, _ Instance) bool {
		_, ok := s.(Connector)
		return ok
	}},
}

func instance[T any](_ System, i Instance) bool {
	_, ok := As[T](i)
	return ok
}

// Needs returns all needs.
func Needs() []Need {
	list := make([]Need, len(needs))
	for i, n := range needs {
		list[i] = n.need
	}
	return list
}

// Meets reports whether the interface of a need, if it has one, is implemented.
func Meets(n Need, s System, i Instance) bool {
	for _, known := range needs {
		if known.need == n {
			return known.met == nil || known.met(s, i)
		}
	}
	return true
}
