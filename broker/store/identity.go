package store

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// IdentityVariable names the environment variable of the storage identity.
const IdentityVariable = "CUSTODY_STORAGE_IDENTITY"

// IdentitySource returns the storage identity, the half of a partition that
// distinguishes brokers of the same name. It is read at the first call and then
// fixed: a variable or host name that changes must not switch a running broker to
// other rows.
type IdentitySource func() (string, error)

// Identity reads the environment variable or, if it is not set, the host name.
// Pass os.LookupEnv and os.Hostname.
func Identity(env func(string) (string, bool), hostname func() (string, error)) IdentitySource {
	return sync.OnceValues(func() (string, error) {
		if id, set := env(IdentityVariable); set {
			// A variable that is set but blank is a deployment mistake. Falling
			// back to the host name would silently hide the rows.
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

// ProcessIdentity returns this process's identity, read once.
var ProcessIdentity = Identity(os.LookupEnv, os.Hostname)
