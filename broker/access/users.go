// Package access says who may do what: users, the tokens and certificates by
// which they are known, and the topics that they may publish and subscribe to.
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

// MinToken is how many bytes a token has at least. What keeps a guesser out is
// that there are too many tokens to try, not the pace at which one may try.
const MinToken = 16

// Users are the users of a broker. They do not change, and are safe for
// concurrent use: whoever changes them replaces them all.
type Users struct {
	byToken       map[[sha256.Size]byte]*User
	byCertificate map[string]*User
}

// User is one of them.
type User struct {
	Name        string
	token       [sha256.Size]byte
	hasToken    bool
	Certificate string   // name in a client certificate (common name, or a DNS name) that stands for the token
	Publish     []string // topic filters of what may be published
	Subscribe   []string // topic filters of what may be subscribed to
	Administer  bool
}

// Known finds who has shown this token, or, without a token, this certificate,
// which was verified. Nil if it is nobody.
//
// Tokens are kept as SHA-256, so that a file that is read by others gives away
// none. A slow hash such as bcrypt defends short passwords against trying them
// all; a random token of 16 bytes needs no such defence, and a slow hash at every
// Hello would let strangers burn the broker's time. For the same reason a lookup
// by the hash is no leak: what its timing tells of a hash leads to no token.
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

// Same says whether the user is known by the same marks and may do the same.
func (u *User) Same(other *User) bool {
	return other != nil && u.Name == other.Name && u.hasToken == other.hasToken && u.token == other.token &&
		u.Certificate == other.Certificate && u.Administer == other.Administer &&
		slices.Equal(u.Publish, other.Publish) && slices.Equal(u.Subscribe, other.Subscribe)
}

// Has says whether this user, as it is, is one of them.
func (u *Users) Has(user *User) bool {
	if user.hasToken {
		return user.Same(u.byToken[user.token])
	}
	return user.Same(u.byCertificate[user.Certificate])
}

// MayPublish says whether a message may be published to the topic.
func (u *User) MayPublish(topic string) bool {
	return slices.ContainsFunc(u.Publish, func(filter string) bool { return covers(filter, topic) })
}

// MaySubscribe says whether everything that the filter matches may be subscribed
// to. One permission must cover the whole of it: part of a subscription is never
// granted.
func (u *User) MaySubscribe(filter string) bool {
	return slices.ContainsFunc(u.Subscribe, func(permitted string) bool { return covers(permitted, filter) })
}

// covers says whether every topic that the filter takes is taken by the
// permission. Both are filters of MQTT: + is one level, # the parent and all
// below, and neither at the beginning takes a topic that begins with $.
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

// Equal compares two tokens in a time that tells neither where they differ nor
// how long the right one is.
func Equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// CheckToken refuses a token that could be guessed because it is short.
func CheckToken(token string) error {
	if len(token) < MinToken {
		return fmt.Errorf("the token has %d bytes and must have at least %d: take a random one, such as head -c 24 /dev/urandom | base64 prints", len(token), MinToken)
	}
	return nil
}

// NewToken draws a token, and gives it with its hash as the file of users has it.
func NewToken() (token, hash string) {
	token = rand.Text() // 26 characters, 130 bits
	sum := sha256.Sum256([]byte(token))
	return token, hashPrefix + hex.EncodeToString(sum[:])
}
