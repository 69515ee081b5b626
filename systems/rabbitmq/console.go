package rabbitmq

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/tasks"
)

// console queries a node for what AMQP cannot tell: the message count of each
// queue, unacknowledged ones included. rabbitmqctl starts an Erlang VM per
// query, which takes a second, and the node's published metrics of quorum
// queues are seconds old. So one VM stays connected to the node and does what
// rabbitmqctl does. Safe for concurrent use.
type console struct {
	node  string
	image string // the node's
	dir   string // the node's; holds the socket for queries
	env   []string

	mu      sync.Mutex      // one query at a time
	process process.Process // nil until the first query
	conn    net.Conn
	answers chan string
	ended   chan struct{} // closed when the VM has ended
	last    int           // number of the last query
}

// countQuery is evaluated on the node and returns [{Name, Count}] for the queues
// with the given prefix. Quorum queues are counted by a query of their leader's
// state, classic ones by a call of their process.
const countQuery = `
Named = [{element(4, amqqueue:get_name(Q)), Q} || Q <- rabbit_amqqueue:list(<<"/">>)],
[{Name, case amqqueue:get_type(Q) of
	rabbit_quorum_queue ->
		{ok, {_, Total}, _} = ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1, 1000),
		Total;
	_ ->
		[{messages, Total}] = rabbit_amqqueue:info(Q, [messages]),
		Total
end} || {Name, Q} <- Named, string:prefix(Name, Prefix) =/= nomatch].`

// flushQuery makes the node flush its database log and the tables in which quorum
// queues keep their state.
const flushQuery = `ok = mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()], [].`

// Queries, by their position in the arguments of asking.
const (
	askCounts = "1"
	askWrite  = "2"
)

// consoleProgram reads queries ("7 1 PREFIX") and writes answers ("7 ok NAME
// COUNT …", "7 failed WHY") until its connection ends. Names are hexadecimal.
const consoleProgram = `
[Node, Socket | Texts] = init:get_plain_arguments(),
{ok, Harness} = gen_tcp:connect({local, Socket}, 0, [local, {packet, line}, {active, false}]),
Parse = fun(Text) ->
	{ok, Tokens, _} = erl_scan:string(Text),
	{ok, Expressions} = erl_parse:parse_exprs(Tokens),
	Expressions
end,
Questions = [Parse(Text) || Text <- Texts],
Ask = fun(Question, Prefix) ->
	Expressions = lists:nth(list_to_integer(Question), Questions),
	try erpc:call(list_to_atom(Node), erl_eval, exprs, [Expressions, [{'Prefix', Prefix}]], 2000) of
		{value, Counts, _} -> ["ok" | [[" ", binary:encode_hex(Name), " ", integer_to_binary(N)] || {Name, N} <- Counts]]
	catch
		_:Why -> ["failed ", io_lib:format("~0p", [Why])]
	end
end,
Loop = fun Again() ->
	case gen_tcp:recv(Harness, 0) of
		{ok, Line} ->
			[Number, Question, Prefix] = string:lexemes(Line, " \n"),
			ok = gen_tcp:send(Harness, io_lib:format("~s ~s~n", [Number, Ask(Question, Prefix)])),
			Again();
		_ -> halt()
	end
end,
Loop().`

// count returns the message count of each queue with the prefix.
func (c *console) count(ctx context.Context, prefix string) (map[string]int, error) {
	return c.ask(ctx, askCounts, prefix)
}

// write flushes the node's knowledge of its queues to its files.
func (c *console) write(ctx context.Context) error {
	_, err := c.ask(ctx, askWrite, "-")
	return err
}

func (c *console) ask(ctx context.Context, question, prefix string) (map[string]int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	c.last++
	number := strconv.Itoa(c.last)
	if _, err := fmt.Fprintf(c.conn, "%s %s %s\n", number, question, prefix); err != nil {
		return nil, fmt.Errorf("rabbitmq: query the node: %w", err)
	}
	for {
		select {
		case line := <-c.answers:
			if rest, mine := strings.CutPrefix(line, number+" "); mine { // otherwise a late answer
				return readCounts(rest)
			}
		case <-c.ended:
			return nil, errors.New("rabbitmq: the Erlang VM that queries the node has ended")
		case <-ctx.Done():
			return nil, fmt.Errorf("rabbitmq: no answer from the node: %w", context.Cause(ctx))
		}
	}
}

// readCounts reads "ok NAME COUNT NAME COUNT …".
func readCounts(answer string) (map[string]int, error) {
	words := strings.Fields(answer)
	if len(words) == 0 || words[0] != "ok" || len(words)%2 == 0 {
		return nil, fmt.Errorf("rabbitmq: unexpected answer from the node: %.200s", answer)
	}
	counts := make(map[string]int)
	for i := 1; i < len(words); i += 2 {
		name, err1 := hex.DecodeString(words[i])
		n, err2 := strconv.Atoi(words[i+1])
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("rabbitmq: count of a queue: %w", err)
		}
		counts[string(name)] = n
	}
	return counts, nil
}

// acceptEvery is the interval at which a connection of the VM is polled for.
const acceptEvery = 50 * time.Millisecond

func (c *console) start(ctx context.Context) error {
	if c.process != nil {
		return nil
	}
	socket := filepath.Join(c.dir, "console")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("rabbitmq: socket for queries of the node: %w", err)
	}
	defer l.Close()
	name := "console-" + c.node // unique at the port mapper
	process, err := process.StartProgram(ctx, process.ProgramOptions{
		Image: c.image, Path: "erl", Env: c.env, Dir: c.dir,
		Args: []string{
			"-noinput", "-hidden", "-sname", name, "-kernel", "inet_dist_use_interface", "{127,0,0,1}", "+sbwt", "none",
			"-eval", consoleProgram, "-extra", c.node, socket, countQuery, flushQuery,
		},
		Ready: func(context.Context) error {
			if err := l.SetDeadline(time.Now().Add(acceptEvery)); err != nil {
				return err
			}
			conn, err := l.Accept()
			if err == nil {
				c.conn = conn
			}
			return err
		},
	})
	if err != nil {
		return fmt.Errorf("rabbitmq: start erl to query the node: %w", err)
	}
	c.process, c.answers, c.ended = process, make(chan string, 1), make(chan struct{})
	tasks.Go(func() {
		defer close(c.ended)
		lines := bufio.NewScanner(c.conn)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			select {
			case <-c.answers: // stale
			default:
			}
			c.answers <- lines.Text()
		}
	})
	return nil
}

func (c *console) close(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return nil
	}
	err := errors.Join(c.conn.Close(), c.process.Kill(ctx))
	<-c.ended
	return err
}
