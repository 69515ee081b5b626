package mqtt

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/evidence"
)

// mosquitto is Eclipse Mosquitto, as the machine has it installed.
type mosquitto struct {
	settings []evidence.Setting // lines of its configuration
}

func (mosquitto) system() string { return "mqtt-mosquitto" }

// path of the program: Debian keeps it where an ordinary user's PATH has no entry.
func (mosquitto) path() (string, error) {
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/mosquitto")
	}
	return path, err
}

func (m mosquitto) shown() []evidence.Setting {
	return append([]evidence.Setting{{Name: "persistence", Value: "true"}}, m.settings...)
}

func (m mosquitto) installed() error {
	if _, err := m.path(); err != nil {
		return fmt.Errorf("mosquitto is not installed: apt-get install mosquitto: %w", err)
	}
	return nil
}

var versionLine = regexp.MustCompile(`mosquitto version (\S+)`)

func (m mosquitto) versions() map[string]string {
	versions := map[string]string{}
	path, err := m.path()
	if err != nil {
		return versions
	}
	// It prints its version and its usage, and ends as if that were a failure.
	usage, _ := exec.Command(path, "-h").Output()
	if found := versionLine.FindSubmatch(usage); found != nil {
		versions["mosquitto"] = string(found[1])
	}
	return versions
}

// mosquittoText is the configuration that all profiles share. Started by root,
// Mosquitto changes its user by default, can no longer write its database, and
// only logs that.
const mosquittoText = `listener %s 127.0.0.1
allow_anonymous true
user root
persistence true
persistence_location %s/
log_dest stderr
`

func (m mosquitto) prepare(p Profile, address, dir string) (containers.StartFunc, error) {
	path, err := m.path()
	if err != nil {
		return nil, m.installed()
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("mqtt: address of the server: %w", err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, mosquittoText, port, dir)
	for _, s := range m.settings {
		fmt.Fprintf(&text, "%s %s\n", s.Name, s.Value)
	}
	file := filepath.Join(dir, "mosquitto.conf")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return nil, fmt.Errorf("mqtt: configuration of the server: %w", err)
	}
	return func(ctx context.Context, log io.Writer, exited func(containers.Exit)) (containers.Process, string, error) {
		process, err := containers.StartProgram(ctx, containers.ProgramOptions{
			Path:   path,
			Args:   []string{"-c", file},
			Log:    log,
			Ready:  func(ctx context.Context) error { return p.ready(ctx, address) },
			Exited: exited,
		})
		if err != nil {
			return nil, "", fmt.Errorf("mqtt: start the server on %s: %w", address, err)
		}
		return process, "", nil
	}, nil
}
