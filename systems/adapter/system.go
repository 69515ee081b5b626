// Package adapter tests a system through an adapter in any language: a child
// process that speaks JSON lines on standard input and output. docs/adapters.md
// is the protocol. Links and faults, processes, time, evidence, judging,
// reconnection and retries stay here.
package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/declared"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// System is one profile of a system behind an adapter.
type System struct {
	command []string
	said    description
	profile profile
	scale   float64
	bounds  bounds
}

// shell runs a command line as a shell reads it, without leaving a shell behind.
const shell = "/bin/sh -c exec "

// Command is the command of a line such as "python3 queue.py --fast", with a
// shell's quoting.
func Command(line string) []string { return []string{"/bin/sh", "-c", "exec " + line} }

// Prefix begins the spec of an adapter: "adapter:COMMAND" for its first profile,
// or "adapter/PROFILE:COMMAND".
const Prefix = "adapter"

// Spec is how --system names a profile of an adapter.
func Spec(command, profile string) string {
	if profile != "" {
		return Prefix + "/" + profile + ":" + command
	}
	return Prefix + ":" + command
}

// IsSpec reports whether a spec names an adapter.
func IsSpec(spec string) bool {
	head, _, ok := strings.Cut(spec, ":")
	name, _, _ := strings.Cut(head, "/")
	return ok && name == Prefix
}

// Named returns the systems of a spec: without a profile, all profiles.
func Named(spec string, scale float64) ([]systems.System, error) {
	head, command, _ := strings.Cut(spec, ":")
	_, wanted, _ := strings.Cut(head, "/")
	if strings.TrimSpace(command) == "" {
		return nil, errors.New("adapter: no command; write adapter:COMMAND, as in \"adapter:python3 queue.py\"")
	}
	ctx, cancel := context.WithTimeout(context.Background(), scaledBounds(scale).call)
	defer cancel()
	found, err := Open(ctx, Command(command), scale)
	if err != nil || wanted == "" {
		return found, err
	}
	var names []string
	for _, s := range found {
		name := s.Describe().Profile.Name
		if name == wanted {
			return []systems.System{s}, nil
		}
		names = append(names, name)
	}
	return nil, fmt.Errorf("adapter %s has no profile %q%s", command, wanted, script.Suggest(wanted, names))
}

// Open asks an adapter what it is. Each System starts processes of its own.
func Open(ctx context.Context, command []string, scale float64) ([]systems.System, error) {
	return open(ctx, command, scale, scaledBounds(scale))
}

func open(ctx context.Context, command []string, scale float64, b bounds) ([]systems.System, error) {
	c, err := start(command, nil, b)
	if err != nil {
		return nil, err
	}
	said, err := c.describe(ctx)
	if broken := c.close(ctx); broken != nil {
		return nil, broken
	} else if err != nil {
		return nil, err
	}
	var found []systems.System
	for _, p := range said.Profiles {
		s := System{command: command, said: said, profile: p, scale: scale, bounds: b}
		if p.able(systems.NeedConnector) {
			found = append(found, connector{s})
			continue
		}
		found = append(found, s)
	}
	return found, nil
}

// description is the answer to describe.
type description struct {
	System   string            `json:"system"`
	Versions map[string]string `json:"versions"`
	Profiles []profile         `json:"profiles"`
}

type profile struct {
	Name             string              `json:"name"`
	Summary          string              `json:"summary"`
	Settings         map[string]string   `json:"settings"`
	Redelivers       evidence.Redelivery `json:"redelivers"`
	AckCounting      string              `json:"ackCounting"`
	KeepsRows        bool                `json:"keepsRows"`
	MarksAgain       bool                `json:"marksAgain"`
	AckConfirms      bool                `json:"ackConfirms"`
	ConfirmIsDurable bool                `json:"confirmIsDurable"`
	KeepsSubscribers bool                `json:"keepsSubscribers"`
	WaitsForAbsent   bool                `json:"waitsForAbsent"`
	Limits           limits              `json:"limits"`
	Claims           []struct {
		Guarantee string           `json:"guarantee"`
		Under     []evidence.Class `json:"under"`
		Source    string           `json:"source"`
	} `json:"claims"`
	Known       []evidence.Known        `json:"known"`
	Forgets     []evidence.Class        `json:"forgets"`
	StoreFaults map[string][]string     `json:"storeFaults"`
	Frames      *frames                 `json:"frames"`
	Abilities   []systems.Need          `json:"abilities"`
	Lacks       map[systems.Need]string `json:"lacks"`
}

func (p profile) able(n systems.Need) bool { return slices.Contains(p.Abilities, n) }

// frames are how a link cuts what it carries into frames, and what they are.
type frames struct {
	Framing string          `json:"framing"`
	Rules   []declared.Rule `json:"rules"`
}

// protocol is nil where no frames are declared.
func (p profile) protocol(system string) (links.Protocol, error) {
	if p.Frames == nil {
		return nil, nil
	}
	d, err := declared.New(system, p.Frames.Framing, p.Frames.Rules)
	if err != nil {
		return nil, err // not a nil *declared.Protocol in an interface
	}
	return d, nil
}

// limits are not scaled: the host scales them.
type limits struct {
	RedeliveryPeriod duration `json:"redeliveryPeriod"`
	RecoveryBound    duration `json:"recoveryBound"`
	InFlightBound    duration `json:"inFlightBound"`
	DrainDeadline    duration `json:"drainDeadline"`
	ExpiryTolerance  duration `json:"expiryTolerance"`
	DeleteBound      duration `json:"deleteBound"`
	NackDelay        duration `json:"nackDelay"`
	Remembers        duration `json:"remembers"`
	AnswerBound      duration `json:"answerBound"`
	ProgressBound    duration `json:"progressBound"`
	MaxAttempts      int      `json:"maxAttempts"`
	DropsAfter       int      `json:"dropsAfter"`
	MaxPending       int      `json:"maxPending"`
	OrderScope       string   `json:"orderScope"`
}

func (l limits) scaled(scale float64) evidence.Limits {
	by := func(d duration) time.Duration { return time.Duration(float64(d) * scale) }
	return evidence.Limits{
		MaxAttempts: l.MaxAttempts, DropsAfter: l.DropsAfter, MaxPending: l.MaxPending, OrderScope: l.OrderScope,
		RedeliveryPeriod: by(l.RedeliveryPeriod), RecoveryBound: by(l.RecoveryBound), InFlightBound: by(l.InFlightBound),
		DrainDeadline: by(l.DrainDeadline), ExpiryTolerance: by(l.ExpiryTolerance), DeleteBound: by(l.DeleteBound), NackDelay: by(l.NackDelay),
		Remembers: by(l.Remembers), AnswerBound: by(l.AnswerBound), ProgressBound: by(l.ProgressBound),
	}
}

func (c *conn) describe(ctx context.Context) (d description, err error) {
	if err := c.call(ctx, "describe", struct {
		Protocol int `json:"protocol"`
	}{Version}, &d); err != nil {
		return d, err
	}
	names := make(map[string]bool)
	for i, p := range d.Profiles {
		if names[p.Name] {
			return d, fmt.Errorf("adapter %s: describe: profiles.%d.name: %q is there twice", c.name, i, p.Name)
		}
		names[p.Name] = true
		if err := p.check(); err != nil {
			return d, fmt.Errorf("adapter %s: describe: profiles.%d.%w", c.name, i, err)
		}
	}
	return d, nil
}

// beyond are the needs that an adapter says nothing of: the host can tell, or
// the protocol does not carry them.
var beyond = map[systems.Need]string{
	systems.NeedBytes:       "", // comes with links
	systems.NeedPause:       "", // comes with process
	systems.NeedTimeout:     "", // follows from what redelivers
	systems.NeedRelease:     "", // the same
	systems.NeedFrames:      "the adapter declares no frames: its links carry bytes",
	systems.NeedStoreLink:   "the adapter's protocol has no server of a store",
	systems.NeedStandby:     "the adapter's protocol has no standby",
	systems.NeedVolume:      "the adapter's protocol has no volume",
	systems.NeedIdentity:    "the adapter's protocol has no settings that change",
	systems.NeedPlanting:    "the adapter's protocol plants no rows",
	systems.NeedMoves:       "the adapter's protocol moves no rows",
	systems.NeedProbes:      "the adapter's protocol has no probes",
	systems.NeedDamage:      "the adapter's protocol damages no rows",
	systems.NeedStoreBackup: "the adapter's protocol backs nothing up",
}

// Abilities are the words that a profile's abilities and lacks share out among
// them.
func Abilities() []systems.Need {
	return slices.DeleteFunc(systems.Needs(), func(n systems.Need) bool { _, is := beyond[n]; return is })
}

// check checks what the schema cannot. Errors begin with the field.
func (p profile) check() error {
	known := Abilities()
	for _, n := range known {
		why, lacks := p.Lacks[n]
		switch {
		case p.able(n) && lacks:
			return fmt.Errorf("abilities: %s is among them, and lacks says %q", n, why)
		case !p.able(n) && !lacks:
			return fmt.Errorf("abilities: %s is neither among them nor in lacks, with the reason", n)
		}
	}
	for _, n := range slices.Concat(p.Abilities, slices.Sorted(maps.Keys(p.Lacks))) {
		if !slices.Contains(known, n) {
			return fmt.Errorf("abilities: no ability %q%s", n, script.Suggest(string(n), words(known)))
		}
	}
	if p.able(systems.NeedProcess) && !p.able(systems.NeedLinks) {
		return errors.New("abilities: process without links: the host gives the server a port")
	}
	if _, err := p.protocol(""); err != nil {
		return fmt.Errorf("frames.%w", err)
	}
	if p.Frames != nil && !p.able(systems.NeedLinks) {
		return errors.New("frames: the profile is not able to links, which would carry them")
	}
	if p.able(systems.NeedStoreFaults) && len(p.StoreFaults) == 0 {
		return errors.New("storeFaults: name the verbs, and their operations, that arm can strike")
	}
	for i, c := range p.Claims {
		at := fmt.Sprintf("claims.%d.guarantee", i)
		names := make([]string, 0, 32)
		for _, g := range guarantees.Guarantees() {
			names = append(names, g.Name)
		}
		if !slices.Contains(names, c.Guarantee) {
			return fmt.Errorf("%s: no guarantee %q%s", at, c.Guarantee, script.Suggest(c.Guarantee, names))
		}
		if err := guarantees.CheckClaims(evidence.Claim{Guarantee: c.Guarantee, Owner: evidence.OwnerSystem}); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	if l := p.Limits; l.RecoveryBound <= l.RedeliveryPeriod {
		return errors.New("limits.recoveryBound: it must be longer than redeliveryPeriod")
	} else if l.DrainDeadline <= max(l.RecoveryBound, l.DeleteBound, l.InFlightBound) {
		return errors.New("limits.drainDeadline: it must be longer than every bound")
	}
	return nil
}

func words(needs []systems.Need) []string {
	var list []string
	for _, n := range needs {
		list = append(list, string(n))
	}
	return list
}

// Spec is how --system names the profile.
func (s System) Spec() string {
	return Spec(strings.TrimPrefix(strings.Join(s.command, " "), shell), s.profile.Name)
}

// Describe returns what the adapter said of the profile.
func (s System) Describe() systems.Description {
	p := s.profile
	d := systems.Description{
		System: s.said.System, Versions: maps.Clone(s.said.Versions), Known: p.Known, Forgets: p.Forgets, WaitsForAbsent: p.WaitsForAbsent,
		StoreFaults: p.StoreFaults, Lacks: maps.Clone(p.Lacks),
		Profile: evidence.Profile{
			Name: p.Name, Summary: p.Summary, Redelivers: p.Redelivers, AckCounting: p.AckCounting, KeepsRows: p.KeepsRows, MarksAgain: p.MarksAgain,
			AckConfirms: p.AckConfirms, ConfirmIsDurable: p.ConfirmIsDurable, KeepsSubscribers: p.KeepsSubscribers, Limits: p.Limits.scaled(s.scale),
		},
	}
	if d.Lacks == nil {
		d.Lacks = make(map[systems.Need]string)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Settings)) {
		d.Profile.Settings = append(d.Profile.Settings, evidence.Setting{Name: name, Value: p.Settings[name]})
	}
	for _, c := range p.Claims {
		d.Claims = append(d.Claims, evidence.Claim{Guarantee: c.Guarantee, Under: c.Under, Owner: evidence.OwnerSystem, Source: c.Source})
	}
	for need, why := range beyond {
		if why != "" {
			d.Lacks[need] = why
		}
	}
	if p.Frames != nil {
		delete(d.Lacks, systems.NeedFrames)
	}
	for need, with := range map[systems.Need]systems.Need{systems.NeedBytes: systems.NeedLinks, systems.NeedPause: systems.NeedProcess} {
		if why, lacks := p.Lacks[with]; lacks {
			d.Lacks[need] = why
		}
	}
	return d
}

// connector is a System whose consumers can be processes of their own, each with
// a process of the adapter.
type connector struct{ System }

var _ systems.Connector = connector{}

// credentials are what another process of the adapter needs.
type credentials struct {
	Profile string  `json:"profile"`
	Dir     string  `json:"dir"`
	Address string  `json:"address"`
	Scale   float64 `json:"scale"`
}

func (s connector) Credentials(in systems.Instance) string {
	i, ok := in.(*instance)
	if !ok {
		return ""
	}
	text, err := json.Marshal(credentials{s.profile.Name, i.dir, i.address, s.scale})
	if err != nil {
		return "" // strings and a number always marshal
	}
	return string(text)
}

// Connect starts a process of the adapter. Its standard error is this one's.
func (s connector) Connect(text string) (systems.Clients, error) {
	var to credentials
	if err := json.Unmarshal([]byte(text), &to); err != nil || to.Profile != s.profile.Name {
		return nil, fmt.Errorf("adapter: malformed credentials %q: want what Credentials returned", text)
	}
	c, err := start(s.command, os.Stderr, s.bounds)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.bounds.call)
	defer cancel()
	if err := c.call(ctx, "connect", to, nil); err != nil {
		return nil, errors.Join(err, c.close(ctx))
	}
	return connected{clients{c, s.profile}}, nil
}

// connected are clients with a process of the adapter that is theirs.
type connected struct{ clients }

// Close ends the adapter.
func (c connected) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.bounds.call)
	defer cancel()
	return c.close(ctx)
}
