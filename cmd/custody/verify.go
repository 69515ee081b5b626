package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
)

func verifyCommand() *cobra.Command {
	var key, format string
	cmd := &cobra.Command{
		Use:   "verify RUN…",
		Short: "Verify that evidence is unaltered, and who signed it",
		Long: `Check the seals of saved runs: every file is the one that lay there when the run
ended, and the manifest says what it said then. RUN is the folder of a run, or a
folder that holds several. Nothing is judged.

A seal shows damage, and every change by somebody who did not mean to be found.
Who would forge a run can seal it anew; against that a run is signed (custody run
--sign KEY), and --key demands that each is signed by the owner of that key.

Exit codes: 0 all are whole, and signed where a key is given · 3 some are not, or
have no seal.`,
		Example: `  custody verify custody-runs/20260102-150405
  custody verify ack-lost --key custody.pub`,
		Args: atLeastOneRun,
		RunE: func(cmd *cobra.Command, args []string) error { return verify(cmd, args, key, format) },
	}
	cmd.Flags().StringVar(&key, "key", "", "public ed25519 key in PEM; each run must be signed by its owner")
	textOrJSON(cmd, &format)
	return cmd
}

// verified is the result for one run.
type verified struct {
	Dir       string            `json:"dir"`
	Scenario  string            `json:"scenario,omitempty"`
	System    string            `json:"system,omitempty"`
	Profile   string            `json:"profile,omitempty"`
	StartedAt time.Time         `json:"startedAt,omitzero"`
	Versions  map[string]string `json:"versions,omitempty"` // of custody and of the system
	Files     int               `json:"files"`              // covered by the seal
	Seal      string            `json:"seal,omitempty"`
	Signature string            `json:"signature"`
	Unsealed  []string          `json:"unsealed,omitempty"` // in the directory but not part of the evidence
	Damage    string            `json:"damage,omitempty"`
}

// States of a signature.
const (
	signedNot       = "none"
	signedUnchecked = "not checked: give --key"
	signedByKey     = "by the key"
)

func verify(cmd *cobra.Command, args []string, keyFile, format string) error {
	if err := knownOutput(format); err != nil {
		return err
	}
	var key ed25519.PublicKey
	if keyFile != "" {
		var err error
		if key, err = evidence.ReadPublicKey(keyFile); err != nil {
			return err
		}
	}
	dirs, err := runFolders(args)
	if err != nil {
		return err
	}
	var all []verified
	damaged := 0
	for _, dir := range dirs {
		v := verifyRun(dir, key)
		if v.Damage != "" {
			damaged++
			fmt.Fprintf(cmd.ErrOrStderr(), "custody: verify %s: %s\n", reports.Visible(dir), reports.Visible(v.Damage))
		}
		all = append(all, v)
	}
	err = printAs(cmd.OutOrStdout(), format, all, func(w io.Writer) {
		for _, v := range all {
			v.print(w)
		}
		fmt.Fprintf(w, "%d of %d runs are whole\n", len(all)-damaged, len(all))
	})
	if err == nil && damaged > 0 {
		return exit(guarantees.ExitUnmeasured)
	}
	return err
}

// verifyRun checks the run in dir; key is nil if no signature is required.
func verifyRun(dir string, key ed25519.PublicKey) verified {
	v := verified{Dir: dir, Signature: signedNot}
	run, h, err := script.OpenRun(dir)
	if err != nil {
		v.Damage = firstLine(err)
		return v
	}
	m := run.Manifest()
	v.Scenario, v.System, v.Profile, v.StartedAt, v.Versions, v.Damage = m.Scenario, m.System, m.Profile.Name, m.StartedAt, m.Versions, h.Damage
	if m.End != nil {
		v.Seal, v.Files = m.End.Seal, len(m.End.Files)
	}
	if v.Damage == "" && !run.Sealed() {
		v.Damage = fmt.Sprintf("its format is %d, which has no seal: whether it is whole cannot be told", m.Format)
	}
	if v.Unsealed, err = run.Unsealed(); err != nil && v.Damage == "" {
		v.Damage = firstLine(err)
	}
	if run.Signed() {
		v.Signature = signedUnchecked
	}
	if key == nil {
		return v
	}
	if err := run.CheckSignature(key); err == nil {
		v.Signature = signedByKey
	} else if v.Damage == "" {
		v.Damage = strings.TrimPrefix(firstLine(err), "evidence: ")
	}
	return v
}

func (v verified) print(w io.Writer) {
	state := "whole"
	if v.Damage != "" {
		state = "NOT whole: " + v.Damage
	}
	fmt.Fprintf(w, "%s: %s\n", reports.Visible(v.Dir), reports.Visible(state))
	if v.Scenario == "" {
		return
	}
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(v.Versions)) {
		versions = append(versions, name+" "+v.Versions[name])
	}
	fmt.Fprintf(w, "  %s on %s:%s, %s, with %s\n", reports.Visible(v.Scenario), reports.Visible(v.System), reports.Visible(v.Profile),
		v.StartedAt.UTC().Format(time.RFC3339), reports.Visible(strings.Join(versions, ", ")))
	fmt.Fprintf(w, "  seal %s over %d files; signature: %s\n", reports.Visible(v.Seal), v.Files, v.Signature)
	if len(v.Unsealed) > 0 {
		fmt.Fprintf(w, "  not under the seal: %s\n", reports.Visible(strings.Join(v.Unsealed, ", ")))
	}
}

// signVariable names the key file if --sign does not.
const signVariable = "CUSTODY_SIGN_KEY"

const signUsage = "sign each run with this private ed25519 key in PEM (default: the file that " + signVariable + " names)"

// signer reads the key before anything runs. It returns a function that signs
// the runs and reports those that it could not.
func signer(file string) (func([]scenarios.Outcome), error) {
	if file == "" {
		file = os.Getenv(signVariable)
	}
	if file == "" {
		return func([]scenarios.Outcome) {}, nil
	}
	key, err := evidence.ReadPrivateKey(file)
	if err != nil {
		return nil, err
	}
	return func(outcomes []scenarios.Outcome) {
		for i := range outcomes {
			o := &outcomes[i]
			if o.Resumed {
				continue // nothing says who measured it
			}
			run, err := evidence.Open(o.Dir)
			if err == nil {
				err = run.Sign(key)
			}
			if err != nil {
				o.Err = errors.Join(o.Err, fmt.Errorf("sign the run: %w", err))
			}
		}
	}, nil
}
