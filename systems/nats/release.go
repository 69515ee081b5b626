package nats

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// program is the server's name in an image.
const program = "nats-server"

// Releases that introduced what profiles use. An older server silently ignores
// settings that it does not know.
const (
	syncSince    = "2.10"
	ttlSince     = "2.11"
	persistSince = "2.12"
)

// oldest supported server: the first whose API creates a consumer by name and
// filter.
const oldest = "2.9"

// imageWithin bounds the inspection of an image.
const imageWithin = 30 * time.Second

// In returns the profile with the nats-server of an image.
func (p Profile) In(image string) (systems.System, error) {
	p.image = image
	return p, nil
}

// Installed reports whether the server is available and supports the profile's
// settings.
func (p Profile) Installed() error {
	release, err := p.release()
	if err != nil {
		return err
	}
	return p.drives(release)
}

// drives returns an error if a server of this release cannot serve the profile.
func (p Profile) drives(release string) error {
	if err := systems.TooOld(program, release, oldest); err != nil {
		return fmt.Errorf("nats: %w", err)
	}
	if p.persist != jetstream.DefaultPersistMode && systems.Older(release, persistSince) {
		return fmt.Errorf("nats: profile %s sets persist_mode, which needs nats-server %s or later; this is %s", p.name, persistSince, release)
	}
	if p.sync == syncAlways && p.at.Address == "" && systems.Older(release, syncSince) { // an external server is configured by its owner
		return fmt.Errorf("nats: profile %s sets sync_interval, which needs nats-server %s or later; this is %s: use file-default-sync", p.name, syncSince, release)
	}
	return nil
}

// expires reports whether the server has a time to live per message.
func (p Profile) expires() bool {
	release, err := p.release()
	return err == nil && !systems.Older(release, ttlSince)
}

// releaseForm matches the version that the server prints: "nats-server:
// v2.10.27".
var releaseForm = regexp.MustCompile(`\bv(\d\S*)`)

// release returns the server's version.
func (p Profile) release() (string, error) {
	switch {
	case p.reported != "":
		return p.reported, nil
	case p.image == "":
		return server.VERSION, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), imageWithin)
	defer cancel()
	printed, err := process.ImageVersion(ctx, p.image, program, "--version")
	if err != nil {
		return "", fmt.Errorf("nats: a server from image %s: %w", p.image, err)
	}
	found := releaseForm.FindStringSubmatch(printed)
	if found == nil {
		return "", fmt.Errorf("nats: the server of image %s reports no version: %q", p.image, printed)
	}
	return found[1], nil
}
