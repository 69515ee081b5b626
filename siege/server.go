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

// Server is the reference broker as a process of its own, on one address and one
// file, through all its starts.
type Server struct {
	Path  string // of the custody command
	Data  string
	Addr  string
	Token string
	Limit *Limit // nil: none
	Log   io.Writer
	// Died is called when it ends without being told to.
	Died func(process.Exit)

	starts   atomic.Int64
	mu       sync.Mutex
	running  process.Process
	watchers tasks.Group
	kills    int
	restarts int
	slowest  time.Duration // from the start to the first session
}

const (
	tokenVariable = "CUSTODY_SIEGE_TOKEN"
	startBound    = 2 * time.Minute
	stopBound     = 30 * time.Second
	// attackersTTL is for messages that name none, as those of attackers: nothing
	// else would remove what they leave. Honest ones name their own.
	attackersTTL = 30 * time.Second
)

// Start returns when a session can be had.
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

// Kill is SIGKILL, and a start.
func (s *Server) Kill(ctx context.Context) error {
	return s.again(ctx, &s.kills, process.Process.Kill)
}

// Restart is SIGTERM, and a start.
func (s *Server) Restart(ctx context.Context) error {
	return s.again(ctx, &s.restarts, inOrder)
}

// inOrder is SIGTERM, upon which the broker must say that all went well.
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

// Stop is SIGTERM, and the end.
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
