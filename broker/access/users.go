// Package access decides who may do what: users, the tokens and certificates that
// identify them, and the topics to which they may publish and subscribe.
package access

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// MinToken is the minimum length of a token in bytes. The size of the token space
// keeps a guesser out, not a limit on the rate of attempts.
const MinToken = 16

// Users is an immutable set of users, safe for concurrent use. To change it,
// replace it.
type Users struct {
	byToken       map[[sha256.Size]byte]*User
	byCertificate map[string]*User
}

// User is one identity with its permissions.
type User struct {
	Name        string
	token       [sha256.Size]byte
	hasToken    bool
	Certificate string   // name in a client certificate (common name or DNS name) that authenticates instead of a token
	Publish     []string // topic filters that the user may publish to
	Subscribe   []string // topic filters that the user may subscribe to
	Administer  bool
}

// Known returns the user identified by the token or, without a token, by the
// verified certificate. It returns nil if there is none.
//
// Tokens are stored as SHA-256, so that reading the file reveals none. A slow
// hash such as bcrypt protects short passwords from exhaustive search; a random
// token of 16 bytes needs no such protection, and a slow hash on every Hello
// would let strangers burn the broker's CPU. For the same reason a map lookup by
// hash leaks nothing useful: what its timing reveals about a hash does not lead
// to a token.
func (u *Users) Known(token string, certificate *x509.Certificate) *User {
	if token != "" {
		return u.byToken[sha256.Sum256([]byte(token))]
	}
	if certificate == nil {
		return nil
	}
	for _, name := range append([]string{certificate.Subject.CommonName}, certificate.DNSNames...) {
		if user := u.byCertificate[name]; user != nil {
			return user
		}
	}
	return nil
}

// Same reports whether both users have the same identity and permissions.
func (u *User) Same(other *User) bool {
	return other != nil && u.Name == other.Name && u.hasToken == other.hasToken && u.token == other.token &&
		u.Certificate == other.Certificate && u.Administer == other.Administer &&
		slices.Equal(u.Publish, other.Publish) && slices.Equal(u.Subscribe, other.Subscribe)
}

// Has reports whether the set contains this user, unchanged.
func (u *Users) Has(user *User) bool {
	if user.hasToken {
		return user.Same(u.byToken[user.token])
	}
	return user.Same(u.byCertificate[user.Certificate])
}

// MayPublish reports whether the user may publish to the topic.
func (u *User) MayPublish(topic string) bool {
	return slices.ContainsFunc(u.Publish, func(filter string) bool { return covers(filter, topic) })
}

// MaySubscribe reports whether the user may subscribe to everything that the
// filter matches. One permission must cover the whole filter: a subscription is
// never granted in part.
func (u *User) MaySubscribe(filter string) bool {
	return slices.ContainsFunc(u.Subscribe, func(permitted string) bool { return covers(permitted, filter) })
}

// covers reports whether the permission matches every topic that the filter
// matches. Both are MQTT topic filters: + matches one level, # the parent and
// everything below, and neither matches at the start of a topic that begins with
// $.
func covers(permission, filter string) bool {
	if strings.HasPrefix(filter, "$") && (permission[0] == '+' || permission[0] == '#') {
		return false
	}
	may, want := strings.Split(permission, "/"), strings.Split(filter, "/")
	for i, level := range may {
		switch {
		case level == "#":
			return true
		case i == len(want):
			return false
		case want[i] == "#", level != "+" && level != want[i]:
			return false
		}
	}
	return len(want) == len(may)
}

// Equal compares two tokens in time independent of where they differ and of the
// right one's length.
func Equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// CheckToken returns an error for a token short enough to be guessed.
func CheckToken(token string) error {
	if len(token) < MinToken {
		return fmt.Errorf("the token has %d bytes and must have at least %d: take a random one, such as head -c 24 /dev/urandom | base64 prints", len(token), MinToken)
	}
	return nil
}

// NewToken returns a random token, and its hash as stored in the users file.
func NewToken() (token, hash string) {
	token = rand.Text() // 26 characters, 130 bits
	sum := sha256.Sum256([]byte(token))
	return token, hashPrefix + hex.EncodeToString(sum[:])
}
