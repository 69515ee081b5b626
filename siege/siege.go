package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/tasks"
)

// Siege runs honest clients alone, then alongside each attack in turn and all of
// them together while the broker is killed and restarted, then alone again until
// nothing is in flight.
type Siege struct {
	options
	attacks  []string
	limit    int64 // bytes; 0: no limit
	progress io.Writer

	server  *Server
	honest  *Honest
	figures Figures
	phase   atomic.Pointer[string]
	phases  []string
	under   map[string]*atomic.Int64
	abort   context.CancelCauseFunc

	mu   sync.Mutex
	once map[string]bool // rules that the broker broke, each recorded once
}

const (
	leastLasting  = 5 * time.Second
	quietMost     = 2 * time.Minute
	sliceLeast    = time.Minute // minimum time per attack for another round to be worthwhile
	drainBound    = 2 * time.Minute
	releaseBound  = 2 * time.Minute // for the attackers' leftovers to expire and memory to be released
	adminBound    = 30 * time.Second
	attackersStop = 30 * time.Second
	together      = "all together"
	token         = "the-token-of-the-siege"
)

// errBroken ends a siege early; the figures say why.
var errBroken = errors.New("the broker cannot be besieged any longer")

// Run conducts the siege. An error means that nothing could be measured.
func (s *Siege) Run(ctx context.Context) (_ *Figures, err error) {
	if err := emptyFolder(s.out); err != nil {
		return nil, err
	}
	s.under = map[string]*atomic.Int64{}
	for _, name := range s.attacks {
		s.under[name] = new(atomic.Int64)
	}
	s.once = map[string]bool{}
	s.figures = Figures{Seed: s.seed, Limit: s.limit, Rate: s.rate}
	ctx, s.abort = context.WithCancelCause(ctx)
	defer s.abort(nil)

	logs, err := os.Create(filepath.Join(s.out, "processes.log"))
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	journal, err := os.Create(filepath.Join(s.out, "journal.txt"))
	if err != nil {
		return nil, err
	}
	defer journal.Close()

	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	defer port.Close()
	if s.server, err = s.newServer(port, logs); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.server.Limit.Close()) }()
	began := time.Now()
	if err := s.server.Start(ctx); err != nil {
		return nil, err
	}
	err = s.besiege(ctx, NewJournal(journal), logs)
	if stopping := s.server.Stop(ctx); stopping != nil {
		s.broke(stopping.Error())
	}
	if err != nil {
		return nil, err
	}
	s.figures.Lasted = time.Since(began)
	return &s.figures, s.save(journal.Name())
}

func (s *Siege) newServer(port *process.Port, logs io.Writer) (*Server, error) {
	path, err := filepath.Abs(s.broker)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("-broker: make build makes it: %w", err)
	}
	data := filepath.Join(s.out, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	server := &Server{Path: path, Data: data, Addr: port.Address, Token: token, Log: logs, Died: s.died}
	if s.limit > 0 {
		if server.Limit, err = NewLimit(s.limit); err != nil {
			return nil, err
		}
	}
	return server, nil
}

func (s *Siege) besiege(ctx context.Context, journal *Journal, logs io.Writer) error {
	s.honest = &Honest{Server: s.server, Journal: journal, Rate: s.rate, Phase: func() string { return *s.phase.Load() }}
	s.enter(quiet)
	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	consuming, stopConsuming := context.WithCancel(context.WithoutCancel(ctx))
	sampling, stopSampling := context.WithCancel(context.WithoutCancel(ctx))
	var sampler tasks.Group
	defer func() {
		stopPublishing()
		stopConsuming()
		s.honest.publishers.Wait()
		s.honest.consumers.Wait()
		stopSampling()
		sampler.Wait()
	}()
	s.honest.Begin(publishing, consuming)
	sampler.Go(func() { s.sample(sampling) })

	err := s.phasesOf(ctx, logs)
	if err == nil {
		stopPublishing()
		s.honest.publishers.Wait()
		err = s.drain(ctx)
	}
	if errors.Is(context.Cause(ctx), errBroken) {
		err = nil // recorded in the figures
	}
	stopPublishing()
	stopConsuming()
	s.honest.publishers.Wait()
	s.honest.consumers.Wait()
	return errors.Join(err, journal.Flush())
}

// phasesOf runs every phase in which the honest clients publish.
func (s *Siege) phasesOf(ctx context.Context, logs io.Writer) error {
	alone := min(s.lasting/10, quietMost)
	if err := pass(ctx, alone); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(s.seed, 2))
	turns := append([]string{together}, s.attacks...)
	under := s.lasting - 2*alone
	rounds := max(1, int(under/time.Duration(len(turns))/sliceLeast))
	slice := under / time.Duration(rounds*len(turns))
	striking, stop := context.WithCancel(ctx)
	defer stop()
	var strikes tasks.Group
	strikes.Go(func() { s.strike(striking, rand.New(rand.NewPCG(s.seed, 3))) })
	for range rounds {
		random.Shuffle(len(turns), func(i, k int) { turns[i], turns[k] = turns[k], turns[i] })
		for _, name := range turns {
			if err := s.beside(ctx, name, slice, logs); err != nil {
				stop()
				strikes.Wait()
				return err
			}
		}
	}
	stop()
	strikes.Wait()
	s.enter(recovered)
	return pass(ctx, alone)
}

// pass waits for d or until ctx is done.
func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Siege) enter(phase string) {
	s.phase.Store(&phase)
	if !slices.Contains(s.phases, phase) {
		s.phases = append(s.phases, phase)
	}
	fmt.Fprintln(s.progress, time.Now().Format(time.TimeOnly), phase)
}

// beside runs one attack, or all of them, for lasting, and longer if an attack is
// not under way by then.
func (s *Siege) beside(ctx context.Context, name string, lasting time.Duration, logs io.Writer) error {
	s.enter(name)
	order := attackOrder{Addr: s.server.Addr, Token: s.server.Token, Attacks: []string{name}}
	if name == together {
		order.Attacks = s.attacks
	}
	before := map[string]int64{}
	for _, name := range order.Attacks {
		before[name] = s.under[name].Load()
	}
	attackers, err := startAttackers(ctx, order, logs, s.under)
	if err != nil {
		return err
	}
	err = pass(ctx, lasting)
	until(ctx, prepareBound, func() bool {
		return !slices.ContainsFunc(order.Attacks, func(name string) bool { return s.under[name].Load() == before[name] })
	})
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), attackersStop)
	defer cancel()
	return errors.Join(err, attackers.Stop(bounded))
}

// strike kills the broker at random times, and sometimes restarts it gracefully
// instead.
func (s *Siege) strike(ctx context.Context, random *rand.Rand) {
	if s.kill == 0 {
		return
	}
	for {
		if pass(ctx, time.Duration(random.ExpFloat64()*float64(s.kill))) != nil {
			return
		}
		end := s.server.Kill
		if random.IntN(4) == 0 {
			end = s.server.Restart
		}
		if err := end(context.WithoutCancel(ctx)); err != nil {
			s.broke(err.Error())
			s.abort(errBroken)
			return
		}
	}
}

func (s *Siege) died(exit process.Exit) {
	s.broke(fmt.Sprintf("the broker ended by itself: exit code %d %s", exit.Code, exit.Signal))
	s.abort(errBroken)
}

func (s *Siege) broke(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.once[what] {
		s.once[what] = true
		s.figures.Broke = append(s.figures.Broke, what)
	}
}

// sample tracks the maximum memory in use.
func (s *Siege) sample(ctx context.Context) {
	for s.server.Limit != nil && pass(ctx, 250*time.Millisecond) == nil {
		if used, err := s.server.Limit.Used(); err == nil { // a failing read surfaces as an error at the end
			s.figures.Most = max(s.figures.Most, used.Anonymous)
		}
	}
}

// drain waits until every accepted message has been delivered and looks up the
// rest in the store, then waits until memory is released.
func (s *Siege) drain(ctx context.Context) error {
	until(ctx, drainBound, func() bool { return len(s.honest.Undelivered()) == 0 })
	if left := s.honest.Undelivered(); len(left) > 0 {
		if err := s.look(ctx, left); err != nil {
			s.broke(err.Error())
		}
	}
	if s.server.Limit == nil {
		return nil
	}
	var err error
	until(ctx, releaseBound, func() bool {
		s.figures.Used, err = s.server.Limit.Used()
		return err != nil || s.figures.Used.Anonymous <= s.limit/2
	})
	s.figures.After = s.figures.Used.Anonymous
	return err
}

// until polls done until it returns true, bounded by bound and ctx.
func until(ctx context.Context, bound time.Duration, done func() bool) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for !done() && pass(ctx, 100*time.Millisecond) == nil {
	}
}

// look searches the store, dead letters included, for undelivered messages.
func (s *Siege) look(ctx context.Context, left []uint64) error {
	c, err := client.Dial(ctx, s.server.Addr, client.Options{Name: "look", Token: token})
	if err != nil {
		return fmt.Errorf("in the end nobody can enter: %w", err)
	}
	defer c.Close()
	missing := map[uint64]bool{}
	for _, n := range left {
		missing[n] = true
	}
	for next := ""; ; {
		asking, cancel := context.WithTimeout(ctx, adminBound)
		reply, err := c.Admin(asking, "rows", next)
		cancel()
		if err != nil {
			return fmt.Errorf("in the end the rows cannot be listed: %w", err)
		}
		var page broker.RowsView
		if err := json.Unmarshal(reply.Payload, &page); err != nil {
			return fmt.Errorf("rows: %w", err)
		}
		for _, row := range page.Rows {
			n, err := strconv.ParseUint(strings.TrimPrefix(row.BusinessID, "honest-"), 10, 64)
			if err == nil && missing[n] {
				s.honest.Journal.Note(kept, n, row.State)
			}
		}
		if next = page.Next; next == "" {
			return nil
		}
	}
}

// save judges the journal and writes the figures.
func (s *Siege) save(journal string) error {
	f, err := os.Open(journal)
	if err != nil {
		return err
	}
	defer f.Close()
	if s.figures.Custody, err = Judge(f); err != nil {
		return err
	}
	s.figures.Kills, s.figures.Orderly, s.figures.Slowest = s.server.kills, s.server.restarts, s.server.slowest
	s.figures.UnderWay = map[string]int64{}
	for name, n := range s.under {
		s.figures.UnderWay[name] = n.Load()
	}
	for _, phase := range s.phases {
		p := PhaseFigures{Name: phase}
		if l := s.honest.latencies[phase]; l != nil {
			p.Accept, p.Cycle = percentiles(l.Accept), percentiles(l.Cycle)
		}
		s.figures.Phases = append(s.figures.Phases, p)
		if phase == recovered && p.Cycle.N == 0 {
			s.broke("no honest message came through when the attackers were gone")
		}
	}
	text, err := s.figures.JSON()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.out, "figures.json"), text, 0o600); err != nil {
		return err
	}
	if len(s.figures.Faults()) > 0 {
		return nil // keep the store as evidence
	}
	return os.RemoveAll(s.server.Data)
}

func emptyFolder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("-out %s is not empty: choose another folder, or remove it", path)
	}
	return nil
}
