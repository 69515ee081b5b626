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
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
)

// mosquitto is Eclipse Mosquitto.
type mosquitto struct {
	image    string             // container image; empty: the installed server
	settings []evidence.Setting // lines of its configuration
}

// oldestMosquitto is the oldest supported server: the first that binds its
// listeners to the given addresses only.
const oldestMosquitto = "2.0"

func (mosquitto) oldest() map[string]string { return map[string]string{"mosquitto": oldestMosquitto} }

func (mosquitto) system() string { return "mqtt-mosquitto" }

func (m mosquitto) in(image string) (server, error) {
	m.image = image
	return m, nil
}

// path of the program, which Debian installs outside an ordinary user's PATH.
func (m mosquitto) path() (string, error) {
	if m.image != "" {
		return "mosquitto", nil
	}
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
	if m.image != "" {
		if _, err := m.usage(); err != nil {
			return fmt.Errorf("mqtt: mosquitto from image %s: %w", m.image, err)
		}
	} else if _, err := m.path(); err != nil {
		return fmt.Errorf("mosquitto is not installed: apt-get install mosquitto: %w", err)
	}
	return drives(m, m.versions()["mosquitto"])
}

var versionLine = regexp.MustCompile(`mosquitto version (\S+)`)

func (m mosquitto) versions() map[string]string {
	versions := map[string]string{}
	usage, err := m.usage()
	if found := versionLine.FindStringSubmatch(usage); err == nil && found != nil {
		versions["mosquitto"] = found[1]
	}
	return versions
}

// imageWithin bounds the inspection of an image.
const imageWithin = 30 * time.Second

// usage is the program's help, which starts with its version. The program then
// exits with a failure.
func (m mosquitto) usage() (string, error) {
	if m.image != "" {
		ctx, cancel := context.WithTimeout(context.Background(), imageWithin)
		defer cancel()
		return process.ImageVersion(ctx, m.image, "sh", "-c", "command -v mosquitto && { mosquitto -h || true; }")
	}
	path, err := m.path()
	if err != nil {
		return "", err
	}
	printed, _ := exec.Command(path, "-h").Output()
	return string(printed), nil
}

func (mosquitto) hides() string {
	return "Mosquitto shows its messages only in the file that it saves, and to make it save would change what outlives a kill"
}

// mosquittoText is the configuration that all profiles share. Started by root,
// Mosquitto by default changes its user, can then no longer write its database,
// and only logs that.
const mosquittoText = `listener %s 127.0.0.1
allow_anonymous true
user root
persistence true
persistence_location %s/
log_dest stderr
`

func (m mosquitto) prepare(p Profile, address, dir string) (process.StartFunc, func(context.Context) ([]kept, error), error) {
	path, err := m.path()
	if err != nil {
		return nil, nil, m.installed()
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, nil, fmt.Errorf("mqtt: address of the server: %w", err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, mosquittoText, port, dir)
	for _, s := range m.settings {
		fmt.Fprintf(&text, "%s %s\n", s.Name, s.Value)
	}
	file := filepath.Join(dir, "mosquitto.conf")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return nil, nil, fmt.Errorf("mqtt: configuration of the server: %w", err)
	}
	return func(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
		process, err := process.StartProgram(ctx, process.ProgramOptions{
			Image:  m.image,
			Path:   path,
			Args:   []string{"-c", file},
			Dir:    dir,
			Log:    log,
			Ready:  func(ctx context.Context) error { return p.clear(ctx, address, "harness") },
			Exited: exited,
		})
		if err != nil {
			return nil, nil, fmt.Errorf("mqtt: start the server on %s: %w", address, err)
		}
		return process, nil, nil
	}, nil, nil
}
