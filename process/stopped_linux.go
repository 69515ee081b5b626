package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// awaitStopped polls /proc until every thread of the process is stopped: the
// kernel stops them one by one, and a thread not yet stopped may still answer.
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
			continue // a thread that ended is stopped
		}
		// "pid (name) S …": the name may hold anything, so look behind its last bracket.
		i := bytes.LastIndexByte(stat, ')')
		if i < 0 || i+2 >= len(stat) || stat[i+2] != 'T' {
			return false, nil
		}
	}
	return true, nil
}
