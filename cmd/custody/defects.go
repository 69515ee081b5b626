package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	broker "github.com/custodymq/custody/broker/defects"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	clients "github.com/custodymq/custody/systems/defects"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/zeromq"
	"github.com/custodymq/custody/tasks"
)

type defectFlags struct {
	format, out, system string
	parallel            int
	list                bool
	scale               float64
}

func defectsCommand() *cobra.Command {
	var f defectFlags
	cmd := &cobra.Command{
		Use:   "defects [DEFECT…]",
		Short: "Show that the checklist detects each seeded defect of broker and clients",
		Long: `Switch on seeded defects, one at a time, and run the scenarios that exercise
the guarantee which each must break, until one shows it broken. The reference
broker has defects of its own; those of clients and applications, whose names
begin with client-, are seeded on any system. Exit 0 only if every defect is
caught by the right guarantee.`,
		Example: `  custody defects
  custody defects --list
  custody defects accept-before-persist --format json
  custody defects --system nats`,
		RunE: func(cmd *cobra.Command, args []string) error { return detectDefects(cmd, args, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.format, "format", "text", "text, or json: one list of objects")
	flags.StringVar(&f.out, "out", "", "folder for the evidence (default: a temporary one, removed when all are caught)")
	flags.StringVar(&f.system, "system", "zeromq", "SYSTEM[:PROFILE][@IMAGE]; one without defects of its own gets those of clients")
	flags.IntVar(&f.parallel, "parallel", 2*runtime.NumCPU(), "defects at once")
	flags.BoolVar(&f.list, "list", false, "only list them")
	flags.Float64Var(&f.scale, "scale", runner.DefaultScale, "factor on deadlines, bounds and periods")
	return cmd
}

func detectDefects(cmd *cobra.Command, args []string, f defectFlags) error {
	chosen, err := chooseDefects(args, f.system)
	if err != nil {
		return err
	}
	if f.out != "" {
		entries, err := os.ReadDir(f.out)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return unmeasured{err}
		}
		if len(entries) > 0 {
			return fmt.Errorf("%s is not empty: give another --out", f.out)
		}
	}
	if f.list {
		return printAs(cmd.OutOrStdout(), f.format, chosen, func(w io.Writer) {
			var lines []string
			for _, d := range chosen {
				if d.NotBuilt != "" {
					lines = append(lines, d.Name+"\tnot built\t"+d.NotBuilt)
					continue
				}
				lines = append(lines, d.Name+"\tbreaks "+d.Breaks+"\t"+d.Text)
			}
			columns(w, "", lines)
		})
	}
	if err := knownOutput(f.format); err != nil {
		return err
	}
	if f.parallel < 1 || f.scale <= 0 {
		return errors.New("--parallel and --scale must be positive")
	}
	system, err := registry.Find(f.system, f.scale)
	if err != nil {
		return err
	}
	dir := f.out
	if dir == "" {
		if dir, err = os.MkdirTemp("", "custody-defects-"); err != nil {
			return unmeasured{fmt.Errorf("a folder for the evidence: %w", err)}
		}
	}
	detections := make([]scenarios.Detection, len(chosen))
	errs := make([]error, len(chosen))
	slots := make(chan struct{}, f.parallel)
	var group tasks.Group
	for i, d := range chosen {
		if d.NotBuilt != "" {
			detections[i] = scenarios.Detection{Defect: d.Name, NotBuilt: d.NotBuilt}
			continue
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					errs[i] = tasks.Panic(p)
				}
				<-slots
			}()
			detections[i], errs[i] = scenarios.Detect(cmd.Context(), d.defect(), runner.Options{System: system, Spec: f.system, Seed: 1, Scale: f.scale}, dir)
			fmt.Fprintf(cmd.ErrOrStderr(), "%-36s %s\n", d.Name, verdictOf(detections[i]))
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		if f.out == "" && cmd.Context().Err() != nil {
			err = errors.Join(err, os.RemoveAll(dir)) // interrupted before the directory was printed
		}
		return unmeasured{err}
	}
	return showDetections(cmd, f, dir, detections)
}

func showDetections(cmd *cobra.Command, f defectFlags, dir string, detections []scenarios.Detection) error {
	missed, inapplicable, unbuilt := 0, 0, 0
	for _, c := range detections {
		switch {
		case c.NotBuilt != "":
			unbuilt++
		case c.Inapplicable != "":
			inapplicable++
		case !c.Caught || len(c.Wrong) > 0:
			missed++
		}
	}
	sought := len(detections) - inapplicable - unbuilt
	err := printAs(cmd.OutOrStdout(), f.format, detections, func(w io.Writer) {
		for _, c := range detections {
			if c.NotBuilt != "" {
				fmt.Fprintf(w, "%-36s %s\n", c.Defect, verdictOf(c))
				continue
			}
			fmt.Fprintf(w, "%-36s %-22s %5.1fs  %s\n", c.Defect, verdictOf(c), c.Took.Seconds(), c.Finding)
		}
		fmt.Fprintf(w, "%d of %d caught by the right guarantee", sought-missed, sought)
		if inapplicable > 0 {
			fmt.Fprintf(w, ", %d not applicable", inapplicable)
		}
		if unbuilt > 0 {
			fmt.Fprintf(w, ", %d not built", unbuilt)
		}
		fmt.Fprintln(w)
	})
	if err != nil {
		return err
	}
	if missed > 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "evidence in", dir)
		return exit(guarantees.ExitViolated)
	}
	if f.out == "" {
		if err := os.RemoveAll(filepath.Clean(dir)); err != nil {
			return unmeasured{fmt.Errorf("remove the evidence: %w", err)}
		}
	}
	return nil
}

func verdictOf(c scenarios.Detection) string {
	switch {
	case c.NotBuilt != "":
		return "not built: " + c.NotBuilt
	case c.Inapplicable != "":
		return "not applicable: " + c.Inapplicable
	case c.Caught && len(c.Wrong) > 0:
		return "caught, but wrongly broken too: " + strings.Join(c.Wrong, ", ")
	case c.Caught:
		return "caught by " + c.Breaks + " in " + c.Scenario
	case len(c.By) > 0:
		return "caught by the wrong guarantee: " + strings.Join(c.By, ", ")
	}
	return "missed " + c.Error
}

// referenceBroker is the system with seeded defects of its own.
const referenceBroker = zeromq.Name

// seeded is a defect that can be enabled.
type seeded struct {
	Name     string   `json:"name"`
	Text     string   `json:"text"`
	Breaks   string   `json:"breaks,omitempty"`
	Follows  []string `json:"follows,omitempty"`
	SeenIn   string   `json:"seenIn,omitempty"`
	Shown    string   `json:"-"`
	NotBuilt string   `json:"notBuilt,omitempty"` // why it cannot be enabled
}

func (d seeded) defect() scenarios.SeededDefect {
	return scenarios.SeededDefect{Name: d.Name, Breaks: d.Breaks, Follows: d.Follows, Shown: d.Shown}
}

// seededIn returns the defects that can be enabled in a system.
func seededIn(system string) []seeded {
	var found []seeded
	name, _, _ := strings.Cut(system, ":")
	ofBroker := name == referenceBroker
	if ofBroker {
		for _, d := range broker.All() {
			found = append(found, seeded{Name: d.Name, Text: d.Text, Breaks: d.Breaks, Follows: d.Follows, SeenIn: d.SeenIn, Shown: d.Shown})
		}
		found = append(found, seeded{Name: zeromq.GapDefect, Text: "a commit does not wait for the standby that is said to be synchronous, which is then promoted with a gap",
			Breaks: evidence.NoAcceptedLoss, SeenIn: "the store's server is lost for good, on a profile with a standby", Shown: "node-lost"})
	}
	for _, d := range clients.All() {
		found = append(found, seeded{Name: d.Name, Text: d.Text, Breaks: d.Breaks, Follows: d.Follows, SeenIn: d.SeenIn, Shown: d.Shown})
	}
	if ofBroker {
		for _, d := range broker.NotBuilt() {
			found = append(found, seeded{Name: d.Name, Text: d.Text, NotBuilt: d.Why})
		}
	}
	return found
}

func chooseDefects(names []string, system string) ([]seeded, error) {
	there := seededIn(system)
	if len(names) == 0 {
		return there, nil
	}
	known := make([]string, len(there))
	for i, d := range there {
		known[i] = d.Name
	}
	var chosen []seeded
	for _, name := range names {
		i := slices.Index(known, name)
		if i < 0 {
			return nil, fmt.Errorf("%s has no seeded defect %q%s", system, name, script.Suggest(name, known))
		}
		chosen = append(chosen, there[i])
	}
	return chosen, nil
}
