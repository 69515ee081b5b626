package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/tasks"
)

// Run performs one run and judges it from the closed evidence on disk. The
// error is a failure to measure, which the judgement states too if there is
// evidence. With a *runner.UsageError nothing was started.
func Run(ctx context.Context, o runner.Options) (guarantees.Judgement, error) {
	if err := guarantees.CheckClaims(o.System.Describe().Claims...); err != nil {
		return guarantees.Judgement{}, fmt.Errorf("%w: %w", runner.ErrNoEvidence, err)
	}
	if o.Complete == nil {
		o.Complete = completeOf(o.Scenario)
	}
	failed := runner.Run(ctx, o)
	var usage *runner.UsageError
	if errors.As(failed, &usage) || errors.Is(failed, runner.ErrNoEvidence) {
		return guarantees.Judgement{}, failed
	}
	j, err := Judge(o.Dir)
	return j, errors.Join(failed, err)
}

// ErrNotSaved: the run was judged, but the verdict could not be written to its
// directory.
var ErrNotSaved = errors.New("scenarios: the verdict could not be saved")

// Judge judges the evidence in a directory and writes the verdict. With
// ErrNotSaved the judgement is valid.
func Judge(dir string) (j guarantees.Judgement, err error) {
	defer func() {
		if p := recover(); p != nil { // a panic in the judge: nothing could be measured
			j, err = guarantees.Judgement{}, fmt.Errorf("scenarios: judge %s: %w", dir, tasks.Panic(p))
		}
	}()
	run, h, err := script.OpenRun(dir)
	if err != nil {
		return guarantees.Judgement{}, err
	}
	h.Events = ahead(h.Events)
	j, err = guarantees.Judge(h)
	if err != nil {
		return j, fmt.Errorf("scenarios: judge %s: %w", dir, err)
	}
	b, err := Encode(j)
	if err != nil {
		return j, err
	}
	if err := run.WriteVerdict(b); err != nil {
		return j, fmt.Errorf("%w: %w", ErrNotSaved, err)
	}
	return j, nil
}

// Encode returns verdict.json, deterministically.
func Encode(j guarantees.Judgement) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(j); err != nil {
		return nil, fmt.Errorf("scenarios: encode a verdict: %w", err)
	}
	return b.Bytes(), nil
}
