package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/tasks"
)

// Server runs the reference broker as a separate process, on the same address and
// data across restarts.
type Server struct {
	Path  string // of the custody command
	Data  string
	Addr  string
	Token string
	Limit *Limit // nil: no limit
	Log   io.Writer
	// Died is called when the broker ends without being told to.
	Died func(process.Exit)

	starts   atomic.Int64
	mu       sync.Mutex
	running  process.Process
	watchers tasks.Group
	kills    int
	restarts int
	slowest  time.Duration // from process start to the first session
}

const (
	tokenVariable = "CUSTODY_SIEGE_TOKEN"
	startBound    = 2 * time.Minute
	stopBound     = 30 * time.Second
	// attackersTTL applies to messages without a time to live, such as those of
	// the attackers, because nothing else would remove what they leave. Honest
	// messages set their own.
	attackersTTL = 30 * time.Second
)

// Start starts the broker and returns once a client can open a session.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start(ctx)
}

func (s *Server) start(ctx context.Context) error {
	path, args := s.Path, []string{
		"broker", "--listen", s.Addr, "--data", filepath.Join(s.Data, "broker.db"), "--token-env", tokenVariable,
		"--default-ttl", attackersTTL.String(),
	}
	if s.Limit != nil {
		path, args = s.Limit.Command(path, args...)
	}
	bounded, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	began := time.Now()
	p, err := process.StartProgram(bounded, process.ProgramOptions{
		Path: path, Args: args, Env: append(os.Environ(), tokenVariable+"="+s.Token), Log: s.Log, Ready: s.ready,
	})
	if err != nil {
		return err
	}
	s.running = p
	s.starts.Add(1)
	s.slowest = max(s.slowest, time.Since(began))
	s.watchers.Go(func() {
		<-p.Exited()
		if !p.Exit().Ordered {
			s.Died(p.Exit())
		}
	})
	return nil
}

func (s *Server) ready(ctx context.Context) error {
	c, err := client.Dial(ctx, s.Addr, client.Options{Name: "ready", Token: s.Token})
	if err == nil {
		c.Close()
	}
	return err
}

// Kill sends SIGKILL and restarts the broker.
func (s *Server) Kill(ctx context.Context) error {
	return s.again(ctx, &s.kills, process.Process.Kill)
}

// Restart sends SIGTERM and restarts the broker.
func (s *Server) Restart(ctx context.Context) error {
	return s.again(ctx, &s.restarts, inOrder)
}

// inOrder sends SIGTERM and requires the broker to exit with code 0.
func inOrder(p process.Process, ctx context.Context) error {
	err := p.Stop(ctx)
	if err == nil && p.Exit().Code != 0 {
		err = fmt.Errorf("told to stop, the broker ended with exit code %d %s", p.Exit().Code, p.Exit().Signal)
	}
	return err
}

func (s *Server) again(ctx context.Context, count *int, end func(process.Process, context.Context) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.end(ctx, end); err != nil {
		return err
	}
	*count++
	return s.start(ctx)
}

func (s *Server) end(ctx context.Context, end func(process.Process, context.Context) error) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBound)
	defer cancel()
	return process.Strike(bounded, s.running, end)
}

// Stop sends SIGTERM and does not restart.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil
	}
	err := s.end(ctx, inOrder)
	s.running = nil
	s.watchers.Wait()
	return err
}
