package faulty

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/wire"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seen is a hook that only records.
type seen struct{ ops []Op }

func (s *seen) Before(op Op) error          { s.ops = append(s.ops, op); return nil }
func (s *seen) After(_ Op, err error) error { return err }

func TestBatchIsAnnouncedByItsOperations(t *testing.T) {
	s := Wrap(memory.New(store.Partition{Connection: "c", Identity: "i"}, memory.Options{}))
	hook := &seen{}
	s.Arm(hook)
	batch := []store.Operation{
		{Kind: store.Insert, Row: store.Row{MessageID: "m1", BusinessID: "order-1", Version: wire.Version}},
		{Kind: store.Delete, Row: store.Row{MessageID: "m1"}},
	}
	if err := s.Apply(context.Background(), batch); err != nil {
		t.Fatal(err)
	}
	s.Disarm()
	if err := s.Apply(context.Background(), batch); err != nil {
		t.Fatal(err)
	}
	if len(hook.ops) != 1 {
		t.Fatalf("heard %+v", hook.ops)
	}
	op := hook.ops[0]
	want := []Item{{"insert", "m1", "order-1"}, {"delete", "m1", ""}}
	if op.Layer != Contract || op.Name != "apply" || len(op.Items) != 2 || op.Items[0] != want[0] || op.Items[1] != want[1] {
		t.Fatalf("heard %+v", op)
	}
	if !op.Named("apply") || !op.Named("delete") || op.Named("expire") {
		t.Error("a batch has its own name and those of its operations")
	}
}

func TestHoldIsBounded(t *testing.T) {
	hold := Hold(Always, time.Millisecond)
	if err := hold.Before(Op{}); err != nil { // returns without a release
		t.Fatal(err)
	}
	hold = Hold(Always, time.Hour)
	hold.Release()
	hold.Release()
	if err := hold.Before(Op{}); err != nil { // and at once after one
		t.Fatal(err)
	}
}

func TestFaultsLeaveOtherOperationsAlone(t *testing.T) {
	for name, test := range map[string]struct {
		fault *Fault
		op    Op
	}{
		"full does not strike a read":     {Full(Always), Op{Layer: Files, Name: "read"}},
		"full does not strike a delete":   {Full(Always), Op{Layer: Contract, Name: "apply", Items: []Item{{Name: "delete"}}}},
		"fsync does not strike a write":   {FsyncError(Always), Op{Layer: Files, Name: "write"}},
		"unreachable strikes as told":     {Unreachable(On("insert")), Op{Layer: Contract, Name: "load"}},
		"a lost reply is not forged into": {ReplyLost(On("insert")), Op{Layer: Contract, Name: "load"}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := test.fault.After(test.op, test.fault.Before(test.op)); err != nil {
				t.Error(err)
			}
			select {
			case <-test.fault.Fired():
				t.Error("it fired")
			default:
			}
		})
	}
}

func TestReplyLostKeepsAnErrorThatWasThere(t *testing.T) {
	real := &store.Failure{NotWritten: true, Err: errors.New("full")}
	if got := ReplyLost(Always).After(Op{Layer: Contract, Name: "apply"}, real); got != error(real) {
		t.Fatalf("got %v", got)
	}
}
