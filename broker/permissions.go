package broker

import (
	"fmt"

	"github.com/custodymq/custody/broker/access"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/wire"
)

// guarded is what needs a permission, and how it is answered without one. What a
// session was granted once (to answer its deliveries, to widen or end its
// subscriptions) needs none.
var guarded = map[wire.Kind]struct {
	may    func(*access.User, *wire.Message) bool
	verb   string
	reply  wire.Kind
	answer wire.Answer
}{
	wire.Publish: {func(u *access.User, m *wire.Message) bool { return u.MayPublish(m.Topic) }, "publish to", wire.PublishReply, wire.Declined},
	wire.Subscribe: {func(u *access.User, m *wire.Message) bool { return u.MaySubscribe(m.Topic) }, "subscribe to", wire.SubscribeReply,
		wire.Declined},
	// A business ID names no topic; it is for publishers to ask what became of it.
	wire.Lookup: {func(u *access.User, _ *wire.Message) bool { return len(u.Publish) > 0 || u.Administer }, "look up", wire.LookupReply, wire.Refused},
	wire.Admin:  {func(u *access.User, _ *wire.Message) bool { return u.Administer }, "administer", wire.AdminReply, wire.Refused},
}

func permitted(user *access.User, m *wire.Message) bool {
	if user == nil {
		return true
	}
	g, ok := guarded[m.Kind]
	return !ok || g.may(user, m)
}

// forbid answers what is not permitted. The state machine never hears of it.
func (s *Server) forbid(from session, m *wire.Message) error {
	g := guarded[m.Kind]
	object := m.Topic
	if m.Kind == wire.Lookup {
		object = m.BusinessID
	}
	s.refused.permissions.Add(1)
	s.tokens.log("not permitted", "peer", from.conn.RemoteAddr().String(), "user", from.user.Name, "verb", g.verb, "object", object)
	_, err := from.conn.Send(&wire.Message{
		Kind: g.reply, Request: m.Request, MessageID: m.MessageID, BusinessID: businessID(m), Answer: g.answer, Cause: wire.Forbidden,
		Reason: core.Clip(fmt.Sprintf("%s may not %s %q", from.user.Name, g.verb, object)),
	})
	from.conn.Flush()
	return err
}

// businessID is in the answer of a Lookup only.
func businessID(m *wire.Message) string {
	if m.Kind == wire.Lookup {
		return m.BusinessID
	}
	return ""
}
