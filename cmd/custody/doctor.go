package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/registry"
)

// check is one prerequisite of a run. Its error says how to meet it.
type check struct {
	name     string
	optional bool
	look     func() (found string, err error)
}

const (
	enoughSpace = 512 << 20 // bytes, for evidence and stores of a checklist
	// engineTime bounds a Docker engine's answer.
	engineTime = 20 * time.Second
)

func doctorCommand() *cobra.Command {
	var clean bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and find what dead runs left behind",
		Long: `Check what runs need of this machine, and say how to get what is missing. The
reference broker is built in, and so are servers that are Go modules: for these
no Docker, no installed server and no C compiler is needed.

Runs that were killed leave a private folder in the temporary folder, and their
containers go on. --clean removes those whose process is known to be gone. What
may be of a run that lives, in a container with process IDs of its own, say, or
from before the last boot of the machine, is named and left alone.

Exit codes: 0 all that is needed is there · 3 something is missing.`,
		Example: `  custody doctor
  custody doctor --clean`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return examine(cmd, clean) },
	}
	cmd.Flags().BoolVar(&clean, "clean", false, "remove what dead runs have left")
	return cmd
}

// checks lists the prerequisites.
func checks(ctx context.Context) []check {
	return append([]check{
		{"build", false, func() (string, error) {
			v := thisVersion()
			return fmt.Sprintf("custody %s, %s %s, %d cores", v.Custody, v.Go, v.Platform, runtime.NumCPU()), nil
		}},
		{"this program", false, func() (string, error) {
			path, err := os.Executable()
			if err == nil {
				_, err = os.Stat(path)
			}
			if err != nil {
				return "", fmt.Errorf("its file cannot be found, so it cannot be started again as a broker or consumer; install it anew: %w", err)
			}
			return path, nil
		}},
		{"process faults", false, func() (string, error) {
			if runtime.GOOS == "windows" {
				return "", errors.New("kill, pause and shutdown need POSIX signals; run Custody on Linux or macOS, or in WSL")
			}
			return "kill, pause and shutdown", nil
		}},
		{"temporary folder", false, func() (string, error) { return writable(os.TempDir(), "set TMPDIR to a folder of yours") }},
		{"this folder", false, func() (string, error) { return writable(".", "change to a folder of yours, or use --out") }},
		{"free disk", false, func() (string, error) {
			free, err := freeDisk(os.TempDir())
			switch {
			case err != nil:
				return "", fmt.Errorf("cannot be read: %w", err)
			case free == math.MaxUint64:
				return "not known on this system", nil
			case free < enoughSpace:
				return "", fmt.Errorf("%d MiB, less than the %d MiB that a checklist may take; free some, or set TMPDIR to another disk", free>>20, enoughSpace>>20)
			}
			return fmt.Sprintf("%d MiB", free>>20), nil
		}},
		{"loopback", false, func() (string, error) {
			port, err := process.FreePort()
			if err != nil {
				return "", fmt.Errorf("no port can be taken on 127.0.0.1; allow it in the sandbox or container: %w", err)
			}
			return port.Address + " can be taken", port.Close()
		}},
		{"docker", true, func() (string, error) {
			ctx, cancel := context.WithTimeout(ctx, engineTime)
			defer cancel()
			engine, err := process.Engine(ctx)
			if err != nil {
				return "", fmt.Errorf("none; only to test servers that run from images: %w", err)
			}
			return engine, nil
		}},
		{"browser", true, func() (string, error) {
			for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "firefox", "xdg-open", "open"} {
				if path, err := exec.LookPath(name); err == nil {
					return path, nil
				}
			}
			return "", errors.New("none found; only to look at reports in HTML, which can be opened on any machine")
		}},
	}, systemChecks()...)
}

// systemChecks report whether each system is installed. Only the built-in ones
// are required.
func systemChecks() []check {
	var list []check
	var last string
	for _, s := range registry.Systems(1) {
		d := s.Describe()
		if d.System == last {
			continue
		}
		last = d.System
		list = append(list, check{d.System, true, func() (string, error) {
			need, ok := s.(systems.Installed)
			if !ok {
				return "built in: " + versionsOf(d.Versions), nil
			}
			if err := need.Installed(); err != nil {
				return "", fmt.Errorf("%w (make brokers installs all)", err)
			}
			return versionsOf(d.Versions), nil
		}})
	}
	return list
}

func versionsOf(versions map[string]string) string {
	var texts []string
	for _, part := range slices.Sorted(maps.Keys(versions)) {
		texts = append(texts, part+" "+versions[part])
	}
	return strings.Join(texts, ", ")
}

func examine(cmd *cobra.Command, clean bool) error {
	w := cmd.OutOrStdout()
	missing := 0
	for _, c := range checks(cmd.Context()) {
		found, err := c.look()
		state := "ok"
		switch {
		case err != nil && c.optional:
			state, found = "note", err.Error()
		case err != nil:
			state, found = "MISSING", err.Error()
			missing++
		}
		fmt.Fprintf(w, "%-8s %-17s %s\n", state, c.name, found)
	}
	if err := examineLeftovers(cmd, clean); err != nil {
		return unmeasured{err}
	}
	if missing > 0 {
		return exit(guarantees.ExitUnmeasured)
	}
	return nil
}

// examineLeftovers reports what dead runs have left behind and, with clean,
// removes it. What may belong to a live run is reported but kept.
func examineLeftovers(cmd *cobra.Command, clean bool) error {
	left, err := process.Folders()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), engineTime)
	defer cancel()
	if _, err := process.Engine(ctx); err == nil { // if there is none, systemChecks has reported it
		containers, err := process.Containers(ctx)
		if err != nil {
			return err
		}
		left = append(left, containers...)
	}
	tell := func(state, text string) {
		fmt.Fprintf(cmd.OutOrStdout(), "%-8s %-17s %s\n", state, "left behind", text)
	}
	if len(left) == 0 {
		tell("ok", "nothing")
	}
	for _, l := range left {
		switch {
		case l.State != process.Dead:
			tell("note", l.Name+" is left alone, for its run may live: "+l.Why+"; remove it by hand if it does not")
		case !clean:
			tell("note", l.Name+" of a dead run; custody doctor --clean removes it")
		default:
			if err := l.Remove(ctx); err != nil {
				return fmt.Errorf("remove what a dead run has left: %w", err)
			}
			tell("removed", l.Name)
		}
	}
	return nil
}

func writable(dir, mend string) (string, error) {
	f, err := os.CreateTemp(dir, "custody-doctor-")
	if err == nil {
		err = errors.Join(f.Close(), os.Remove(f.Name()))
	}
	if err != nil {
		return "", fmt.Errorf("cannot be written; %s: %w", mend, err)
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return path + " can be written", nil
}
