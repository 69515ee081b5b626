package broker

import (
	"fmt"

	"github.com/custodymq/custody/broker/access"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/wire"
)

// guarded lists the requests that need a permission, and how they are answered
// without one. Using what was granted before needs none: answering deliveries,
// and widening or ending subscriptions.
var guarded = map[wire.Kind]struct {
	may    func(*access.User, *wire.Message) bool
	verb   string
	reply  wire.Kind
	answer wire.Answer
}{
	wire.Publish: {func(u *access.User, m *wire.Message) bool { return u.MayPublish(m.Topic) }, "publish to", wire.PublishReply, wire.Declined},
	wire.Subscribe: {func(u *access.User, m *wire.Message) bool { return u.MaySubscribe(m.Topic) }, "subscribe to", wire.SubscribeReply,
		wire.Declined},
	// A business ID names no topic. Lookups are for publishers, to ask what
	// became of a publish.
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

// forbid answers a request that is not permitted, which the state machine never
// sees.
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

// businessID returns the business ID that the reply must carry, which only a
// Lookup's does.
func businessID(m *wire.Message) string {
	if m.Kind == wire.Lookup {
		return m.BusinessID
	}
	return ""
}
