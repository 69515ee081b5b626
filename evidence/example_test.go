package evidence_test

import (
	"fmt"
	"os"

	"github.com/custodymq/custody/evidence"
)

// Record a run, close it, and read it back from its folder.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if err := record(dir); err != nil {
		fmt.Println(err)
		return
	}

	run, err := evidence.Open(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	h, err := run.History()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s, damage %q\n", h.Manifest.End.How, h.Damage)
	for e, err := range h.Events {
		if err != nil { // the evidence is unreadable: never ignore this
			fmt.Println(err)
			return
		}
		fmt.Println(e.Seq, e.Kind, e.Actor, e.PublishID, e.Acceptance)
	}
	// Output:
	// completed, damage ""
	// 1 publish-called p1 p1-1-1 unknown
	// 2 publish-returned p1 p1-1-1 accepted
}

func record(dir string) error {
	r, err := evidence.Create(dir, evidence.Manifest{Run: "example", Scale: 1}, []byte("scenario example\n"))
	if err != nil {
		return err
	}
	r.Record(evidence.Event{Kind: evidence.PublishCalled, Actor: "p1", PublishID: evidence.PublishID("p1", 1, 1)})
	r.Record(evidence.Event{Kind: evidence.PublishReturned, Actor: "p1", PublishID: evidence.PublishID("p1", 1, 1), Acceptance: evidence.Accepted})
	return r.Close(evidence.End{How: evidence.EndCompleted})
}

// A filter uses MQTT's notation, whatever the system's own is.
func ExampleFilter() {
	f := evidence.Filter("orders/+/paid")
	fmt.Println(f.Matches("orders/7/paid"), f.Matches("orders/7/8/paid"))
	fmt.Println(evidence.Filter("orders.*").Foreign())
	// Output:
	// true false
	// true
}
