package tasks

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestPanicIsReported(t *testing.T) {
	told := make(chan error, 2)
	forget := OnPanic(func(err error) { told <- err })
	defer forget()
	ended := make(chan struct{})
	Go(func() {
		defer close(ended)
		panic("of a goroutine")
	})
	<-ended
	if err := <-told; !strings.Contains(err.Error(), "of a goroutine") || !strings.Contains(err.Error(), "tasks_test.go") {
		t.Errorf("told %v", err)
	}
	var g Group
	g.Go(func() { panic("of a group") })
	g.Wait()
	if err := <-told; !strings.Contains(err.Error(), "of a group") {
		t.Errorf("told %v", err)
	}
}

// A panic without a listener ends the process, but not with Go's exit code.
func TestPanicOfNobody(t *testing.T) {
	const variable = "CUSTODY_TEST_PANIC"
	if os.Getenv(variable) != "" {
		Go(func() { panic("of nobody") })
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanicOfNobody$")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != ExitUnmeasured || !strings.Contains(string(out), "of nobody") {
		t.Errorf("%v: %s", err, out)
	}
}

// Every goroutine of the harness must be started here: others would end the
// process with a misleading exit code.
func TestOneWayToStart(t *testing.T) {
	for _, room := range []string{"business", "cmd", "custodytest", "explore", "faults", "links", "process", "runner", "scenarios", "siege", "systems"} {
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "systemtest") {
				return err
			}
			files := token.NewFileSet()
			f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a goroutine that tasks does not start", files.Position(n.Pos()))
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "sync" && n.Sel.Name == "WaitGroup" {
						t.Errorf("%s: a sync.WaitGroup, where a tasks.Group guards what it starts", files.Position(n.Pos()))
					}
				case *ast.CallExpr:
					if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "AfterFunc" && !guarded(n.Args[len(n.Args)-1]) {
						t.Errorf("%s: AfterFunc of what is not tasks.Guarded", files.Position(n.Pos()))
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func guarded(arg ast.Expr) bool {
	call, ok := arg.(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Guarded"
}
