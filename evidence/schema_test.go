package evidence

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

type schema struct {
	Ref        string             `json:"$ref"`
	Type       any                `json:"type"`
	Enum       []string           `json:"enum"`
	Required   []string           `json:"required"`
	Properties map[string]*schema `json:"properties"`
	Items      *schema            `json:"items"`
	Values     *schema            `json:"additionalProperties"`
	Defs       map[string]*schema `json:"$defs"`
}

// enums lists the words allowed for each named type. The zero value's word is
// left out if the field is omitted when zero.
var enums = map[reflect.Type][]string{
	reflect.TypeFor[Kind]():         kindNames[1:],
	reflect.TypeFor[Acceptance]():   acceptanceNames[1:],
	reflect.TypeFor[HeldBy]():       heldByNames[1:],
	reflect.TypeFor[AckOutcome]():   ackOutcomeNames[1:],
	reflect.TypeFor[Mark]():         markNames[1:],
	reflect.TypeFor[Direction]():    directionNames[1:],
	reflect.TypeFor[Phase]():        phaseNames[1:],
	reflect.TypeFor[Cause]():        causeNames[1:],
	reflect.TypeFor[Standing]():     standingNames[1:],
	reflect.TypeFor[Command]():      commandNames[1:],
	reflect.TypeFor[DrainReason]():  drainReasonNames[1:],
	reflect.TypeFor[ProbeOutcome](): probeOutcomeNames[1:],
	reflect.TypeFor[Trust]():        trustNames,
	reflect.TypeFor[RowState]():     rowStateNames[1:],
	reflect.TypeFor[EndHow]():       {string(EndCompleted), string(EndCancelled), string(EndFailed)},
	reflect.TypeFor[Owner]():        {string(OwnerSystem), string(OwnerApplication)},
	reflect.TypeFor[Redelivery]():   {string(RedeliverTimeout), string(RedeliverReconnect), string(RedeliverClaim), string(RedeliverRebalance), string(RedeliverNever)},
	reflect.TypeFor[Class](): func() (words []string) {
		for _, c := range Classes() {
			words = append(words, string(c))
		}
		return words
	}(),
}

func TestSchemasSayWhatTheTypesSay(t *testing.T) {
	for file, types := range map[string]map[string]reflect.Type{
		"event.schema.json":    {"": reflect.TypeFor[Event]()},
		"manifest.schema.json": {"": reflect.TypeFor[Manifest]()},
		"row.schema.json":      {"snapshot": reflect.TypeFor[Snapshot](), "storedRow": reflect.TypeFor[StoredRow]()},
	} {
		b, err := os.ReadFile(filepath.Join("..", "docs", "evidence", file))
		if err != nil {
			t.Fatal(err)
		}
		var root schema
		if err := json.Unmarshal(b, &root); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for def, typ := range types {
			s := &root
			if def != "" {
				s = root.Defs[def]
			}
			agree(t, file, &root, s, typ)
		}
	}
}

func agree(t *testing.T, at string, root, s *schema, typ reflect.Type) {
	t.Helper()
	if s != nil && s.Ref != "" {
		s = root.Defs[strings.TrimPrefix(s.Ref, "#/$defs/")]
	}
	if s == nil {
		t.Errorf("%s: the schema lacks it", at)
		return
	}
	if words, ok := enums[typ]; ok {
		if !slices.Equal(s.Enum, words) {
			t.Errorf("%s: the schema's words are %q, the code's %q", at, s.Enum, words)
		}
		return
	}
	if typ.Name() != "" && typ.Kind() == reflect.String && typ != reflect.TypeFor[string]() {
		t.Errorf("%s: %s has words that this test does not know", at, typ)
	}
	want := map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer",
		reflect.Uint64: "integer", reflect.Float64: "number", reflect.Struct: "object", reflect.Map: "object",
		reflect.Slice: "array", reflect.Pointer: "object",
	}[typ.Kind()]
	if typ == reflect.TypeFor[time.Time]() {
		want = "string"
	}
	nullable := []any{want, "null"} // a nil list or map without omitempty
	if s.Type != nil && s.Type != want && !reflect.DeepEqual(s.Type, nullable) || s.Type == nil && s.Enum == nil {
		t.Errorf("%s: the schema's type is %v, the code's %s", at, s.Type, want)
	}
	switch {
	case typ.Kind() == reflect.Slice:
		agree(t, at+"[]", root, s.Items, typ.Elem())
	case typ.Kind() == reflect.Map:
		agree(t, at+"{}", root, s.Values, typ.Elem())
	case typ.Kind() == reflect.Pointer:
		agree(t, at, root, s, typ.Elem())
	case want == "object":
		var required []string
		seen := map[string]bool{}
		for i := range typ.NumField() {
			tag := typ.Field(i).Tag.Get("json")
			name, options, _ := strings.Cut(tag, ",")
			if name == "-" {
				continue
			}
			seen[name] = true
			if options == "" {
				required = append(required, name)
			}
			agree(t, at+"."+name, root, s.Properties[name], typ.Field(i).Type)
		}
		if !slices.Equal(s.Required, required) {
			t.Errorf("%s: the schema requires %q, the code always writes %q", at, s.Required, required)
		}
		for name := range s.Properties {
			if !seen[name] {
				t.Errorf("%s.%s: the code does not have it", at, name)
			}
		}
	}
}
