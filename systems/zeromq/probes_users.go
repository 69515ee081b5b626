package zeromq

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/custodymq/custody/broker/access"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// permissions are probes of a broker that knows its clients by name (the setting
// users: several), and of what happens when its users change.
const permissions = "permissions"

// users of such a broker: the harness, which may do everything, and some who may
// do little. Their tokens are the harness's with their names behind it. The change
// is what they are replaced by.
var users = []struct{ name, rights, changed string }{
	{"harness", "publish: ['#', '$probe/#', '$probe'], subscribe: ['#', '$probe/#', '$probe'], administer: true", "publish: ['#', '$probe/#', '$probe'], subscribe: ['#', '$probe/#', '$probe'], administer: true"},
	{"writer", "publish: [perm/a/+]", "publish: [perm/a/+]"},
	{"reader", "subscribe: [perm/a/#]", "subscribe: [perm/b]"},
	{"leaver", "subscribe: [perm/a/b]", ""},
	{"joiner", "", "subscribe: [perm/a/b]"},
}

func tokenOf(token, user string) string {
	if user == "harness" {
		return token
	}
	return token + user
}

func hashOf(token string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(token))) }

// usersOf is the file of users, before the change or after it.
func usersOf(token string, changed bool) (*access.Users, error) {
	var b strings.Builder
	b.WriteString("users:\n")
	for _, u := range users {
		rights := u.rights
		if changed {
			rights = u.changed
		}
		if rights != "" {
			fmt.Fprintf(&b, "- {name: %s, token: %q, %s}\n", u.name, hashOf(tokenOf(token, u.name)), rights)
		}
	}
	return access.Parse("users", []byte(b.String()))
}

var permitting = []probe{
	within(permissions, "user-is-known", "A user who is known is answered.", evidence.ProbeAnswered, expected{kind: kindPong, request: asked}, message(head(kindPing, asked), nil)),
	listed(permissions, "permissions", "Users do what they may and nothing else; one who is changed or removed loses the session and is known by the new rights, and nobody else does.",
		evidence.ProbeAnswered, func(a *attempt) (systems.Probed, error) {
			return converse(a.ctx, network{a.in}, "permissions", permissions, func(t *talk) { permitted(t, a.in) })
		}),
}

func permitted(t *talk, in *instance) {
	as := func(user string) *party { return t.enterAs(user, tokenOf(in.token, user)) }
	forbidden := because(causeForbidden)
	w, r, l := as("writer"), as("reader"), as("leaver")
	t.refusedAs("joiner", tokenOf(in.token, "joiner"))
	look := func(p *party, answer uint64, more ...field) {
		p.answer(p.say(kindLookup, "", t.business("nothing"), ttl(time.Millisecond)), "Lookup").is(answer, more...)
	}
	for range 2 { // a refusal changes nothing
		r.subscribe("perm/#", modeMost, 1).is(answerDeclined, forbidden)
		r.subscribe("perm/b", modeMost, 1).is(answerDeclined, forbidden)
		r.publishOnce("perm/a/b", "no").is(answerDeclined, forbidden)
		r.answer(r.say(kindAdmin, "", text(tagTopic, "stats")), "stats").is(answerRefused, forbidden)
		look(r, answerRefused, forbidden)
		w.subscribe("perm/a/b", modeMost, 1).is(answerDeclined, forbidden)
		w.publishOnce("perm/b", "no").is(answerDeclined, forbidden)
		w.publishOnce("perm/a/b/c", "no").is(answerDeclined, forbidden)
	}
	w.publishOnce("perm/a/b", "nobody").is(answerDeclined, because(causeNobody))
	r.subs, l.subs = map[string]uint64{}, map[string]uint64{}
	r.subscribe("perm/a/#", modeMost, 8).is(answerAccepted)
	l.subscribe("perm/a/b", modeMost, 8).is(answerAccepted)
	w.publishOnce("perm/a/b", "m1").is(answerAccepted)
	r.gets("perm/a/#", "m1")
	l.gets("perm/a/b", "m1")

	if err := in.changeUsers(t.ctx); err != nil {
		t.err = err
	}
	for _, p := range []*party{r, l} { // these have changed
		p.next().as(kindError)
		p.end()
	}
	t.refusedAs("leaver", tokenOf(in.token, "leaver"))
	j := as("joiner")
	j.subscribe("perm/a/b", modeMost, 8).is(answerAccepted)
	r = as("reader")
	r.subscribe("perm/a/b", modeMost, 8).is(answerDeclined, forbidden)
	r.subs = map[string]uint64{}
	r.subscribe("perm/b", modeMost, 8).is(answerAccepted)
	w.publishOnce("perm/a/b", "m2").is(answerAccepted) // this one has not
	j.gets("perm/a/b", "m2")
	r.quiet()
	t.clerk.publishOnce("perm/b", "m3").is(answerAccepted)
	r.gets("perm/b", "m3")
}

// refusedAs demands that the broker knows nobody of this token.
func (t *talk) refusedAs(name, token string) {
	p := t.knockAs(name, token)
	p.next().as(kindError)
	p.end()
}
