package access

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/wire"
)

const (
	hashPrefix = "sha256:"
	maxUsers   = 10_000
)

// entry is one user in a users file.
type entry struct {
	Name        string   `yaml:"name"`
	Token       string   `yaml:"token,omitempty"` // sha256: followed by the hash in hexadecimal
	Certificate string   `yaml:"certificate,omitempty"`
	Publish     []string `yaml:"publish,omitempty,flow"`
	Subscribe   []string `yaml:"subscribe,omitempty,flow"`
	Administer  bool     `yaml:"administer,omitempty"`
}

// Parse parses a users file. Its errors are one line and name file and line; path
// is used only for them.
//
//	users:
//	  - name: billing
//	    token: sha256:0f6c…
//	    publish: [invoices/#]
//	    subscribe: [orders/+]
func Parse(path string, text []byte) (*Users, error) {
	at := func(n *yaml.Node, format string, args ...any) error {
		return fmt.Errorf("%s:%d: %s", path, n.Line, fmt.Sprintf(format, args...))
	}
	list, err := listIn(path, text)
	if err != nil {
		return nil, err
	}
	if len(list.Content) > maxUsers {
		return nil, at(list, "%d users are more than the limit of %d", len(list.Content), maxUsers)
	}
	users := &Users{byToken: map[[sha256.Size]byte]*User{}, byCertificate: map[string]*User{}}
	names := map[string]bool{}
	for _, item := range list.Content {
		e, err := entryOf(path, item)
		if err != nil {
			return nil, err
		}
		u, err := e.user()
		switch {
		case err != nil:
			return nil, at(item, "%s", err)
		case names[u.Name]:
			return nil, at(item, "there is a user %q already", u.Name)
		case u.hasToken && users.byToken[u.token] != nil:
			return nil, at(item, "%s has the token of %s: give each a token of its own", u.Name, users.byToken[u.token].Name)
		case u.Certificate != "" && users.byCertificate[u.Certificate] != nil:
			return nil, at(item, "%s has the certificate of %s: give each a name of its own", u.Name, users.byCertificate[u.Certificate].Name)
		}
		names[u.Name] = true
		if u.hasToken {
			users.byToken[u.token] = u
		}
		if u.Certificate != "" {
			users.byCertificate[u.Certificate] = u
		}
	}
	return users, nil
}

// listIn returns the list of users in a file. The list may be empty.
func listIn(path string, text []byte) (*yaml.Node, error) {
	document, err := documentIn(path, text)
	if err != nil {
		return nil, err
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode || len(root.Content) != 2 || root.Content[0].Value != "users" {
		return nil, fmt.Errorf("%s:%d: a file of users has one field, users, which is a list", path, root.Line)
	}
	list := root.Content[1]
	if list.Kind != yaml.SequenceNode && list.Tag != "!!null" {
		return nil, fmt.Errorf("%s:%d: users is no list: begin each user with \"- name: NAME\"", path, list.Line)
	}
	return list, nil
}

// documentIn parses the single YAML document of the text. Text without a
// document, such as comments alone, yields a document without users.
func documentIn(path string, text []byte) (*yaml.Node, error) {
	for _, text := range [][]byte{text, append(bytes.Clone(text), "\nusers: []\n"...)} {
		dec := yaml.NewDecoder(bytes.NewReader(text))
		var document, more yaml.Node
		switch err := dec.Decode(&document); {
		case errors.Is(err, io.EOF):
			continue
		case err != nil:
			return nil, ofYAML(path, err)
		}
		if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: there is more than one document: take away what follows ---", path)
		}
		return &document, nil
	}
	return nil, fmt.Errorf("%s: this is no YAML", path)
}

var fields = []string{"name", "token", "certificate", "publish", "subscribe", "administer"}

func entryOf(path string, n *yaml.Node) (e entry, err error) {
	if n.Kind != yaml.MappingNode {
		return e, fmt.Errorf("%s:%d: this is no user: it begins with \"- name: NAME\"", path, n.Line)
	}
	for i := 0; i < len(n.Content); i += 2 {
		if key := n.Content[i]; !slices.Contains(fields, key.Value) {
			return e, fmt.Errorf("%s:%d: a user has no field %q; there are %s", path, key.Line, key.Value, strings.Join(fields, ", "))
		}
	}
	if err := n.Decode(&e); err != nil {
		return e, ofYAML(path, err)
	}
	return e, nil
}

// ofYAML converts an error of the YAML library to one line that begins with file
// and line.
func ofYAML(path string, err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var several *yaml.TypeError
	if errors.As(err, &several) && len(several.Errors) > 0 {
		text = several.Errors[0]
	}
	text = strings.Join(strings.Fields(text), " ")
	if line, rest, ok := strings.Cut(strings.TrimPrefix(text, "line "), ": "); ok && strings.HasPrefix(text, "line ") {
		return fmt.Errorf("%s:%s: %s", path, line, rest)
	}
	return fmt.Errorf("%s: %s", path, text)
}

func (e entry) user() (*User, error) {
	u := &User{Name: e.Name, Certificate: e.Certificate, Publish: e.Publish, Subscribe: e.Subscribe, Administer: e.Administer}
	switch {
	case e.Name == "" || len(e.Name) > wire.MaxID:
		return nil, fmt.Errorf("a user needs a name of 1 to %d bytes", wire.MaxID)
	case e.Token == "" && e.Certificate == "":
		return nil, fmt.Errorf("%s could never connect: give a token (custody broker user add makes one) or the name in a certificate", e.Name)
	}
	for field, filters := range map[string][]string{"publish": e.Publish, "subscribe": e.Subscribe} {
		for _, f := range filters {
			if !core.ValidFilter(f) || len(f) > wire.MaxTopic {
				return nil, fmt.Errorf("%s: %s: topic filter %q: + must fill a level, # must fill the last one, at most %d bytes", e.Name, field, f, wire.MaxTopic)
			}
		}
	}
	if e.Token == "" {
		return u, nil
	}
	digits, ok := strings.CutPrefix(e.Token, hashPrefix)
	n, err := hex.Decode(u.token[:], []byte(digits[:min(len(digits), 2*sha256.Size)]))
	if !ok || err != nil || n != sha256.Size || len(digits) != 2*sha256.Size {
		// Do not quote it: it may be a plain token entered by mistake.
		return nil, fmt.Errorf("%s: token is no hash of one (%s and %d hexadecimal digits): custody broker user add writes it", e.Name, hashPrefix, 2*sha256.Size)
	}
	u.hasToken = true
	return u, nil
}

// Add appends a user to the text of a users file and preserves the rest. hash
// comes from NewToken; it is empty for a user who authenticates by certificate
// alone.
func Add(path string, text []byte, user User, hash string) ([]byte, error) {
	if _, err := Parse(path, text); err != nil {
		return nil, err
	}
	document, err := documentIn(path, text)
	if err != nil {
		return nil, err
	}
	list := document.Content[0].Content[1]
	if list.Kind != yaml.SequenceNode { // "users:" with an empty value
		*list = yaml.Node{Kind: yaml.SequenceNode}
	}
	list.Style = 0
	var node yaml.Node
	if err := node.Encode(entry{
		Name: user.Name, Token: hash, Certificate: user.Certificate,
		Publish: user.Publish, Subscribe: user.Subscribe, Administer: user.Administer,
	}); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	list.Content = append(list.Content, &node)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(document), enc.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	_, err = Parse(path, out.Bytes())
	return out.Bytes(), err
}
