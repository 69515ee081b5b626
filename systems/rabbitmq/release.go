package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// releaseFolders hold one release each: "rabbitmq_server-3.10.8".
const releaseFolders = "/usr/lib/rabbitmq/lib/rabbitmq_server-*"

// oldest supported server: the first whose quorum queues support these queries.
const oldest = "3.10"

// limitSince is the first release with a default delivery limit of quorum
// queues (RabbitMQ 4.0 Release Notes: Quorum Queues: Default Delivery Limit):
// the first delivery and this many more.
const (
	limitSince   = "4.0"
	defaultLimit = 20
)

func drives(version string) error {
	if err := systems.TooOld("rabbitmq-server", version, oldest); err != nil {
		return fmt.Errorf("rabbitmq: %w", err)
	}
	return nil
}

// imageWithin bounds the inspection of an image.
const imageWithin = 30 * time.Second

// In returns the profile with its server from an image that has RabbitMQ where
// Debian installs it.
func (p Profile) In(image string) (systems.System, error) {
	p.image = image
	return p, nil
}

// Installed reports what is missing to run the server.
func (p Profile) Installed() error {
	version, err := p.release()
	return errors.Join(err, drives(version))
}

// release returns the server's version.
func (p Profile) release() (string, error) {
	if p.at.Address != "" {
		return p.reported, nil
	}
	if p.image != "" {
		ctx, cancel := context.WithTimeout(context.Background(), imageWithin)
		defer cancel()
		folders, err := process.ImageVersion(ctx, p.image, "sh", "-c", "ls -d "+releaseFolders)
		if err != nil {
			return "", fmt.Errorf("rabbitmq: no server as Debian installs it in image %s: %w", p.image, err)
		}
		return newest(strings.Fields(folders))
	}
	if _, err := os.Stat(serverProgram); err != nil {
		return "", fmt.Errorf("rabbitmq: no RabbitMQ server: apt-get install rabbitmq-server: %w", err)
	}
	folders, err := filepath.Glob(releaseFolders)
	if err != nil {
		return "", err
	}
	return newest(folders)
}

// newest version among the sorted release directories.
func newest(folders []string) (string, error) {
	if len(folders) == 0 {
		return "", errors.New("rabbitmq: no release in " + releaseFolders)
	}
	_, version, _ := strings.Cut(path.Base(folders[len(folders)-1]), "-")
	return version, nil
}

// versions of server and client, as far as known.
func (p Profile) versions() map[string]string {
	found := make(map[string]string)
	if version, err := p.release(); err == nil && version != "" { // otherwise reported by the server
		found["rabbitmq-server"] = version
	}
	if v, ok := client.NewConnectionProperties()["version"].(string); ok {
		found["amqp091-go"] = v
	}
	return found
}
