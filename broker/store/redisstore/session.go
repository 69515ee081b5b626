package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
)

// session is one connection that never reconnects: what depends on it, such as
// the server's client ID, would not hold for another.
type session struct {
	*redis.Client
	conn net.Conn
}

// errSpent reports that the connection was gone and that nothing was sent.
var errSpent = errors.New("the connection was lost")

// connect opens a session and waits until the server answers.
func (s *Store) connect(ctx context.Context) (*session, error) {
	o := s.server
	conn, err := redis.NewDialer(&o)(ctx, o.Network, o.Addr)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	var given atomic.Bool
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if given.Swap(true) {
			return nil, errSpent
		}
		return conn, nil
	}
	x := &session{redis.NewClient(&o), conn}
	if err := x.do(ctx, func() error { return x.Ping(ctx).Err() }); err != nil {
		x.drop()
		return nil, fmt.Errorf("connect: %w", err)
	}
	return x, nil
}

// do makes ask end with ctx, which the client itself does not do.
func (x *session) do(ctx context.Context, ask func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, x.sever)
	err := ask()
	if !stop() && err != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// sever breaks the connection, which ends any call in progress with an error.
func (x *session) sever() { _ = x.conn.Close() }

func (x *session) drop() {
	x.sever()
	_ = x.Close() // closed already
}

// script runs one of the scripts, all of which return a list.
func (x *session) script(ctx context.Context, script *redis.Script, keys []string, args ...any) (reply []any, err error) {
	err = x.do(ctx, func() error {
		reply, err = script.Run(ctx, x.Client, keys, args...).Slice()
		return err
	})
	return reply, err
}

// How long a write waits for the replicas that are to have it: less than publishers
// commonly wait for an answer, so that they hear one; nobody waits for the claim.
const (
	replicaPatience = time.Second / 2
	claimPatience   = 5 * time.Second
)

// errUnreplicated reports that a write was made, and that too few replicas have
// acknowledged it. It may be lost with the server, and it may not.
var errUnreplicated = errors.New("too few replicas have acknowledged the write")

// write runs a script that writes, and waits until so many replicas have
// acknowledged all that this connection has written. With errUnreplicated it
// returns the script's reply too.
//
// https://redis.io/docs/latest/commands/wait/
func (x *session) write(ctx context.Context, script *redis.Script, replicas int, patience time.Duration, keys []string, args ...any) (reply []any, err error) {
	if replicas == 0 {
		return x.script(ctx, script, keys, args...)
	}
	attempt := func(run func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd) error {
		return x.do(ctx, func() error {
			pipe := x.Pipeline()
			ran, waited := run(ctx, pipe, keys, args...), pipe.Do(ctx, "WAIT", replicas, patience.Milliseconds())
			_, _ = pipe.Exec(ctx) // each has its own error
			if reply, err = ran.Slice(); err != nil {
				return err
			}
			n, err := waited.Int64()
			if answered(err) || err == nil && n < int64(replicas) {
				err = fmt.Errorf("%w: %d of %d in %v", errUnreplicated, n, replicas, patience)
			}
			return err
		})
	}
	if err = attempt(script.EvalSha); redis.HasErrorPrefix(err, "NOSCRIPT") {
		err = attempt(script.Eval)
	}
	return reply, err
}

// answered reports that the error is a reply of the server.
func answered(err error) bool {
	var said redis.Error
	return errors.As(err, &said)
}

// refusals are the prefixes of error replies that precede any write of a script:
// Redis checks for their causes when a script starts and at its first write.
var refusals = []string{
	"OOM ", "MISCONF ", "READONLY ", "LOADING ", "NOSCRIPT ", "MASTERDOWN ", "CLUSTERDOWN ", "MOVED ", "ASK ", "TRYAGAIN ",
	"NOAUTH ", "WRONGPASS ", "NOPERM ", "BUSY ", "NOREPLICAS ", "ERR max number of clients reached",
}

func refused(err error) bool { return says(err, refusals...) }

// full reports that the server lacks memory or disk space.
func full(err error) bool { return says(err, "OOM ", "MISCONF ") }

func says(err error, prefixes ...string) bool {
	var said redis.Error
	return errors.As(err, &said) && slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(said.Error(), prefix) })
}

// demands are the DSN's parameters that are not the client's.
type demands struct {
	appendfsync string // what the user asserts about a server that does not disclose it
	replicas    int    // that must have acknowledged a write
}

// prepare refuses a server that cannot honour the flush policy, and returns the
// server's run ID.
func (x *session) prepare(ctx context.Context, flush store.Flush, asked demands) (run string, err error) {
	info := map[string]string{}
	for _, section := range []string{"server", "replication", "persistence", "memory"} {
		var text string
		err := x.do(ctx, func() (err error) { text, err = x.Info(ctx, section).Result(); return err })
		if err != nil {
			return "", fmt.Errorf("INFO %s: %w", section, err)
		}
		for line := range strings.Lines(text) {
			if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
				info[name] = value
			}
		}
	}
	policy := info["maxmemory_policy"]
	major, _, _ := strings.Cut(info["redis_version"], ".")
	release, err := strconv.Atoi(major)
	switch {
	case err != nil || release < 7: // older servers hide why a script's command was refused
		return "", fmt.Errorf("the server is of version %q: Redis 7.0 or newer is needed", info["redis_version"])
	case info["role"] != "master":
		return "", fmt.Errorf("the server is a %s of %s:%s, and takes no writes: connect to its master", info["role"], info["master_host"], info["master_port"])
	case info["aof_enabled"] != "1":
		return "", errors.New("the server runs with appendonly no, and loses what it has confirmed when it ends: set appendonly yes")
	case policy != "noeviction":
		return "", fmt.Errorf("the server runs with maxmemory-policy %s, and gives up rows for want of memory: set maxmemory-policy noeviction", policy)
	}
	return info["run_id"], x.syncs(ctx, flush, asked)
}

// syncs refuses a server that syncs its AOF too late. Rewriting the AOF must not
// suspend syncing either, which no-appendfsync-on-rewrite yes does even under
// always.
func (x *session) syncs(ctx context.Context, flush store.Flush, asked demands) error {
	var config map[string]string
	err := x.do(ctx, func() (err error) { config, err = x.ConfigGet(ctx, "*append*").Result(); return err })
	fsync, paused := config["appendfsync"], config["no-appendfsync-on-rewrite"]
	if err != nil || fsync == "" {
		if err != nil && !answered(err) {
			return fmt.Errorf("CONFIG GET: %w", err)
		}
		if fsync = asked.appendfsync; fsync == "" {
			return errors.New("the server does not show its appendfsync: if it is set so, and no-appendfsync-on-rewrite is no, add appendfsync=always to the DSN (or everysec, for the flush policy periodic)")
		}
		paused = "no"
	}
	switch {
	case fsync == "always" && (paused == "no" || flush == store.FlushPeriodic):
		return nil
	case fsync == "everysec" && flush == store.FlushPeriodic:
		return nil
	case fsync == "always":
		return errors.New("the server runs with no-appendfsync-on-rewrite yes, and does not sync while it rewrites its log: set it to no, or ask for the flush policy periodic")
	}
	return fmt.Errorf("the server runs with appendfsync %s, and loses what it has confirmed when power fails: set appendfsync always, or everysec and the flush policy periodic", fsync)
}
