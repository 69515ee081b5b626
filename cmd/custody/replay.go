package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems/adapter"
	"github.com/custodymq/custody/systems/external"
	"github.com/custodymq/custody/systems/registry"
)

func replayCommand() *cobra.Command {
	var out, profile, command string
	var allowRemote bool
	cmd := &cobra.Command{
		Use:   "replay RUN",
		Short: "Run a saved script again and compare the verdicts",
		Long: `Run the script of a saved run again, with its system, profile, seed, scale and
seeded defect, and compare the verdicts. Nothing is overwritten: the new run goes
to RUN-replay-1, RUN-replay-2 and so on.

On a real system a seed fixes the workload and the faults, not the scheduling:
verdicts are compared, not counts, times or event numbers.

A saved run may be somebody else's, so nothing that it names is started: a server
of your own is described by a file, which says what commands start and kill it,
and that file is named here with --profile, never by the evidence. So is the
command of an adapter of your own, with --adapter.

Exit codes: 1 where the verdicts differ, 3 where the saved evidence is damaged or
has no end, otherwise that of the new run.`,
		Example: `  custody replay custody-runs/20260102-150405/ack-lost
  custody replay ack-lost --profile staging.yaml
  custody replay ack-lost --out ack-lost-again`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("replay takes the folder of one run, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return replay(cmd, args[0], out, profile, command, allowRemote)
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "folder for the new evidence (default RUN-replay-N)")
	cmd.Flags().StringVar(&profile, "profile", "", "FILE.yaml of the server of your own that the run was made on")
	cmd.Flags().StringVar(&command, "adapter", "", "COMMAND of the adapter of your own that the run was made with")
	cmd.Flags().BoolVar(&allowRemote, "allow-remote", false, remoteUsage)
	return cmd
}

func replay(cmd *cobra.Command, dir, out, profile, command string, allowRemote bool) error {
	if profile != "" && !external.IsFile(profile) {
		return errors.New("--profile takes a file that ends in .yaml or .yml; the profile of an adapter is taken from the run")
	}
	options, err := saved(dir, profile, command)
	if err != nil {
		return unmeasured{fmt.Errorf("replay: %w", err)}
	}
	if out == "" {
		out, err = freshFolder(filepath.Clean(dir) + "-replay-")
	} else {
		err = mustBeEmpty(out)
	}
	if err != nil {
		return unmeasured{fmt.Errorf("replay: a folder for the new run (choose one with --out): %w", err)}
	}
	options.Dir = out
	if allowRemote {
		options.System = external.AllowRemote(options.System)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "replaying %s on %s, seed %d, into %s\n", options.Scenario.Name, options.Spec, options.Seed, out)
	judgement, err := scenarios.Run(cmd.Context(), options)
	var usage *runner.UsageError
	if errors.As(err, &usage) || errors.Is(err, context.Canceled) {
		return unmeasured{fmt.Errorf("replay: %w", err)}
	}
	outcome := scenarios.Outcome{Name: options.Scenario.Name, Dir: out, Judgement: judgement, Err: err}
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "custody: %s: could not measure: %s\n", outcome.Name, firstLine(err))
	}
	differences, err := compare(dir, out)
	if err != nil {
		return unmeasured{fmt.Errorf("replay: compare: %w", err)}
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s on %s: %s\n", outcome.Name, options.Spec, reports.Visible(judgement.Why))
	if len(differences) > 0 {
		fmt.Fprintf(w, "differences in verdicts: %d\n", len(differences))
		for _, d := range differences {
			fmt.Fprintf(w, "  %s\n", d)
		}
		return exit(guarantees.ExitViolated)
	}
	fmt.Fprintln(w, "no difference in verdicts")
	return exitOf(scenarios.Exit([]scenarios.Outcome{outcome}))
}

// saved returns the options of the run in dir.
func saved(dir, profile, command string) (runner.Options, error) {
	run, h, err := script.OpenRun(dir)
	if err != nil {
		return runner.Options{}, err
	}
	if h.Damage != "" {
		return runner.Options{}, fmt.Errorf("%s: %s", dir, h.Damage)
	}
	text, err := run.Script()
	if err != nil {
		return runner.Options{}, err
	}
	scenario, err := script.Parse(filepath.Join(dir, "script"), string(text))
	if err != nil {
		return runner.Options{}, err
	}
	m := run.Manifest()
	spec, err := specToReplay(dir, m, profile, command)
	if err != nil {
		return runner.Options{}, err
	}
	system, err := registry.Find(spec, m.Scale)
	if err != nil {
		return runner.Options{}, err
	}
	return runner.Options{System: system, Spec: spec, Scenario: scenario, Seed: m.Seed, Scale: m.Scale, Defect: m.Defect}, nil
}

// specToReplay returns the spec of the system to replay. From the manifest it
// takes only the names of an adapter and its profile: a profile file could run
// any command, and an image any program.
func specToReplay(dir string, m evidence.Manifest, profile, command string) (string, error) {
	if profile != "" {
		inside, err := isInside(profile, dir)
		if err == nil && inside {
			err = fmt.Errorf("--profile %s lies in the folder of the run, and evidence starts nothing: read it, copy it elsewhere, and name the copy", profile)
		}
		return profile, err
	}
	switch {
	case command != "":
		return adapter.Spec(command, m.Profile.Name), nil
	case adapter.IsSpec(m.Spec):
		return "", fmt.Errorf("it was made with the adapter %q, and a run's own word for it starts nothing: name the command with --adapter COMMAND", m.Spec)
	case external.IsFile(m.Spec):
		return "", fmt.Errorf("it was made on a server that %q describes, and a run's own word for it starts nothing: name the file with --profile FILE.yaml", m.Spec)
	}
	for _, s := range registry.Systems(m.Scale) {
		if d := s.Describe(); d.System == m.System && d.Profile.Name == m.Profile.Name {
			return profileName(d), nil
		}
	}
	return "", fmt.Errorf("this custody has no system %q with a profile %q: see custody list profiles, or name the file of a server of your own with --profile FILE.yaml", m.System, m.Profile.Name)
}

// isInside reports whether a file lies in a directory once symbolic links are
// resolved.
func isInside(file, dir string) (bool, error) {
	for _, path := range []*string{&file, &dir} {
		real, err := filepath.EvalSymlinks(*path)
		if err == nil {
			real, err = filepath.Abs(real)
		}
		if err != nil {
			return false, err
		}
		*path = real
	}
	below, err := filepath.Rel(dir, file)
	return err == nil && filepath.IsLocal(below), nil
}

// maxReplays bounds the replays kept beside a run.
const maxReplays = 10_000

// freshFolder creates the first of these directories that does not exist, which
// reserves it.
func freshFolder(prefix string) (string, error) {
	for n := 1; n <= maxReplays; n++ {
		dir := fmt.Sprintf("%s%d", prefix, n)
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("%s1 to %d exist", prefix, maxReplays)
}

// mustBeEmpty prevents a replay from taking another run for its own.
func mustBeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty: it holds %s", dir, entries[0].Name())
	}
	return err
}

func compare(a, b string) ([]reports.Difference, error) {
	left, err := reports.Load([]string{a})
	if err != nil {
		return nil, err
	}
	right, err := reports.Load([]string{b})
	if err != nil {
		return nil, err
	}
	return reports.Compare(left, right), nil
}
