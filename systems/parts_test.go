package systems_test

import (
	"context"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

type whole struct {
	systems.Instance
	parts []any
}

func (w whole) Parts() []any { return w.parts }

func (whole) Position(context.Context, string) (string, error) { return "of the whole", nil }

func (whole) Rewind(context.Context, string, string, systems.Point) error { return nil }

type rows struct{}

func (rows) Rows(context.Context) (evidence.Snapshot, error) { return evidence.Snapshot{Count: 7}, nil }

type position struct{ systems.Rewinder }

func TestAsFindsWhatThePartsImplement(t *testing.T) {
	in := whole{parts: []any{position{}, rows{}}}
	if inspector, ok := systems.As[systems.Inspector](in); !ok {
		t.Error("no part is found")
	} else if s, err := inspector.Rows(t.Context()); err != nil || s.Count != 7 {
		t.Errorf("rows %+v, %v", s, err)
	}
	if rewinder, ok := systems.As[systems.Rewinder](in); !ok {
		t.Error("the instance's own interface is not found")
	} else if at, _ := rewinder.Position(t.Context(), ""); at != "of the whole" {
		t.Errorf("the interface is that of %q, not the instance's own", at)
	}
	if _, ok := systems.As[systems.Process](in); ok {
		t.Error("an interface is found that nothing implements")
	}
	if !systems.Meets(systems.NeedRows, nil, in) || systems.Meets(systems.NeedProcess, nil, in) {
		t.Error("needs do not follow the parts")
	}
}
