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
	// homeVariable names the folder into which install.sh puts the broker.
	homeVariable = "CUSTODY_KAFKA_HOME"
	// imageHome is that folder in an image.
	imageHome = "/opt/kafka"
	// jarForm is the name of the jar that tells the release: kafka_2.13-4.1.2.jar.
	jarForm = "kafka_2.13-*.jar"
	// imageWithin bounds the inspection of an image.
	imageWithin = 30 * time.Second
	// shareSince is the release from which share groups are there by default, and
	// give a member no more messages than it asks for.
	shareSince = "4.2"
	// oldest server that can be driven: the first that can be asked about
	// transactions.
	oldest = "3.0"
)

// home is where install.sh has put the broker: libs/ with its jars, format/
// with an empty store, and kafka.jsa, which makes the start faster.
func home() (string, error) {
	if dir := os.Getenv(homeVariable); dir != "" {
		return dir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("kafka: say with %s where the broker is: %w", homeVariable, err)
	}
	return filepath.Join(cache, "custody", "kafka-"+serverVersion), nil
}

// In gives the profile with its server from an image, where it lies in
// imageHome as install.sh puts it on this machine.
func (p Profile) In(image string) (systems.System, error) {
	p.image = image
	return p, nil
}

// Installed says what is missing to run the server, and how to get it.
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
		return fmt.Errorf("kafka: profile %s needs share groups as Kafka has them from %s on; this is %s", p.name, shareSince, release)
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

// command is what runs the server in its folder, into which it puts an empty
// store: here, or in a container when that first begins.
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
	slices.Sort(jars) // the archive was made with them in this order
	archive := []string{"-Xshare:auto", "-XX:SharedArchiveFile=" + filepath.Join(installed, "kafka.jsa"), "-cp", strings.Join(jars, string(os.PathListSeparator))}
	return "java", slices.Concat(jvm, archive, server), os.CopyFS(filepath.Join(dir, "data"), os.DirFS(filepath.Join(installed, "format")))
}
