package store

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// IdentityVariable names the environment variable of the storage identity.
const IdentityVariable = "CUSTODY_STORAGE_IDENTITY"

// IdentitySource gives the storage identity, the half of a partition that tells
// apart brokers of one name. It is read at the first call and frozen: a variable
// or host name that changes under a running broker must not move it to other rows.
type IdentitySource func() (string, error)

// Identity reads the environment variable, or the host name where it is not
// set. Pass os.LookupEnv and os.Hostname.
func Identity(env func(string) (string, bool), hostname func() (string, error)) IdentitySource {
	return sync.OnceValues(func() (string, error) {
		if id, set := env(IdentityVariable); set {
			// Set but blank is a slip in a deployment. The host name in its
			// place would hide the rows without a word.
			if id == "" || strings.TrimSpace(id) != id {
				return "", fmt.Errorf("store: %s is %q: empty, or with blanks around it; correct or unset it", IdentityVariable, id)
			}
			return id, nil
		}
		host, err := hostname()
		if err != nil {
			return "", fmt.Errorf("store: no storage identity: %s is not set and the host has no name: %w", IdentityVariable, err)
		}
		if host == "" {
			return "", fmt.Errorf("store: no storage identity: the host's name is empty; set %s", IdentityVariable)
		}
		return host, nil
	})
}

// ProcessIdentity is this process's identity, read once.
var ProcessIdentity = Identity(os.LookupEnv, os.Hostname)
