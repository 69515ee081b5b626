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

// Run makes one run and judges it: the bench leaves evidence, the evidence is
// closed and opened again from disk, and what is read there is judged. The
// error, if any, is a failure to measure; the judgement says so too, as far as
// there is evidence. A *runner.UsageError means that nothing was started.
func Run(ctx context.Context, o runner.Options) (guarantees.Judgement, error) {
	failed := runner.Run(ctx, o)
	var usage *runner.UsageError
	if errors.As(failed, &usage) || errors.Is(failed, runner.ErrNoEvidence) {
		return guarantees.Judgement{}, failed
	}
	j, err := Judge(o.Dir)
	return j, errors.Join(failed, err)
}

// ErrNotSaved: a run was judged, and its verdict could not be written beside it.
var ErrNotSaved = errors.New("scenarios: the verdict could not be saved")

// Judge judges the evidence in a folder and writes its verdict. Where that
// cannot be written the error is ErrNotSaved, and the judgement is good.
func Judge(dir string) (j guarantees.Judgement, err error) {
	defer func() {
		if p := recover(); p != nil { // of the judge itself: nothing could be measured
			j, err = guarantees.Judgement{}, fmt.Errorf("scenarios: judge %s: %w", dir, tasks.Panic(p))
		}
	}()
	run, h, err := script.OpenRun(dir)
	if err != nil {
		return guarantees.Judgement{}, err
	}
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

// Encode gives the bytes of verdict.json: the same for the same judgement.
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
