package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v3"
)

// Equivalent is a mutant indistinguishable from the original by any client.
// Code the catalogue merely does not reach is not equivalent.
type Equivalent struct {
	Identity `yaml:",inline"`
	Reason   string `yaml:"reason"`
}

// readEquivalents reads the marked mutants. Each must match one of all, so that
// entries do not outlive their code.
func readEquivalents(name string, all []Mutant) (map[Identity]string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var list []Equivalent
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&list); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	exists := map[Identity]bool{}
	for _, m := range all {
		exists[m.Identity] = true
	}
	marked := map[Identity]string{}
	for i, e := range list {
		switch _, twice := marked[e.Identity]; {
		case !exists[e.Identity]:
			return nil, fmt.Errorf("%s: entry %d matches no mutant, remove it or take the text from -list: %s", name, i+1, e.Identity)
		case twice:
			return nil, fmt.Errorf("%s: entry %d is a duplicate: %s", name, i+1, e.Identity)
		case e.Reason == "":
			return nil, fmt.Errorf("%s: entry %d has no reason: %s", name, i+1, e.Identity)
		}
		marked[e.Identity] = e.Reason
	}
	return marked, nil
}
