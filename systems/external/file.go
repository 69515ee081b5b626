// Package external tests a server of the user's own, which somebody else
// started: a file gives its address, the profile whose settings it has, and its
// claims.
package external

import (
	"cmp"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/script"
)

// IsFile reports whether a spec names a file instead of a system.
func IsFile(spec string) bool {
	return strings.HasSuffix(spec, ".yaml") || strings.HasSuffix(spec, ".yml")
}

// file is the content of such a file. Secrets are given as names of environment
// variables.
type file struct {
	System       string                    `yaml:"system"` // SYSTEM:PROFILE
	Name         string                    `yaml:"name"`
	Address      string                    `yaml:"address"`
	UserFrom     string                    `yaml:"user-from"`
	PasswordFrom string                    `yaml:"password-from"`
	TLS          *transport                `yaml:"tls"`
	Claims       []claim                   `yaml:"claims"`
	Behaviour    behaviour                 `yaml:"behaviour"`
	Limits       limits                    `yaml:"limits"`
	Known        []known                   `yaml:"known"`
	Start        []string                  `yaml:"start"`
	Stop         []string                  `yaml:"stop"`
	Kill         []string                  `yaml:"kill"`
	locate       func(field string) string // "FILE:LINE: FIELD", for errors
}

type transport struct {
	CA         string `yaml:"ca"` // a file beside this one; empty to trust the system's authorities
	ServerName string `yaml:"server-name"`
}

type claim struct {
	Guarantee string           `yaml:"guarantee"`
	Under     []evidence.Class `yaml:"under"`
}

type known struct {
	Guarantee string `yaml:"guarantee"`
	Reason    string `yaml:"reason"`
	Until     string `yaml:"until"`
}

// behaviour overrides fields of evidence.Profile; what is left out is the
// adapter's.
type behaviour struct {
	AckConfirms      *bool `yaml:"ack-confirms"`
	ConfirmIsDurable *bool `yaml:"confirm-is-durable"`
	KeepsRows        *bool `yaml:"keeps-rows"`
	KeepsSubscribers *bool `yaml:"keeps-subscribers"`
	MarksAgain       *bool `yaml:"marks-again"`
}

// over returns the adapter's profile with the file's values.
func (b behaviour) over(p evidence.Profile) evidence.Profile {
	for to, said := range map[*bool]*bool{
		&p.AckConfirms: b.AckConfirms, &p.ConfirmIsDurable: b.ConfirmIsDurable, &p.KeepsRows: b.KeepsRows,
		&p.KeepsSubscribers: b.KeepsSubscribers, &p.MarksAgain: b.MarksAgain,
	} {
		if said != nil {
			*to = *said
		}
	}
	return p
}

// limits overrides evidence.Limits; zero fields are the adapter's.
type limits struct {
	MaxAttempts      int           `yaml:"max-attempts"`
	DropsAfter       int           `yaml:"drops-after"`
	RedeliveryPeriod time.Duration `yaml:"redelivery-period"`
	RecoveryBound    time.Duration `yaml:"recovery-bound"`
	InFlightBound    time.Duration `yaml:"in-flight-bound"`
	ExpiryTolerance  time.Duration `yaml:"expiry-tolerance"`
	DeleteBound      time.Duration `yaml:"delete-bound"`
	NackDelay        time.Duration `yaml:"nack-delay"`
	Remembers        time.Duration `yaml:"remembers"`
	AnswerBound      time.Duration `yaml:"answer-bound"`
	ProgressBound    time.Duration `yaml:"progress-bound"`
	DrainDeadline    time.Duration `yaml:"drain-deadline"`
	MaxPending       int           `yaml:"max-pending"`
	OrderScope       string        `yaml:"order-scope"`
}

// period is a duration of the file, and the limit that it overrides.
type period struct {
	name string
	is   time.Duration
	over *time.Duration
}

func (l *limits) periods(over *evidence.Limits) []period {
	return []period{
		{"redelivery-period", l.RedeliveryPeriod, &over.RedeliveryPeriod},
		{"recovery-bound", l.RecoveryBound, &over.RecoveryBound},
		{"in-flight-bound", l.InFlightBound, &over.InFlightBound},
		{"expiry-tolerance", l.ExpiryTolerance, &over.ExpiryTolerance},
		{"delete-bound", l.DeleteBound, &over.DeleteBound},
		{"nack-delay", l.NackDelay, &over.NackDelay},
		{"remembers", l.Remembers, &over.Remembers},
		{"answer-bound", l.AnswerBound, &over.AnswerBound},
		{"progress-bound", l.ProgressBound, &over.ProgressBound},
		{"drain-deadline", l.DrainDeadline, &over.DrainDeadline},
	}
}

// fields lists the known fields, by their parent.
var fields = map[string][]string{
	"":          {"system", "name", "address", "user-from", "password-from", "tls", "claims", "behaviour", "limits", "known", "start", "stop", "kill"},
	"tls":       {"ca", "server-name"},
	"claims":    {"guarantee", "under"},
	"behaviour": {"ack-confirms", "confirm-is-durable", "keeps-rows", "keeps-subscribers", "marks-again"},
	"limits":    {"max-attempts", "drops-after", "redelivery-period", "recovery-bound", "in-flight-bound", "expiry-tolerance", "delete-bound", "nack-delay", "remembers", "answer-bound", "progress-bound", "drain-deadline", "max-pending", "order-scope"},
	"known":     {"guarantee", "reason", "until"},
}

// maxFile bounds the file, in bytes.
const maxFile = 1 << 20

func read(path string) (file, error) {
	text, err := evidence.ReadRegular(path, maxFile)
	if err != nil {
		return file{}, fmt.Errorf("read a profile: %w", err)
	}
	return parse(path, text)
}

// parse parses and validates a file. Errors name file, line and field.
func parse(path string, text []byte) (file, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return file{}, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(document.Content) == 0 || document.Content[0].Kind != yaml.MappingNode {
		return file{}, fmt.Errorf("%s:1: a profile is a list of FIELD: VALUE; begin with system: SYSTEM:PROFILE", path)
	}
	root := document.Content[0]
	lines := make(map[string]int)
	if err := checkFields(path, "", "", root, lines); err != nil {
		return file{}, err
	}
	var f file
	if err := root.Decode(&f); err != nil {
		return file{}, fmt.Errorf("%s: %s", path, strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " "))
	}
	f.locate = func(field string) string {
		line := lines[field]
		if line == 0 {
			line = 1 // the field is missing
		}
		return fmt.Sprintf("%s:%d: %s", path, line, field)
	}
	if f.Name == "" {
		f.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	if f.TLS != nil && f.TLS.CA != "" && !filepath.IsAbs(f.TLS.CA) {
		f.TLS.CA = filepath.Join(filepath.Dir(path), f.TLS.CA)
	}
	return f, f.check()
}

// checkFields rejects unknown fields and records the line of each. kind selects
// the known fields, name is the node's own.
func checkFields(path, kind, name string, n *yaml.Node, lines map[string]int) error {
	switch n.Kind {
	case yaml.SequenceNode:
		for i, item := range n.Content {
			if err := checkFields(path, kind, fmt.Sprintf("%s[%d]", name, i), item, lines); err != nil {
				return err
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if !slices.Contains(fields[kind], key.Value) {
				return fmt.Errorf("%s:%d: %s: %s has no such field%s", path, key.Line, key.Value, cmp.Or(kind, "a profile"), script.Suggest(key.Value, fields[kind]))
			}
			field := key.Value
			if name != "" {
				field = name + "." + field
			}
			lines[field] = key.Line
			if kind == "" && fields[key.Value] != nil {
				if err := checkFields(path, key.Value, field, value, lines); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (f file) check() error {
	wrong := func(field, format string, args ...any) error {
		return fmt.Errorf("%s: %s", f.locate(field), fmt.Sprintf(format, args...))
	}
	if f.System == "" || IsFile(f.System) || strings.Contains(f.System, "@") {
		return wrong("system", "name the adapter and the profile whose settings the server has, such as redis:aof-always-claim")
	}
	if _, port, err := net.SplitHostPort(f.Address); err != nil || port == "" {
		return wrong("address", "%q is no address; write HOST:PORT, such as 127.0.0.1:6379", f.Address)
	}
	if strings.ContainsAny(f.Name, " /:@\n") {
		return wrong("name", "%q: a name has no blanks, slashes, colons or @", f.Name)
	}
	if f.PasswordFrom == "" && f.UserFrom != "" {
		return wrong("password-from", "a user without a password; name the environment variable that holds it")
	}
	given := 0
	for _, command := range [][]string{f.Start, f.Stop, f.Kill} {
		if len(command) > 0 {
			given++
		}
	}
	if given != 0 && given != 3 {
		return wrong("start", "give all of start, stop and kill, or none of them: a server that is struck must be restarted")
	}
	var names []string
	for _, g := range guarantees.Guarantees() {
		names = append(names, g.Name)
	}
	for i, c := range f.Claims {
		if err := guarantees.CheckClaims(evidence.Claim{Guarantee: c.Guarantee, Owner: evidence.OwnerSystem}); err != nil {
			return wrong(fmt.Sprintf("claims[%d].guarantee", i), "%v", err)
		}
		if !slices.Contains(names, c.Guarantee) {
			return wrong(fmt.Sprintf("claims[%d].guarantee", i), "no guarantee %q%s", c.Guarantee, script.Suggest(c.Guarantee, names))
		}
		for _, class := range c.Under {
			if !slices.Contains(evidence.Classes(), class) {
				return wrong(fmt.Sprintf("claims[%d].under", i), "no class of fault %q%s", class, script.Suggest(string(class), classNames()))
			}
		}
	}
	for i, k := range f.Known {
		if !slices.Contains(names, k.Guarantee) {
			return wrong(fmt.Sprintf("known[%d].guarantee", i), "no guarantee %q%s", k.Guarantee, script.Suggest(k.Guarantee, names))
		}
		if _, err := time.Parse(evidence.Day, k.Until); err != nil {
			return wrong(fmt.Sprintf("known[%d].until", i), "%q is no date; write 2027-01-31", k.Until)
		}
		if k.Reason == "" {
			return wrong(fmt.Sprintf("known[%d].reason", i), "give the reason, such as the number of a ticket")
		}
	}
	return f.Limits.check(wrong)
}

func classNames() []string {
	var names []string
	for _, c := range evidence.Classes() {
		names = append(names, string(c))
	}
	return names
}

// maxPeriod bounds the durations of a file.
const maxPeriod = 24 * time.Hour

func (l limits) check(wrong func(field, format string, args ...any) error) error {
	for _, p := range l.periods(&evidence.Limits{}) {
		if p.is < 0 {
			return wrong("limits."+p.name, "%s is negative", p.is)
		}
		if p.is > maxPeriod {
			return wrong("limits."+p.name, "%s is more than %s, after which a loss is never detected", p.is, maxPeriod)
		}
	}
	if l.MaxPending < 0 {
		return wrong("limits.max-pending", "%d is negative; leave it out for no bound", l.MaxPending)
	}
	if l.MaxAttempts < 0 {
		return wrong("limits.max-attempts", "%d is negative; leave it out for no limit", l.MaxAttempts)
	}
	if l.DropsAfter < 0 {
		return wrong("limits.drops-after", "%d is negative; leave it out for never", l.DropsAfter)
	}
	if l.MaxAttempts > 0 && l.DropsAfter > 0 {
		return wrong("limits.drops-after", "with max-attempts a message is dead-lettered, with drops-after it is dropped; give one of the two")
	}
	if scopes := []string{"connection", "key", "partition"}; l.OrderScope != "" && !slices.Contains(scopes, l.OrderScope) {
		return wrong("limits.order-scope", "no scope %q%s", l.OrderScope, script.Suggest(l.OrderScope, scopes))
	}
	return nil
}

// over returns the adapter's limits with the file's values.
func (l limits) over(base evidence.Limits, scale float64) evidence.Limits {
	for _, p := range l.periods(&base) {
		if p.is > 0 {
			*p.over = time.Duration(float64(p.is) * scale)
		}
	}
	if l.MaxPending > 0 {
		base.MaxPending = l.MaxPending
	}
	if l.MaxAttempts > 0 {
		base.MaxAttempts, base.DropsAfter = l.MaxAttempts, 0
	}
	if l.DropsAfter > 0 {
		base.MaxAttempts, base.DropsAfter = 0, l.DropsAfter
	}
	if l.OrderScope != "" {
		base.OrderScope = l.OrderScope
	}
	return base
}

// checkClaims rejects claims of a bound that is not stated, and those that
// contradict the behaviour: unless confirmations are durable, the judge lets a
// crash undo a confirmed acknowledgement.
func (f file) checkClaims(p evidence.Profile) error {
	bounds := map[string]struct {
		limit  string
		stated bool
	}{
		evidence.Answered:     {"answer-bound", p.Limits.AnswerBound > 0},
		evidence.Progress:     {"progress-bound", p.Limits.ProgressBound > 0},
		evidence.BoundedQueue: {"max-pending", p.Limits.MaxPending > 0},
	}
	for i, c := range f.Claims {
		if b, ok := bounds[c.Guarantee]; ok && !b.stated {
			return fmt.Errorf("%s: %s is claimed, and nothing says of which bound; set limits: {%s: …}", f.locate(fmt.Sprintf("claims[%d].guarantee", i)), c.Guarantee, b.limit)
		}
		if c.Guarantee != evidence.AckIsFinal || p.ConfirmIsDurable {
			continue
		}
		for _, class := range []evidence.Class{evidence.BrokerCrash, evidence.PowerLoss} {
			if slices.Contains(c.Under, class) {
				return fmt.Errorf("%s: %s under %s promises that a confirmed acknowledgement is durable; say so with behaviour: {confirm-is-durable: true}, or leave %[3]s out", f.locate(fmt.Sprintf("claims[%d].under", i)), c.Guarantee, class)
			}
		}
	}
	return nil
}

// checkLimits rejects limits that contradict each other.
func (f file) checkLimits(l evidence.Limits) error {
	if l.RecoveryBound <= l.RedeliveryPeriod {
		return fmt.Errorf("%s: recovery-bound (%s) must be longer than redelivery-period (%s); set both", f.locate("limits"), l.RecoveryBound, l.RedeliveryPeriod)
	}
	if longest := max(l.RecoveryBound, l.RedeliveryPeriod, l.DeleteBound, l.InFlightBound); l.DrainDeadline <= longest {
		return fmt.Errorf("%s: drain-deadline (%s) must be longer than every bound (%s); set it too", f.locate("limits"), l.DrainDeadline, longest)
	}
	return nil
}
