package nats

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/mod/semver"

	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/systems"
)

// program is the server in an image.
const program = "nats-server"

// The releases that brought what profiles use. An older server reads over
// the settings that it does not know, and says nothing.
const (
	ttlSince     = "2.11"
	persistSince = "2.12"
)

// imageWithin bounds a look into an image.
const imageWithin = 30 * time.Second

// In gives the profile with the nats-server of an image.
func (p Profile) In(image string) (systems.System, error) {
	p.image = image
	return p, nil
}

// Installed says whether the server is there and has what the profile sets.
func (p Profile) Installed() error {
	release, err := p.release()
	if err != nil {
		return err
	}
	if p.persist != jetstream.DefaultPersistMode && older(release, persistSince) {
		return fmt.Errorf("nats: profile %s sets persist_mode, which nats-server has from %s on; image %s has %s", p.name, persistSince, p.image, release)
	}
	return nil
}

// expires says whether the server knows a time to live of single messages.
func (p Profile) expires() bool {
	release, err := p.release()
	return err == nil && !older(release, ttlSince)
}

func older(release, than string) bool { return semver.Compare("v"+release, "v"+than) < 0 }

// releaseForm is in what the server prints: "nats-server: v2.10.27".
var releaseForm = regexp.MustCompile(`\bv(\d\S*)`)

// release is the version of the server.
func (p Profile) release() (string, error) {
	if p.image == "" {
		return server.VERSION, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), imageWithin)
	defer cancel()
	printed, err := containers.ImageVersion(ctx, p.image, program, "--version")
	if err != nil {
		return "", fmt.Errorf("nats: a server from image %s: %w", p.image, err)
	}
	found := releaseForm.FindStringSubmatch(printed)
	if found == nil {
		return "", fmt.Errorf("nats: the server of image %s says %q, which is no version", p.image, printed)
	}
	return found[1], nil
}
