package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// family signals a program and all processes that it has started, as does a
// server that gives each connection one of its own: these go on committing after
// their parent was killed, and serve while it is stopped.
type family struct {
	head  int
	plain signalFunc // to the head alone
}

// ofFamily is how a program is sent a signal with its family.
func ofFamily(head *os.Process, plain signalFunc) signalFunc { return family{head.Pid, plain}.signal }

// signal sends one. SIGKILL and SIGSTOP come to all of them, and have had their
// effect when it returns; SIGCONT to all; any other to the head alone, which
// passes on what its children need.
func (f family) signal(ctx context.Context, sig syscall.Signal) error {
	switch sig {
	case syscall.SIGSTOP:
		_, err := f.stop(ctx)
		return err
	case syscall.SIGKILL:
		members, err := f.stop(ctx) // else one starts another meanwhile
		if err != nil {
			return errors.Join(err, f.plain(ctx, sig))
		}
		for _, m := range members {
			err = errors.Join(err, f.send(ctx, m.PID, sig))
		}
		if err != nil {
			return err
		}
		return gone(ctx, members[1:]) // the head is waited for by who has started it
	case syscall.SIGCONT:
		members, err := descendants(f.head)
		for _, pid := range append(members, f.head) {
			err = errors.Join(err, f.send(ctx, pid, sig))
		}
		return err
	}
	return f.plain(ctx, sig)
}

// maxGenerations bounds how often a family is looked for again.
const maxGenerations = 16

// stop stops all members, the head first, until there is none that runs.
func (f family) stop(ctx context.Context) (members []Mark, err error) {
	stopped := map[int]bool{}
	next := []int{f.head}
	for range maxGenerations {
		for _, pid := range next {
			if stopped[pid] {
				continue
			}
			ticks, there, err := started(pid)
			if err == nil {
				err = f.send(ctx, pid, syscall.SIGSTOP)
			}
			if err == nil && there {
				err = awaitStopped(ctx, pid)
			}
			if err != nil && (pid == f.head || !errors.Is(err, os.ErrProcessDone)) {
				return nil, err
			}
			stopped[pid] = true
			members = append(members, Mark{PID: pid, Started: ticks})
		}
		if next, err = descendants(f.head); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(next, func(pid int) bool { return !stopped[pid] }) {
			return members, nil
		}
	}
	return nil, fmt.Errorf("process: process %d starts others though it is stopped", f.head)
}

// send ignores a descendant that has ended.
func (f family) send(ctx context.Context, pid int, sig syscall.Signal) error {
	if pid == f.head {
		return f.plain(ctx, sig)
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process: %s to process %d: %w", sig, pid, err)
	}
	return nil
}

// gone returns when none of them is there.
func gone(ctx context.Context, members []Mark) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for _, m := range members {
		for {
			ticks, there, err := started(m.PID)
			if err != nil {
				return err
			}
			if !there || ticks != m.Started {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("process: process %d did not end: %w", m.PID, context.Cause(ctx))
			}
		}
	}
	return nil
}

// descendants are the living processes that a process has started, and that these
// have.
func descendants(head int) (found []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, fmt.Errorf("process: children of process %d: %w", head, err)
	}
	children := map[int][]int{}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			continue
		}
		children[parent] = append(children[parent], pid)
	}
	for next := children[head]; len(next) > 0; next = next[1:] {
		found = append(found, next[0])
		next = append(next, children[next[0]]...)
	}
	return found, nil
}
