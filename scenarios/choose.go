package scenarios

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// Choose finds scenarios by their names, and scripts by the paths of files and
// folders, which hold a dot or a slash. Of a folder it takes each *.scenario in
// it, in the order of the names. Without names it returns All.
func Choose(names ...string) ([]script.Scenario, error) {
	if len(names) == 0 {
		return All(), nil
	}
	var chosen []script.Scenario
	seen := map[string]bool{}
	for _, name := range names {
		found, err := find(name)
		if err != nil {
			return nil, err
		}
		for _, s := range found {
			if err := Check(s); err != nil {
				return nil, err
			}
			if seen[s.Name] {
				return nil, fmt.Errorf("%s is named twice; repeat the run instead (--repeat 2)", s.Name)
			}
			seen[s.Name] = true
		}
		chosen = append(chosen, found...)
	}
	return chosen, nil
}

func find(name string) ([]script.Scenario, error) {
	if !strings.ContainsAny(name, "./") {
		s, err := Find(name)
		return []script.Scenario{s}, err
	}
	files := []string{name}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		if files, err = filepath.Glob(filepath.Join(literal.Replace(name), "*.scenario")); err != nil {
			return nil, fmt.Errorf("scripts in %s: %w", name, err)
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("%s is a folder and holds no *.scenario", name)
		}
	}
	var found []script.Scenario
	for _, file := range files {
		text, err := evidence.ReadRegular(file, maxScriptFile)
		if err != nil {
			return nil, fmt.Errorf("read a script: %w", err)
		}
		s, err := script.Parse(file, string(text))
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	return found, nil
}

// maxScriptFile bounds a script file, in bytes.
const maxScriptFile = 1 << 20

// literal quotes what Glob would take for a pattern.
var literal = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)
