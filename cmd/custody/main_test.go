package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/runner/child"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems/registry"
)

func TestMain(m *testing.M) {
	child.Run(registry.Find)
	testscript.Main(m, map[string]func(){"custody": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":  exits,
			"fails":  fails,
			"listen": listen,
		},
	})
}

// exits implements "exits CODE COMMAND…": it runs a command and checks its exit
// code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	var ended *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &ended) {
		code = ended.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

// fails implements "fails CODE COMMAND…": like exits, and there must be exactly
// one line of error.
func fails(ts *testscript.TestScript, neg bool, args []string) {
	exits(ts, neg, args)
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("output of a command that failed: %q", out)
	}
	text := ts.ReadFile("stderr")
	if !strings.HasPrefix(text, "custody: ") || strings.Count(text, "\n") != 1 {
		ts.Fatalf("want one line that begins with custody: , got %q", text)
	}
}

// listen implements "listen VARIABLE": it occupies a port until the script ends
// and stores its address.
func listen(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: listen VARIABLE")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv(args[0], l.Addr().String())
}

func TestEveryCommandTeaches(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s lacks its Short or Example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(rootCommand())
}

func TestEveryNameIsExplained(t *testing.T) {
	for _, s := range subjects {
		entries := s.Entries()
		if len(entries) == 0 {
			t.Errorf("there are no %s", s.Plural)
		}
		for _, e := range entries {
			var out bytes.Buffer
			if err := explain(&out, e.Name); err != nil {
				t.Error(err)
			}
			if e.Text == "" || !strings.Contains(out.String(), s.Name+" "+e.Name+"\n"+e.Text) {
				t.Errorf("%s %s: explained by %q", s.Name, e.Name, out.String())
			}
		}
	}
}

func TestExamplesOfFaultsAreScript(t *testing.T) {
	for _, e := range faultEntries() {
		example := e.Data.(faultView).Example
		if _, err := script.Parse(e.Name, "scenario example\n"+example); err != nil {
			t.Errorf("%q: %v", example, err)
		}
	}
}

func TestAFileIsWrittenWholeOrNotAtAll(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report")
	if err := os.WriteFile(name, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err := writeWhole(name, func(w io.Writer) error {
		_, _ = io.WriteString(w, "half of")
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
	if b, _ := os.ReadFile(name); string(b) != "old" {
		t.Errorf("the file holds %q", b)
	}
	if entries, _ := os.ReadDir(filepath.Dir(name)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestDeadLetters manages a broker's dead letters the way an operator would.
func TestDeadLetters(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	t.Setenv("TEST_TOKEN", "open-sesame-open-sesame")
	b, address := startBroker(t, ctx, "--max-attempts", "1", "--token-env", "TEST_TOKEN")
	dlq := func(args ...string) string {
		t.Helper()
		args = append(append([]string{"dlq"}, args...), "--address", address, "--token-env", "TEST_TOKEN")
		out, err := exec.CommandContext(ctx, "custody", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("custody %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}

	conn, err := client.Dial(ctx, address, client.Options{Name: "test", Token: "open-sesame-open-sesame"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sub, err := conn.Subscribe(ctx, client.Filter{Topic: "orders", Group: "g", Mode: wire.AtLeastOnce, Window: 1})
	if err != nil {
		t.Fatal(err)
	}
	call, err := conn.Publish(ctx, wire.Message{Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1",
		Headers: map[string]string{"tenant": "a"}, Payload: []byte("hello\x1b[31m")})
	if err != nil {
		t.Fatal(err)
	}
	reply, err := call.Wait(ctx)
	if err != nil || reply.Answer != wire.Accepted {
		t.Fatalf("publish: answer %d, %v", reply.Answer, err)
	}
	id := reply.MessageID
	fail := func() {
		t.Helper()
		d, err := sub.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if d.MessageID != id || d.Attempt != 1 {
			t.Fatalf("delivery of %s, attempt %d; want %s, attempt 1", d.MessageID, d.Attempt, id)
		}
		if _, err := d.Nack(ctx, client.Rejection{Reason: "out of stock"}); err != nil {
			t.Fatal(err)
		}
		// The row changes only after the reply.
		for ctx.Err() == nil && !strings.Contains(dlq("list"), id) {
		}
	}

	if got := dlq("list"); got != "no dead letters\n" {
		t.Errorf("list of none: %q", got)
	}
	fail()
	if got := dlq("list"); !strings.Contains(got, "order-1") || !strings.Contains(got, "out of stock") {
		t.Errorf("list: %s", got)
	}
	var view broker.RowsView
	if err := json.Unmarshal([]byte(dlq("list", "--format", "json")), &view); err != nil || len(view.Rows) != 1 {
		t.Errorf("list as JSON: %+v, %v", view, err)
	}
	if got := dlq("show", id); !strings.Contains(got, "tenant") || !strings.Contains(got, `hello\x1b[31m`) {
		t.Errorf("show: %s", got)
	}
	if got := dlq("redrive", id); got != "redriven "+id+"\n" {
		t.Errorf("redrive: %s", got)
	}
	fail()
	if got := dlq("discard", id); got != "discarded "+id+"\n" {
		t.Errorf("discard: %s", got)
	}
	if got := dlq("list"); got != "no dead letters\n" {
		t.Errorf("list after discard: %q", got)
	}

	for name, args := range map[string][]string{
		"no such letter": {"dlq", "show", "nobody", "--address", address, "--token-env", "TEST_TOKEN"},
		"no token":       {"dlq", "list", "--address", address},
		"busy port":      {"broker", "--store", "memory", "--listen", address},
	} {
		var ended *exec.ExitError
		out, err := exec.CommandContext(ctx, "custody", args...).CombinedOutput()
		if !errors.As(err, &ended) || ended.ExitCode() != 3 || bytes.Count(out, []byte("\n")) != 1 {
			t.Errorf("%s: %v, want exit 3 and one line: %s", name, err, out)
		}
	}

	endInOrder(t, b)
}

// endInOrder ends a broker by a signal, and waits for its exit.
func endInOrder(t *testing.T, b *exec.Cmd) {
	t.Helper()
	if err := b.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(); err != nil {
		t.Errorf("the broker's end: %v", err)
	}
}

// startBroker runs custody broker until the test ends or waits for its exit,
// and returns its address.
func startBroker(t *testing.T, ctx context.Context, args ...string) (*exec.Cmd, string) {
	t.Helper()
	args = append([]string{"broker", "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "rows.db")}, args...)
	return startBrokerWith(t, ctx, t.Output(), args...)
}

func startBrokerWith(t *testing.T, ctx context.Context, stderr io.Writer, args ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(ctx, "custody", args...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the broker did not get ready: %v", err)
	}
	_, address, ok := strings.Cut(strings.TrimSpace(line), " is ready on ")
	if !ok {
		t.Fatalf("the broker said %q", line)
	}
	return cmd, address
}

func TestLicencesAreBuiltIn(t *testing.T) {
	code, out, told := execute(t, "version", "--licences", "--format", "json")
	var parts []part
	if err := json.Unmarshal([]byte(out), &parts); code != 0 || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, told)
	}
	for _, want := range []part{{Module: "github.com/custodymq/custody", Licence: "Apache-2.0"}, {Module: "github.com/spf13/cobra", Licence: "Apache-2.0"}} {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.Module == want.Module && p.Licence == want.Licence }) {
			t.Errorf("%s is not listed: %v", want.Module, parts)
		}
	}
}
