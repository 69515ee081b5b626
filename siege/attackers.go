package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/attack"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/tasks"
)

const attackersRole = "attackers"

// attackOrder is what a process of attackers is told.
type attackOrder struct {
	Addr, Token string
	Attacks     []string
}

const (
	begun = "begun" // the note of an attack that is under way
	// prepareBound is for one attack to come under way.
	prepareBound = 2 * time.Minute
)

// attackers are a process that makes some attacks, each again whenever the broker
// was gone, until it is stopped.
func attackers() process.Role {
	ctx, cancel := context.WithCancel(context.Background())
	var all tasks.Group
	return process.Role{
		Start: func(_ context.Context, config json.RawMessage, parent *process.Parent) error {
			var order attackOrder
			if err := json.Unmarshal(config, &order); err != nil {
				return err
			}
			for _, name := range order.Attacks {
				a, err := attack.Named(name)
				if err != nil {
					return err
				}
				all.Go(func() { repeat(ctx, a, order, parent) })
			}
			return nil
		},
		Stop: func(context.Context) error {
			cancel()
			all.Wait()
			return nil
		},
	}
}

func repeat(ctx context.Context, a attack.Attack, order attackOrder, parent *process.Parent) {
	for ctx.Err() == nil {
		preparing, cancel := context.WithTimeout(ctx, prepareBound)
		p, err := a.Start(preparing, order.Addr, order.Token)
		cancel()
		if err == nil {
			_ = parent.Notify(begun, a.Name) // a parent that is gone ends this process
			select {
			case <-p.Gone():
				err = p.Err()
			case <-ctx.Done():
			}
			p.End()
		}
		if ctx.Err() != nil {
			return
		}
		fmt.Println("attack", a.Name, "begins again:", err)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// startAttackers has a process make the attacks; under is how many times each
// came under way.
func startAttackers(ctx context.Context, order attackOrder, log io.Writer, under map[string]*atomic.Int64) (*process.Child, error) {
	return process.StartChild(ctx, process.ChildOptions{Role: attackersRole, Config: order, Log: log}, func(note string, value json.RawMessage) {
		var name string
		if note == begun && json.Unmarshal(value, &name) == nil && under[name] != nil {
			under[name].Add(1)
		}
	})
}
