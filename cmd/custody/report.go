package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
)

func reportCommand() *cobra.Command {
	var format, out string
	cmd := &cobra.Command{
		Use:   "report RUN…",
		Short: "Render finished runs for people or programs",
		Long: `Render finished runs. RUN is the folder of a run, or a folder that holds several.
The verdicts are computed from the evidence, and a saved verdict.json is neither
read nor written: the same evidence gives the same bytes. A run that lies in two
folders is counted once.

A file is written whole or not at all. The exit code says whether the report was
written, not what it says: custody judge gives the code of the verdicts. It is 3
where the evidence of a run is damaged or has no end: that run is shown, and no
verdict is given on it.`,
		Example: `  custody report custody-runs/20260102-150405
  custody report custody-runs/20260102-150405 --format html --out report.html
  custody report ack-lost broker-killed --format junit --out junit.xml`,
		Args: atLeastOneRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := findFormat(format)
			if err != nil {
				return err
			}
			dirs, err := runFolders(args)
			if err != nil {
				return err
			}
			report, err := reports.Load(dirs)
			if err != nil {
				return unmeasured{err}
			}
			write := func(w io.Writer) error { return f.Write(w, report) }
			if out == "" || out == "-" {
				err = write(cmd.OutOrStdout())
			} else {
				err = writeWhole(out, write)
			}
			if err != nil {
				return unmeasured{fmt.Errorf("write the report: %w", err)}
			}
			return warn(cmd, report)
		},
	}
	cmd.Flags().StringVar(&format, "format", "terminal", "terminal, json, junit, markdown or html")
	cmd.Flags().StringVar(&out, "out", "-", "file to write; - is standard output")
	return cmd
}

// warn reports copies and damaged evidence. Damage is a failure to measure.
func warn(cmd *cobra.Command, r reports.Report) error {
	for _, c := range r.Copies {
		fmt.Fprintln(cmd.ErrOrStderr(), "custody:", c)
	}
	damaged := r.Damaged()
	for _, d := range damaged {
		fmt.Fprintln(cmd.ErrOrStderr(), "custody: no verdict:", d)
	}
	if len(damaged) > 0 {
		return exit(guarantees.ExitUnmeasured)
	}
	return nil
}

func atLeastOneRun(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("say which run: the folder of a run, or one that holds several, as in custody-runs/20260102-150405")
	}
	return nil
}

// runDepth is how deep runs are searched for below a directory: custody-runs/,
// a time, a scenario.
const runDepth = 2

// runFolders returns the run directories named by args, in that order, sorted by
// name below each.
func runFolders(args []string) ([]string, error) {
	var dirs []string
	for _, arg := range args {
		found, err := runsBelow(filepath.Clean(arg), runDepth)
		if err != nil {
			return nil, unmeasured{err}
		}
		if len(found) == 0 {
			return nil, unmeasured{fmt.Errorf("%s is not the folder of a run (it has no manifest.json) and holds none, down to %d folders below", arg, runDepth)}
		}
		dirs = append(dirs, found...)
	}
	return dirs, nil
}

// runsBelow returns dir if it is a run, or the runs below it. An unreadable run
// counts: omitting it would make the report look better.
func runsBelow(dir string, depth int) ([]string, error) {
	if _, err := evidence.Open(dir); !errors.Is(err, fs.ErrNotExist) {
		return []string{dir}, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for runs: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		if depth == 0 || !e.IsDir() {
			continue
		}
		below, err := runsBelow(filepath.Join(dir, e.Name()), depth-1)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, below...)
	}
	return dirs, nil
}

// writeWhole writes a file atomically, through a temporary file and a rename, so
// that no reader sees a partial file. An existing target that is not a regular
// file, such as /dev/stdout or a FIFO, is written to rather than replaced.
func writeWhole(name string, write func(io.Writer) error) error {
	return writeWithMode(name, 0o644, write)
}

func writeWithMode(name string, mode os.FileMode, write func(io.Writer) error) (err error) {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = write(f)
	if err == nil {
		err = f.Chmod(mode) // temporary files are private
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
