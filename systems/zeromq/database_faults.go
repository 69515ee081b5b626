package zeromq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

func (*serverKind) strikes() []string { return []string{"exhaust", "read-only"} }

func (d *served) faults() map[string]serverFault {
	return map[string]serverFault{"exhaust": d.exhaust, "read-only": d.readOnly, "fill": filling(d.volume, d.revive)}
}

// revive starts a server that has ended: it does so itself if its log cannot be
// written.
func (s *databaseServer) revive(ctx context.Context) error {
	if s.Running() {
		return nil
	}
	return s.Restart(ctx)
}

const (
	strikeEvery = 20 * time.Millisecond
	// refusedFor is how long a server refuses: what the broker has just lost comes
	// free a little later.
	refusedFor = 15 // times, strikeEvery
)

// exhaust takes connections until the server refuses, again and again.
func (d *served) exhaust(ctx context.Context) (func(context.Context) error, error) {
	var taken []io.Closer
	heal := func(context.Context) error {
		var errs []error
		for _, conn := range taken {
			errs = append(errs, conn.Close())
		}
		return errors.Join(errs...)
	}
	err := takeAll(ctx, d.kind.crowded, func() error {
		conn, err := d.kind.occupy(ctx, d.databaseServer)
		if conn != nil {
			taken = append(taken, conn)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, heal(ctx))
	}
	return heal, nil
}

// takeAll connects until that was refused often enough.
func takeAll(ctx context.Context, refusal func(error) bool, connect func() error) error {
	tick := time.NewTicker(strikeEvery)
	defer tick.Stop()
	for taken, refused := 0, 0; refused < refusedFor; {
		err := connect()
		switch {
		case err == nil:
			refused = 0
			if taken++; taken > 2*maxConnections {
				return fmt.Errorf("zeromq: the server gives more than %d connections", 2*maxConnections)
			}
			continue
		case !refusal(err):
			return fmt.Errorf("zeromq: take every connection of the server: %w", err)
		}
		refused++
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// readOnly makes the server take no writes of the broker's.
func (d *served) readOnly(ctx context.Context) (func(context.Context) error, error) {
	d.changed.Store(true)
	heal := func(ctx context.Context) error { return d.kind.permit(ctx, d) }
	return heal, d.kind.refuse(ctx, d)
}
