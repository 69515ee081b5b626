package explore

import (
	"fmt"
	"slices"

	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/script"
)

// Shrink returns a small scenario for which fails is still true, as it is for
// s: first with fewer steps (delta debugging), then with simpler ones, until
// neither helps. It skips scripts that runner.Check rejects. fails is called
// at most bound times.
func Shrink(s script.Scenario, bound int, fails func(script.Scenario) bool) script.Scenario {
	k := &shrinker{best: s, left: bound, fails: fails}
	for {
		before := script.Print(k.best)
		k.fewer()
		k.plainer()
		if k.left <= 0 || script.Print(k.best) == before {
			return k.best
		}
	}
}

type shrinker struct {
	best  script.Scenario
	left  int
	fails func(script.Scenario) bool
}

// try keeps the steps if the scenario still fails.
func (k *shrinker) try(steps []script.Step) bool {
	s := k.best
	s.Steps = steps
	if k.left <= 0 || !fair(s) || runner.Check(s) != nil {
		return false
	}
	k.left--
	if !k.fails(s) {
		return false
	}
	k.best = s
	return true
}

// fewer removes runs of steps (halves, quarters, down to one), and pairs, such
// as a fault and its heal.
func (k *shrinker) fewer() {
	for size := max(len(k.best.Steps)/2, 1); size >= 1; size /= 2 {
		for at := len(k.best.Steps) - size; at >= 0; at-- {
			if at+size <= len(k.best.Steps) {
				k.try(slices.Delete(slices.Clone(k.best.Steps), at, at+size))
			}
		}
	}
	for i := len(k.best.Steps) - 1; i > 0; i-- {
		for j := i - 1; j >= 0 && i < len(k.best.Steps); j-- {
			k.try(slices.Delete(slices.Delete(slices.Clone(k.best.Steps), i, i+1), j, j+1))
		}
	}
}

// plainer tries every simpler form of every step.
func (k *shrinker) plainer() {
	for i := range k.best.Steps {
		for again := true; again; {
			again = slices.ContainsFunc(simpler(k.best.Steps[i]), func(form script.Step) bool {
				steps := slices.Clone(k.best.Steps)
				steps[i] = form
				return k.try(steps)
			})
		}
	}
}

// simpler returns every variant of the step with one detail less.
func simpler(step script.Step) []script.Step {
	switch s := step.(type) {
	case script.Producer:
		return leavingOut(&s, &s.TTL)
	case script.Consumer:
		forms := append(leavingOut(&s, &s.Child), leavingOut(&s, &s.Silent)...)
		forms = append(append(forms, leavingOut(&s, &s.Offline)...), leavingOut(&s, &s.Window)...)
		return append(forms, failingLess(s)...)
	case script.Publish:
		forms := append(leavingOut(&s, &s.Background), leavingOut(&s, &s.Cancel)...)
		forms = append(append(forms, leavingOut(&s, &s.Until)...), leavingOut(&s, &s.Window)...)
		forms = append(append(forms, leavingOut(&s, &s.Size)...), leavingOut(&s, &s.TTL)...)
		forms = append(forms, leavingOut(&s, &s.MessageID)...)
		switch {
		case s.To == 0:
			return forms
		case s.To > s.From:
			s.To--
		default:
			s.BusinessID, s.From, s.To = fmt.Sprintf("%s%d", s.BusinessID, s.From), 0, 0
		}
		return append(forms, s)
	case script.Fault:
		forms := append(leavingOut(&s, &s.Repeat), leavingOut(&s, &s.N)...)
		if s.Target != "" && s.Event != "" { // unconditional, instead of at a hand-over
			forms = append(forms, script.Fault{Label: s.Label, Verb: s.Verb, Target: s.Target, By: s.By})
		}
		return forms
	case script.Await:
		if s.Condition.Times > 0 {
			s.Condition = script.Condition(s.Condition.Verb, s.Condition.Subject, s.Condition.Word, 0)
			return []script.Step{s}
		}
	}
	return nil
}

// leavingOut returns the step with a field cleared; nothing if the field was
// zero.
func leavingOut[S script.Step, V comparable](step *S, field *V) []script.Step {
	var zero V
	was := *field
	if was == zero {
		return nil
	}
	*field = zero
	form := *step
	*field = was
	return []script.Step{form}
}

// failingLess returns forms with one failure less, or failing always instead of
// a few times.
func failingLess(s script.Consumer) (forms []script.Step) {
	for i, f := range s.Fails {
		form := s
		if f.Times > 0 {
			form.Fails = slices.Clone(s.Fails)
			form.Fails[i].Times = 0
			forms = append(forms, form)
		}
		form.Fails = slices.Delete(slices.Clone(s.Fails), i, i+1)
		forms = append(forms, form)
	}
	return forms
}
