package adapter

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// Version is the version of the protocol.
const Version = 1

// Schema is the JSON Schema of every line: what an adapter writes is checked
// against it when it is read.
//
//go:embed protocol.schema.json
var Schema []byte

// line is what an adapter writes: an answer or an event.
type line struct {
	// An answer has one of OK and Error.
	ID    uint64          `json:"id"`
	OK    json.RawMessage `json:"ok"`
	Error *Error          `json:"error"`

	Event    string `json:"event"`
	Of       uint64 `json:"of"`
	Session  string `json:"session"`
	Reason   string `json:"reason"`
	Label    string `json:"label"`
	Delivery string `json:"delivery"`

	Operation string        `json:"operation"`
	Message   message       `json:"message"`
	Messages  []message     `json:"messages"`
	Attempt   int           `json:"attempt"`
	Mark      evidence.Mark `json:"mark"`
}

// Error is an error that an adapter has answered.
type Error struct {
	Kind ErrorKind `json:"kind"`
	Text string    `json:"text"`
}

// ErrorKind says what is known of a call that failed.
type ErrorKind string

const (
	Unavailable  ErrorKind = "unavailable"  // the system was not reached, and nothing was done
	Disconnected ErrorKind = "disconnected" // the session is gone; it may have been done
	Cancelled    ErrorKind = "cancelled"    // given up because the host has cancelled it; it may have been done
	Failed       ErrorKind = "failed"       // the adapter itself failed: the run could not measure
	UnknownOp    ErrorKind = "unknown-op"   // the adapter does not know the operation
)

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Kind, e.Text) }

func (e *Error) Unwrap() error {
	switch e.Kind {
	case Unavailable:
		return systems.ErrUnavailable
	case Disconnected:
		return systems.ErrDisconnected
	}
	return nil
}

// message is a systems.Message on the wire.
type message struct {
	Destination string            `json:"destination"`
	Payload     []byte            `json:"payload"` // base64
	Key         string            `json:"key,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	MessageID   string            `json:"messageId,omitempty"`
	TTL         duration          `json:"ttl,omitempty"`
}

func wire(m systems.Message) message {
	return message{m.Destination, m.Payload, m.Key, m.Headers, m.MessageID, duration(m.TTL)}
}

func (m message) system() systems.Message {
	return systems.Message{Destination: m.Destination, Payload: m.Payload, Key: m.Key, Headers: m.Headers, MessageID: m.MessageID, TTL: time.Duration(m.TTL)}
}

// duration is written as "500ms".
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(b []byte) error {
	parsed, err := time.ParseDuration(string(b))
	*d = duration(parsed)
	return err
}

// schemas are the definitions in Schema, by name: "answer.send".
var schemas = struct {
	sync.Mutex
	compiler *jsonschema.Compiler
}{}

const schemaURL = "protocol.schema.json"

// check checks a JSON value against a definition of Schema. The error is one
// line, and names the field and what may stand there.
func check(definition string, value []byte) error {
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	schema, err := compiled(definition)
	if err != nil {
		return err
	}
	var wrong *jsonschema.ValidationError
	if err := schema.Validate(parsed); errors.As(err, &wrong) {
		return fieldError(wrong)
	} else if err != nil {
		return err
	}
	return nil
}

func compiled(definition string) (*jsonschema.Schema, error) {
	schemas.Lock()
	defer schemas.Unlock()
	if schemas.compiler == nil {
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
		if err != nil {
			return nil, fmt.Errorf("adapter: the schema of the protocol: %w", err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource(schemaURL, document); err != nil {
			return nil, fmt.Errorf("adapter: the schema of the protocol: %w", err)
		}
		schemas.compiler = c
	}
	return schemas.compiler.Compile(schemaURL + "#/$defs/" + definition) // it keeps what it has compiled
}

// fieldError is the innermost cause: what is wrong, not which rules led there.
// A field that is not known comes first: often it is the missing one, misspelt.
func fieldError(e *jsonschema.ValidationError) error {
	for len(e.Causes) > 0 {
		unknown := slices.IndexFunc(e.Causes, func(c *jsonschema.ValidationError) bool {
			_, is := c.ErrorKind.(*kind.AdditionalProperties)
			return is
		})
		e = e.Causes[max(0, unknown)]
	}
	at := strings.Join(e.InstanceLocation, ".")
	if at == "" {
		at = "the object"
	}
	switch k := e.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		return fmt.Errorf("%s: version %d of the protocol has no field %s here", at, Version, quoted(k.Properties))
	case *kind.Required:
		return fmt.Errorf("%s: the field %s is missing", at, quoted(k.Missing))
	case *kind.Enum:
		var words []string
		for _, w := range k.Want {
			words = append(words, fmt.Sprint(w))
		}
		return fmt.Errorf("%s: %q is none of %s", at, fmt.Sprint(k.Got), strings.Join(words, ", "))
	case *kind.Const:
		return fmt.Errorf("%s: %v instead of %v", at, k.Got, k.Want)
	case *kind.Type:
		return fmt.Errorf("%s: %s instead of %s", at, k.Got, strings.Join(k.Want, " or "))
	case *kind.Pattern:
		return fmt.Errorf("%s: %q does not match %s", at, k.Got, k.Want)
	}
	return fmt.Errorf("%s: it breaks the rule %q", at, strings.Join(e.ErrorKind.KeywordPath(), " "))
}

func quoted(words []string) string {
	words = slices.Clone(words)
	for i, w := range words {
		words[i] = fmt.Sprintf("%q", w)
	}
	return strings.Join(words, ", ")
}
