package adapter

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/custodymq/custody/script"
)

// skeletons are adapters to begin with, by language. A name that ends in .txt is
// written without it.
//
//go:embed skeletons
var skeletons embed.FS

// Languages are those that New has a skeleton for.
func Languages() []string {
	entries, err := skeletons.ReadDir("skeletons")
	if err != nil {
		return nil // it is embedded
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// New writes a language's skeleton to a new or empty folder.
func New(language, dir string) error {
	from, err := fs.Sub(skeletons, "skeletons/"+language)
	if err != nil {
		return fmt.Errorf("adapter: %w", err)
	}
	files, err := fs.ReadDir(from, ".")
	if err != nil {
		return fmt.Errorf("no skeleton in %q%s", language, script.Suggest(language, Languages()))
	}
	if there, err := os.ReadDir(dir); err == nil && len(there) > 0 {
		return fmt.Errorf("%s is not empty: name a new folder", dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("adapter: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("adapter: %w", err)
	}
	for _, f := range files {
		text, err := fs.ReadFile(from, f.Name())
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, strings.TrimSuffix(f.Name(), ".txt")), text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("adapter: %w", err)
		}
	}
	return nil
}
