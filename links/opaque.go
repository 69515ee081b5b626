package links

// opaque is the Protocol for traffic that cannot be read, such as TLS.
type opaque struct{}

func (opaque) Name() string { return "opaque bytes" }

func (opaque) NewConn(*Index) (toBroker, toClient Framer) { return nil, nil }

func (opaque) Kinds() []KindInfo { return nil }

func (o opaque) Legal(kind string, a Action) error {
	return &ErrIllegal{Protocol: o.Name(), Kind: kind, Action: a, Why: "no frame is seen"}
}
