package redis

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// program is the server's name on Debian.
const program = "redis-server"

// release is the server that a profile runs: Redis or Valkey.
type release struct{ program, version string }

// oldest supported server: the first with XAUTOCLAIM. Valkey reports the Redis
// version with which it is compatible, which is later.
const oldest = "6.2"

func (r release) drives() error {
	if err := systems.TooOld(r.program, r.version, oldest); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

const (
	installedWithin = 5 * time.Second  // to print the installed server's version
	imageWithin     = 30 * time.Second // the same from a container
)

// In returns the profile with its server from an image of Redis or Valkey.
func (p Profile) In(image string) (systems.System, error) {
	p.image = image
	p.release = func() release {
		r, err := imageRelease(image)
		if err != nil {
			return release{program, "not known"} // Installed reports why
		}
		return r
	}
	return p, nil
}

// Installed reports whether the server, or its image, is on this machine.
func (p Profile) Installed() error {
	if p.image != "" {
		r, err := imageRelease(p.image)
		return errors.Join(err, r.drives())
	}
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("redis: %s is missing: apt-get install %s, or make brokers", program, program)
	}
	return p.release().drives()
}

// installedRelease runs the installed server for its version.
func installedRelease() release {
	ctx, cancel := context.WithTimeout(context.Background(), installedWithin)
	defer cancel()
	printed, err := exec.CommandContext(ctx, program, "--version").Output()
	if r, ok := releaseIn(string(printed)); ok && err == nil {
		return r
	}
	return release{program, "not installed"}
}

// imageRelease runs the server of an image, under either name, for its version.
func imageRelease(image string) (release, error) {
	ctx, cancel := context.WithTimeout(context.Background(), imageWithin)
	defer cancel()
	printed, err := process.ImageVersion(ctx, image, "sh", "-c", "redis-server --version || valkey-server --version")
	if err != nil {
		return release{}, fmt.Errorf("redis: a server from image %s: %w", image, err)
	}
	r, ok := releaseIn(printed)
	if !ok {
		return release{}, fmt.Errorf("redis: the server of image %s reports no version: %q; choose an image of Redis or Valkey", image, printed)
	}
	return r, nil
}

// releaseForm matches the version that a server prints: "Redis server v=7.0.15
// sha=…".
var releaseForm = regexp.MustCompile(`(Redis|Valkey) server v=(\S+)`)

func releaseIn(printed string) (release, bool) {
	found := releaseForm.FindStringSubmatch(printed)
	if found == nil {
		return release{}, false
	}
	return release{strings.ToLower(found[1]) + "-server", found[2]}, true
}
