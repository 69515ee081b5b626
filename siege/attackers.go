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

// attackOrder configures a process of attackers.
type attackOrder struct {
	Addr, Token string
	Attacks     []string
}

const (
	begun = "begun" // notification that an attack is under way
	// prepareBound limits the preparation of one attack.
	prepareBound = 2 * time.Minute
)

// attackers is the role of a process that runs some attacks until it is stopped,
// and restarts each whenever the broker was gone.
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
			_ = parent.Notify(begun, a.Name) // if the parent is gone, this process ends anyway
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

// startAttackers starts a process that runs the attacks. under counts how many
// times each got under way.
func startAttackers(ctx context.Context, order attackOrder, log io.Writer, under map[string]*atomic.Int64) (*process.Child, error) {
	return process.StartChild(ctx, process.ChildOptions{Role: attackersRole, Config: order, Log: log}, func(note string, value json.RawMessage) {
		var name string
		if note == begun && json.Unmarshal(value, &name) == nil && under[name] != nil {
			under[name].Add(1)
		}
	})
}
