package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

const (
	// homeVariable is the directory into which install.sh puts the broker.
	homeVariable = "CUSTODY_KAFKA_HOME"
	// imageHome is that directory in an image.
	imageHome = "/opt/kafka"
	// jarForm matches the jar whose name has the release: kafka_2.13-4.1.2.jar.
	jarForm = "kafka_2.13-*.jar"
	// imageWithin bounds the inspection of an image.
	imageWithin = 30 * time.Second
	// shareSince is the first release with share groups by default that give a
	// member no more messages than it asks for.
	shareSince = "4.2"
	// oldest supported broker: the first that describes transactions.
	oldest = "3.0"
)

// home is where install.sh put the broker: libs/ with its jars, format/ with an
// empty store, and kafka.jsa, a class archive that speeds up the start.
func home() (string, error) {
	if dir := os.Getenv(homeVariable); dir != "" {
		return dir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("kafka: set %s to the directory of the broker: %w", homeVariable, err)
	}
	return filepath.Join(cache, "custody", "kafka-"+serverVersion), nil
}

// In returns the profile with its broker from an image that has it in
// imageHome, laid out as by install.sh.
func (p Profile) In(image string) (systems.System, error) {
	p.image = image
	return p, nil
}

// Installed reports what is missing to run the broker and how to get it.
func (p Profile) Installed() error {
	if p.image != "" {
		release, err := p.release()
		return errors.Join(err, p.drives(release))
	}
	if _, err := exec.LookPath("java"); err != nil {
		return fmt.Errorf("kafka: no Java: apt-get install openjdk-17-jre-headless: %w", err)
	}
	dir, err := home()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "format", "meta.properties")); err != nil {
		return fmt.Errorf("kafka: no broker in %s: make brokers (systems/kafka/install.sh): %w", dir, err)
	}
	return nil
}

// drives returns an error if a server of this release cannot serve the profile.
func (p Profile) drives(release string) error {
	if err := systems.TooOld("kafka", release, oldest); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	if p.share && systems.Older(release, shareSince) {
		return fmt.Errorf("kafka: profile %s needs the share groups of Kafka %s or later; this is %s", p.name, shareSince, release)
	}
	return nil
}

// release returns the server's version.
func (p Profile) release() (string, error) {
	if p.image == "" {
		return serverVersion, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), imageWithin)
	defer cancel()
	jar, err := process.ImageVersion(ctx, p.image, "sh", "-c", "cd "+imageHome+"/libs && ls "+jarForm)
	if err != nil {
		return "", fmt.Errorf("kafka: no server in %s of image %s: %w", imageHome, p.image, err)
	}
	_, version, _ := strings.Cut(strings.TrimSuffix(jar, ".jar"), "-")
	return version, nil
}

// command runs the broker in its directory, into which it first copies an empty
// store: here, or at the container's start.
func (p Profile) command(dir string) (path string, args []string, err error) {
	// A small heap, and the collector and compiler that start fastest.
	jvm := []string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable",
		"-Dlog4j2.configurationFile=" + filepath.Join(dir, "log4j2.properties")}
	server := []string{"kafka.Kafka", filepath.Join(dir, "server.properties")}
	if p.image != "" {
		const first = "test -e data || cp -R " + imageHome + "/format data; exec java \"$@\""
		return "sh", slices.Concat([]string{"-c", first, "sh"}, jvm, []string{"-cp", imageHome + "/libs/*"}, server), nil
	}
	installed, err := home()
	if err != nil {
		return "", nil, err
	}
	jars, err := filepath.Glob(filepath.Join(installed, "libs", "*.jar"))
	if err != nil || len(jars) == 0 {
		return "", nil, errors.Join(fmt.Errorf("kafka: no jars in %s: make brokers", installed), err)
	}
	slices.Sort(jars) // the class archive requires this order
	archive := []string{"-Xshare:auto", "-XX:SharedArchiveFile=" + filepath.Join(installed, "kafka.jsa"), "-cp", strings.Join(jars, string(os.PathListSeparator))}
	return "java", slices.Concat(jvm, archive, server), os.CopyFS(filepath.Join(dir, "data"), os.DirFS(filepath.Join(installed, "format")))
}
