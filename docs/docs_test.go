// Package docs_test keeps the documentation correct: it runs its commands,
// parses its scripts, follows its links and compares its generated parts with
// the code.
//
//	go test ./docs -update    regenerates those parts
package docs_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/script"
)

var update = flag.Bool("update", false, "write the generated parts of the documentation anew")

const root = ".."

// documents returns every page of the project by its path.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.md", "docs/*.md", "broker/*.md", "examples/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			name, err := filepath.Rel(root, p)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, filepath.ToSlash(name))
		}
	}
	for _, must := range []string{"README.md", "CONTRIBUTING.md", "docs/script.md", "docs/guarantees.md"} {
		if !slices.Contains(found, must) {
			t.Fatalf("%s was not found among %q", must, found)
		}
	}
	return found
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// block is a fenced block of a page.
type block struct {
	language string
	line     int // of its first line
	text     string
}

// blocks returns the fenced blocks of a page. As in renderers, an open fence
// ends with the page.
func blocks(page string) []block {
	var found []block
	var open *block
	for i, line := range strings.Split(page, "\n") {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			found = append(found, block{language: language, line: i + 2})
			open = &found[len(found)-1]
		case fence:
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	return found
}

func TestScriptsParse(t *testing.T) {
	parsed := 0
	for _, page := range documents(t) {
		for _, b := range blocks(read(t, page)) {
			if b.language != "custody" {
				continue
			}
			parsed++
			text, whole := b.text, strings.HasPrefix(b.text, "scenario ")
			if !whole {
				text = "scenario fragment\n" + text
			}
			s, err := script.Parse(fmt.Sprintf("%s, block at line %d", page, b.line), text)
			if err != nil {
				t.Error(err)
				continue
			}
			if again := script.Print(s); whole && again != text {
				t.Errorf("%s, block at line %d is not written as Custody prints it:\n%s", page, b.line, again)
			}
			if whole {
				if err := runner.Check(s); err != nil {
					t.Errorf("%s, block at line %d: %v", page, b.line, err)
				}
			}
		}
	}
	if parsed < 7 {
		t.Errorf("only %d scripts were found", parsed)
	}
}

// TestNotationIsComplete takes the vocabulary from what the parser says of a
// word that it does not know.
func TestNotationIsComplete(t *testing.T) {
	page := read(t, "docs/script.md")
	for _, unknown := range []string{
		"%", "await %", "producer p to q, %", "consumer c on q, %", "publish m by p, %", "retry m by p, %", "fault f: drop broker %",
	} {
		unknown = strings.ReplaceAll(unknown, "%", "unheard-of")
		_, err := script.Parse("", "scenario s\n"+unknown+"\n")
		var wrong *script.Error
		if !errors.As(err, &wrong) {
			t.Fatalf("%q was parsed: %v", unknown, err)
		}
		_, known, ok := strings.Cut(wrong.Text, "; known: ")
		if !ok {
			t.Fatalf("%q: the error names no known words: %v", unknown, err)
		}
		for _, word := range strings.Split(known, ", ") {
			if !regexp.MustCompile("`" + regexp.QuoteMeta(word) + "[ `,]").MatchString(page) {
				t.Errorf("docs/script.md does not tell of %q (%s)", word, unknown)
			}
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksLead(t *testing.T) {
	for _, page := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			target := page
			if path != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(page), path))
				if _, err := os.Stat(filepath.Join(root, target)); err != nil {
					t.Errorf("%s: the link %q leads nowhere", page, m[1])
					continue
				}
			}
			if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: %s has no heading %q", page, target, anchor)
			}
		}
	}
}

var unanchored = regexp.MustCompile(`[^a-z0-9 _-]`)

// anchors are the headings of a page as links name them.
func anchors(page string) []string {
	var found []string
	for _, line := range strings.Split(page, "\n") {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			found = append(found, strings.ReplaceAll(unanchored.ReplaceAllString(strings.ToLower(title), ""), " ", "-"))
		}
	}
	return found
}

// commandBound is for one command of the documentation: each makes a run or
// two at most, on a machine that does other work too.
const commandBound = 2 * time.Minute

// programs are what a `sh` block may call, and how each is checked.
var programs = map[string]func(s *shell, t *testing.T, where string, args []string){
	"custody": (*shell).custody,
	"make":    (*shell).target,
	"go":      (*shell).packages,
	"cd":      unchecked,
	"export":  unchecked,
	"git":     unchecked,
}

func unchecked(*shell, *testing.T, string, []string) {}

func TestCommandsWork(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the command and makes runs")
	}
	binary := filepath.Join(t.TempDir(), "custody")
	if out, err := exec.Command("go", "build", "-o", binary, "../cmd/custody").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, page := range documents(t) {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			text := read(t, page)
			s := &shell{binary: binary, dir: t.TempDir()}
			for _, b := range blocks(text) {
				switch b.language {
				case "custody":
					// The page tells to save the scenario under this name.
					if err := os.WriteFile(filepath.Join(s.dir, "my.scenario"), []byte(b.text), 0o644); err != nil {
						t.Fatal(err)
					}
				case "yaml":
					if err := os.WriteFile(filepath.Join(s.dir, "staging.yaml"), []byte(b.text), 0o644); err != nil {
						t.Fatal(err)
					}
				case "sh":
					for i, line := range strings.Split(strings.TrimSpace(b.text), "\n") {
						s.line(t, fmt.Sprintf("%s:%d", page, b.line+i), line)
					}
				}
			}
		})
	}
}

// shell runs the lines of one page, in order, in a folder of its own.
type shell struct{ binary, dir string }

// word is a word of a command line, which may be quoted as a whole.
var word = regexp.MustCompile(`"[^"]*"|\S+`)

func (s *shell) line(t *testing.T, where, line string) {
	line, _, _ = strings.Cut(line, " #")
	words := word.FindAllString(line, -1)
	for i, w := range words {
		words[i] = strings.Trim(w, `"`)
	}
	for len(words) > 0 && strings.Contains(words[0], "=") {
		words = words[1:] // a variable of the environment
	}
	if len(words) == 0 || words[0] == "#" {
		return
	}
	check, ok := programs[filepath.Base(words[0])]
	if !ok {
		t.Errorf("%s: %q is not checked by this test; add it to programs", where, words[0])
		return
	}
	check(s, t, where, words[1:])
}

// endless are the commands that run for long, or until they are interrupted, or
// need a broker that runs: their words are checked, and they are not run.
func endless(args []string) bool {
	switch args[0] {
	case "broker", "dlq", "matrix", "sweep":
		return true
	case "defects":
		return !slices.Contains(args, "--list")
	case "explore": // one that finds, or that makes runs
		return slices.Contains(args, "--defect") || slices.Contains(args, "--system")
	case "run": // the whole checklist
		return len(args) == 1 || strings.HasPrefix(args[1], "-") || slices.Contains(args, "--repeat")
	}
	return false
}

func (s *shell) custody(t *testing.T, where string, args []string) {
	if len(args) > 0 && endless(args) {
		args = append(slices.Clone(args), "--help") // parses every flag first
	}
	if !runsHere(args) {
		t.Logf("%s: not run, for it needs python3", where)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), commandBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, args...)
	cmd.Dir = s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: custody %s: %v\n%s", where, strings.Join(args, " "), err, out)
	}
}

// target checks that the Makefile has it.
func (s *shell) target(t *testing.T, where string, args []string) {
	for _, a := range args {
		if !strings.Contains(a, "=") && !strings.Contains(read(t, "Makefile"), "\n"+a+":") {
			t.Errorf("%s: the Makefile has no target %q", where, a)
		}
	}
}

// packages checks that the folders that a go command names are there.
func (s *shell) packages(t *testing.T, where string, args []string) {
	for _, a := range args {
		path, _, _ := strings.Cut(a, "@")
		path, ours := strings.CutPrefix(path, "github.com/custodymq/custody")
		if !ours && !strings.HasPrefix(path, "./") {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(path, "..."))); err != nil {
			t.Errorf("%s: %q names no package: %v", where, a, err)
		}
	}
}
