package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// awaitStopped polls /proc until every thread has stopped: the kernel stops
// them one by one, and one still running may answer.
func awaitStopped(ctx context.Context, pid int) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		stopped, err := allStopped(pid)
		if err != nil {
			return fmt.Errorf("process: pause process %d: %w", pid, err)
		}
		if stopped {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("process: process %d did not stop: %w", pid, context.Cause(ctx))
		}
	}
}

func allStopped(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false, os.ErrProcessDone
	}
	for _, t := range threads {
		stat, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has exited
		}
		// "pid (name) S …": the name may contain anything, so search from the
		// last bracket.
		i := bytes.LastIndexByte(stat, ')')
		if i < 0 || i+2 >= len(stat) || stat[i+2] != 'T' {
			return false, nil
		}
	}
	return true, nil
}
