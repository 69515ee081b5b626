package docs_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/custodymq/custody/systems/adapter"
)

// TestAdapterPageIsComplete: each word of the protocol is on its page.
func TestAdapterPageIsComplete(t *testing.T) {
	page := read(t, "docs/adapters.md")
	var schema any
	if err := json.Unmarshal(adapter.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	words := protocolWords(schema)
	for _, need := range adapter.Abilities() {
		words = append(words, string(need))
	}
	if len(words) < 100 {
		t.Fatalf("only %d words were found", len(words))
	}
	for _, word := range words {
		if !regexp.MustCompile("[`\"]" + regexp.QuoteMeta(word) + "[`\"]").MatchString(page) {
			t.Errorf("docs/adapters.md does not tell of %q", word)
		}
	}
}

// protocolWords are the names of fields and the words that may stand in them.
// Classes, states of a look-up and causes are told of elsewhere.
func protocolWords(value any) (words []string) {
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			words = append(words, protocolWords(one)...)
		}
	case map[string]any:
		for name, one := range v {
			switch name {
			case "class", "cause", "standing":
				continue
			case "properties":
				for field := range one.(map[string]any) {
					words = append(words, field)
				}
			case "enum":
				for _, word := range one.([]any) {
					words = append(words, word.(string))
				}
			case "const":
				if word, ok := one.(string); ok {
					words = append(words, word)
				}
			}
			words = append(words, protocolWords(one)...)
		}
	}
	return words
}

// TestConversation checks the page's lines against the schema.
func TestConversation(t *testing.T) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(adapter.Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("protocol.json", document); err != nil {
		t.Fatal(err)
	}
	valid := func(line, definition string, text []byte) {
		t.Helper()
		s, err := c.Compile("protocol.json#/$defs/" + definition)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err == nil {
			err = s.Validate(value)
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	lines := 0
	for _, b := range blocks(read(t, "docs/adapters.md")) {
		if b.language != "lines" {
			continue
		}
		ops := map[int]string{}
		for line := range strings.Lines(b.text) {
			lines++
			who, text, _ := strings.Cut(line, " ")
			var l struct {
				ID        int
				Op, Event string
				OK        json.RawMessage
			}
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			switch {
			case who == ">":
				ops[l.ID] = l.Op
				valid(line, "call."+l.Op, []byte(text))
			case l.Event != "":
				valid(line, "event."+l.Event, []byte(text))
			default:
				valid(line, "answer", []byte(text))
				if l.OK != nil {
					valid(line, "answer."+ops[l.ID], l.OK)
				}
				delete(ops, l.ID)
			}
		}
		delete(ops, 0) // a cancel
		if len(ops) > 0 {
			t.Errorf("not answered: %v", ops)
		}
	}
	if lines < 20 {
		t.Errorf("only %d lines were found", lines)
	}
}

// runsHere reports whether a command of the documentation finds what it needs:
// an adapter is run by its language.
func runsHere(args []string) bool {
	if i := slices.IndexFunc(args, func(a string) bool { return strings.Contains(a, "python3") }); i < 0 {
		return true
	}
	_, err := exec.LookPath("python3")
	return err == nil
}
