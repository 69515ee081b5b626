package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"time"
	"unicode/utf8"
)

// Decoder reads events from lines of JSON, as AppendJSON writes them. It exists
// for speed: encoding/json reads half a million events a second, and a history
// has millions. It reads what encoding/json reads, with two restrictions: field
// names are case-sensitive, and items may not be given twice.
//
// The zero Decoder is ready. It is not safe for concurrent use.
type Decoder struct {
	line  []byte
	pos   int
	items []FrameItem
	exit  ExitInfo
	known interned
}

// Decode replaces *e by the event on the line (without or with its newline).
// Strings are e's own; Items and Exit are the Decoder's and valid until the
// next Decode.
func (d *Decoder) Decode(line []byte, e *Event) error {
	*e = Event{}
	d.line, d.pos = line, 0
	err := d.object(func(key []byte) error { return d.eventField(key, e) })
	if err == nil {
		d.space()
		if d.pos != len(d.line) {
			err = errors.New("trailing data after the event")
		}
	}
	if err != nil {
		return fmt.Errorf("evidence: no event at byte %d of the line: %w", d.pos, err)
	}
	return nil
}

// eventField is a switch and not a table: the compiler turns it into a binary
// search, and this is the innermost loop of judging.
func (d *Decoder) eventField(key []byte, e *Event) error {
	switch string(key) {
	case "seq":
		return d.unsigned(&e.Seq)
	case "at":
		return integer(d, &e.At)
	case "kind":
		return d.kind(&e.Kind)
	case "actor":
		return d.text(&e.Actor)
	case "session":
		return d.text(&e.Session)
	case "subscription":
		return d.text(&e.Subscription)
	case "destination":
		return d.text(&e.Destination)
	case "business":
		return d.text(&e.BusinessID)
	case "publish":
		return d.text(&e.PublishID)
	case "message":
		return d.text(&e.MessageID)
	case "acceptance":
		return name(d, acceptanceNames, "acceptance", &e.Acceptance)
	case "heldBy":
		return name(d, heldByNames, "heldBy", &e.HeldBy)
	case "ack":
		return name(d, ackOutcomeNames, "ack outcome", &e.Ack)
	case "mark":
		return name(d, markNames, "mark", &e.Mark)
	case "attempt":
		return integer(d, &e.Attempt)
	case "clientResult", "told": // "told" in format 1
		return d.text(&e.ClientResult)
	case "key":
		return d.text(&e.Key)
	case "digest":
		return d.text(&e.Digest)
	case "size":
		return integer(d, &e.Size)
	case "ttl":
		return integer(d, &e.TTL)
	case "link":
		return d.text(&e.Link)
	case "conn":
		return integer(d, &e.Conn)
	case "frame":
		return d.text(&e.Frame)
	case "to":
		return name(d, directionNames, "direction", &e.To)
	case "items":
		return d.frameItems(e)
	case "fault":
		return d.text(&e.Fault)
	case "struck":
		return d.text(&e.Struck)
	case "incarnation":
		return integer(d, &e.Incarnation)
	case "phase":
		return name(d, phaseNames, "phase", &e.Phase)
	case "exit":
		return d.exitInfo(e)
	case "call":
		return d.unsigned(&e.Call)
	case "ok":
		return d.boolean(&e.OK)
	case "cause":
		return name(d, causeNames, "cause", &e.Cause)
	case "standing":
		return name(d, standingNames, "standing", &e.Standing)
	case "duplicate":
		return d.boolean(&e.Duplicate)
	case "negative":
		return d.boolean(&e.Negative)
	case "window":
		return integer(d, &e.Window)
	case "command":
		return name(d, commandNames, "command", &e.Command)
	case "checkpoint":
		return d.text(&e.Checkpoint)
	case "offset":
		return integer(d, &e.Offset)
	case "drain":
		return name(d, drainReasonNames, "drain reason", &e.Drain)
	case "partitions":
		return d.texts(&e.Partitions)
	case "line":
		return integer(d, &e.Line)
	case "left":
		return integer(d, &e.Left)
	case "probe":
		return d.text(&e.Probe)
	case "wanted":
		return name(d, probeOutcomeNames, "probe outcome", &e.Wanted)
	case "got":
		return name(d, probeOutcomeNames, "probe outcome", &e.Got)
	case "wantedCause":
		return name(d, causeNames, "cause", &e.WantedCause)
	case "reason":
		return d.text(&e.Reason)
	}
	return d.skip()
}

// texts reads a list of strings. It is rare, so the list is freshly allocated.
func (d *Decoder) texts(v *[]string) error {
	if d.null() {
		*v = nil
		return nil
	}
	list := make([]string, 0, 2)
	err := d.array(func() error {
		var s string
		err := d.text(&s)
		list = append(list, s)
		return err
	})
	*v = list
	return err
}

func (d *Decoder) frameItems(e *Event) error {
	if d.null() {
		e.Items = nil
		return nil
	}
	if e.Items != nil {
		return errors.New("items given twice")
	}
	if d.items == nil {
		d.items = make([]FrameItem, 0, 8)
	}
	d.items = d.items[:0]
	err := d.array(func() error {
		var it FrameItem
		if !d.null() {
			if err := d.object(func(key []byte) error { return d.itemField(key, &it) }); err != nil {
				return err
			}
		}
		d.items = append(d.items, it)
		return nil
	})
	e.Items = d.items
	return err
}

func (d *Decoder) itemField(key []byte, it *FrameItem) error {
	switch string(key) {
	case "business":
		return d.text(&it.BusinessID)
	case "publish":
		return d.text(&it.PublishID)
	case "message":
		return d.text(&it.MessageID)
	}
	return d.skip()
}

func (d *Decoder) exitInfo(e *Event) error {
	if d.null() {
		e.Exit = nil
		return nil
	}
	if e.Exit == nil {
		d.exit = ExitInfo{}
		e.Exit = &d.exit
	}
	return d.object(func(key []byte) error {
		switch string(key) {
		case "code":
			return integer(d, &d.exit.Code)
		case "signal":
			return d.text(&d.exit.Signal)
		case "ordered":
			return d.boolean(&d.exit.Ordered)
		case "waited":
			return integer(d, &d.exit.Waited)
		}
		return d.skip()
	})
}

// The grammar: each method starts at the next token and consumes what it reads.

func (d *Decoder) space() {
	for d.pos < len(d.line) {
		switch d.line[d.pos] {
		case ' ', '\t', '\r', '\n':
			d.pos++
		default:
			return
		}
	}
}

// peek returns the next token's first byte, or 0 at the end of the line.
func (d *Decoder) peek() byte {
	if d.pos < len(d.line) && d.line[d.pos] > ' ' {
		return d.line[d.pos]
	}
	d.space()
	if d.pos == len(d.line) {
		return 0
	}
	return d.line[d.pos]
}

func (d *Decoder) expect(c byte) error {
	if d.peek() != c {
		return fmt.Errorf("want %q", c)
	}
	d.pos++
	return nil
}

func (d *Decoder) object(field func(key []byte) error) error {
	if err := d.expect('{'); err != nil {
		return err
	}
	return d.members('}', func() error {
		key, err := d.quoted()
		if err != nil {
			return err
		}
		if err := d.expect(':'); err != nil {
			return err
		}
		return field(key)
	})
}

func (d *Decoder) array(element func() error) error {
	if err := d.expect('['); err != nil {
		return err
	}
	return d.members(']', element)
}

func (d *Decoder) members(end byte, member func() error) error {
	if d.peek() == end {
		d.pos++
		return nil
	}
	for {
		if err := member(); err != nil {
			return err
		}
		switch d.peek() {
		case ',':
			d.pos++
		case end:
			d.pos++
			return nil
		default:
			return fmt.Errorf("want ',' or %q", end)
		}
	}
}

// literal reads one of true, false, null.
func (d *Decoder) literal(word string) bool {
	if d.peek() != word[0] || !bytes.HasPrefix(d.line[d.pos:], []byte(word)) {
		return false
	}
	d.pos += len(word)
	return true
}

// null consumes a null, which leaves a field unchanged, as in encoding/json.
func (d *Decoder) null() bool { return d.literal("null") }

func (d *Decoder) boolean(v *bool) error {
	switch {
	case d.literal("true"):
		*v = true
	case d.literal("false"):
		*v = false
	case !d.null():
		return errors.New("want true or false")
	}
	return nil
}

// digits reads an integer as written: no fraction, no exponent, no leading zero.
func (d *Decoder) digits() ([]byte, error) {
	c := d.peek()
	from := d.pos
	if c == '-' {
		d.pos++
	}
	first := d.pos
	for d.pos < len(d.line) && d.line[d.pos]-'0' <= 9 {
		d.pos++
	}
	if n := d.pos - first; n == 0 || n > 1 && d.line[first] == '0' {
		return nil, errors.New("want an integer")
	}
	return d.line[from:d.pos], nil
}

func (d *Decoder) unsigned(v *uint64) error {
	if d.peek() == 'n' && d.null() {
		return nil
	}
	b, err := d.digits()
	if err != nil {
		return err
	}
	if n, ok := small(b); ok {
		*v = n
		return nil
	}
	*v, err = strconv.ParseUint(string(b), 10, 64)
	return err
}

func integer[T int | time.Duration](d *Decoder, v *T) error {
	if d.peek() == 'n' && d.null() {
		return nil
	}
	b, err := d.digits()
	if err != nil {
		return err
	}
	if n, ok := small(b); ok && uint64(T(n)) == n {
		*v = T(n)
		return nil
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err == nil && int64(T(n)) != n {
		err = fmt.Errorf("%d is too large for this machine", n)
	}
	*v = T(n)
	return err
}

// small converts digits that cannot overflow; callers fall back to strconv for
// the rest.
func small(b []byte) (n uint64, ok bool) {
	if len(b) > 18 || b[0] == '-' {
		return 0, false
	}
	for _, c := range b {
		n = n*10 + uint64(c-'0')
	}
	return n, true
}

func (d *Decoder) text(v *string) error {
	if d.peek() == 'n' && d.null() {
		return nil
	}
	b, err := d.quoted()
	if err == nil {
		*v = d.known.string(b)
	}
	return err
}

func (d *Decoder) kind(v *Kind) error {
	if d.peek() == 'n' && d.null() {
		return nil
	}
	b, err := d.quoted()
	if err != nil {
		return err
	}
	k, ok := kindByName[string(b)]
	if !ok {
		return unmarshalName(kindNames, "event kind", b, v)
	}
	*v = k
	return nil
}

var kindByName = func() map[string]Kind {
	m := make(map[string]Kind, len(kindNames))
	for k, n := range kindNames {
		m[n] = Kind(k)
	}
	return m
}()

func name[T ~uint8](d *Decoder, names []string, what string, v *T) error {
	if d.peek() == 'n' && d.null() {
		return nil
	}
	b, err := d.quoted()
	if err != nil {
		return err
	}
	return unmarshalName(names, what, b, v)
}

// quoted reads a string; the result is valid until the next Decode. Escapes and
// invalid UTF-8 are rare, and encoding/json decodes them.
func (d *Decoder) quoted() ([]byte, error) {
	if err := d.expect('"'); err != nil {
		return nil, errors.New("want a string")
	}
	from := d.pos
	var high byte
	for ; d.pos < len(d.line); d.pos++ {
		c := d.line[d.pos]
		if c == '"' {
			b := d.line[from:d.pos]
			d.pos++
			if high >= utf8.RuneSelf && !utf8.Valid(b) {
				return unquote(d.line[from-1 : d.pos])
			}
			return b, nil
		}
		if c == '\\' {
			break
		}
		if c < ' ' {
			return nil, errors.New("control character in a string")
		}
		high |= c
	}
	for ; d.pos < len(d.line); d.pos++ {
		switch d.line[d.pos] {
		case '\\':
			d.pos++
		case '"':
			d.pos++
			return unquote(d.line[from-1 : d.pos])
		}
	}
	d.pos = len(d.line)
	return nil, errors.New("unterminated string")
}

func unquote(literal []byte) ([]byte, error) {
	var s string
	err := json.Unmarshal(literal, &s)
	return []byte(s), err
}

// skip discards a value of any type, for fields that this version does not
// know.
func (d *Decoder) skip() error {
	rest := json.NewDecoder(bytes.NewReader(d.line[d.pos:]))
	var value json.RawMessage
	err := rest.Decode(&value)
	d.pos += int(rest.InputOffset())
	return err
}

// interned returns one shared string for equal bytes that recur soon, as actors,
// sessions and the IDs of live messages do. The cache is direct-mapped: bounded,
// and a collision only costs an allocation.
type interned struct {
	seed  maphash.Seed
	table []string
}

const internedSize = 1 << 14

func (t *interned) string(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if t.table == nil {
		t.seed, t.table = maphash.MakeSeed(), make([]string, internedSize)
	}
	s := &t.table[maphash.Bytes(t.seed, b)%internedSize]
	if *s != string(b) {
		*s = string(b)
	}
	return *s
}

// AppendJSON appends e as one JSON object without a newline, byte for byte as
// encoding/json writes it with HTML escaping off. The enumerated values of e
// must have names (see Recorder.Record).
func AppendJSON(dst []byte, e *Event) []byte {
	dst = append(dst, `{"seq":`...)
	dst = strconv.AppendUint(dst, e.Seq, 10)
	dst = append(dst, `,"at":`...)
	dst = strconv.AppendInt(dst, int64(e.At), 10)
	dst = append(dst, `,"kind":"`...)
	dst = append(dst, e.Kind.String()...)
	dst = append(dst, '"')

	dst = appendText(dst, `,"actor":`, e.Actor)
	dst = appendText(dst, `,"session":`, e.Session)
	dst = appendText(dst, `,"subscription":`, e.Subscription)
	dst = appendText(dst, `,"destination":`, e.Destination)
	dst = appendText(dst, `,"business":`, e.BusinessID)
	dst = appendText(dst, `,"publish":`, e.PublishID)
	dst = appendText(dst, `,"message":`, e.MessageID)

	dst = appendName(dst, `,"acceptance":`, acceptanceNames, e.Acceptance)
	dst = appendName(dst, `,"heldBy":`, heldByNames, e.HeldBy)
	dst = appendName(dst, `,"ack":`, ackOutcomeNames, e.Ack)
	dst = appendName(dst, `,"mark":`, markNames, e.Mark)
	dst = appendInteger(dst, `,"attempt":`, int64(e.Attempt))
	dst = appendText(dst, `,"clientResult":`, e.ClientResult)
	dst = appendText(dst, `,"key":`, e.Key)
	dst = appendText(dst, `,"digest":`, e.Digest)
	dst = appendInteger(dst, `,"size":`, int64(e.Size))
	dst = appendInteger(dst, `,"ttl":`, int64(e.TTL))

	dst = appendText(dst, `,"link":`, e.Link)
	dst = appendInteger(dst, `,"conn":`, int64(e.Conn))
	dst = appendText(dst, `,"frame":`, e.Frame)
	dst = appendName(dst, `,"to":`, directionNames, e.To)
	for i, it := range e.Items {
		if i == 0 {
			dst = append(dst, `,"items":[{`...)
		} else {
			dst = append(dst, `,{`...)
		}
		from := len(dst)
		dst = appendText(dst, `,"business":`, it.BusinessID)
		dst = appendText(dst, `,"publish":`, it.PublishID)
		dst = appendText(dst, `,"message":`, it.MessageID)
		if len(dst) > from { // the first field of an object has no comma
			dst = append(dst[:from], dst[from+1:]...)
		}
		dst = append(dst, '}')
	}
	if len(e.Items) > 0 {
		dst = append(dst, ']')
	}

	dst = appendText(dst, `,"fault":`, e.Fault)
	dst = appendText(dst, `,"struck":`, e.Struck)
	dst = appendInteger(dst, `,"incarnation":`, int64(e.Incarnation))
	dst = appendName(dst, `,"phase":`, phaseNames, e.Phase)
	if e.Exit != nil {
		dst = append(dst, `,"exit":{"code":`...)
		dst = strconv.AppendInt(dst, int64(e.Exit.Code), 10)
		dst = appendText(dst, `,"signal":`, e.Exit.Signal)
		dst = append(dst, `,"ordered":`...)
		dst = strconv.AppendBool(dst, e.Exit.Ordered)
		dst = appendInteger(dst, `,"waited":`, int64(e.Exit.Waited))
		dst = append(dst, '}')
	}
	if e.Call != 0 {
		dst = append(dst, `,"call":`...)
		dst = strconv.AppendUint(dst, e.Call, 10)
	}
	dst = appendMark(dst, `,"ok":true`, e.OK)

	dst = appendName(dst, `,"cause":`, causeNames, e.Cause)
	dst = appendName(dst, `,"standing":`, standingNames, e.Standing)
	dst = appendMark(dst, `,"duplicate":true`, e.Duplicate)
	dst = appendMark(dst, `,"negative":true`, e.Negative)
	dst = appendInteger(dst, `,"window":`, int64(e.Window))
	dst = appendName(dst, `,"command":`, commandNames, e.Command)
	dst = appendText(dst, `,"checkpoint":`, e.Checkpoint)
	dst = appendInteger(dst, `,"offset":`, int64(e.Offset))
	dst = appendName(dst, `,"drain":`, drainReasonNames, e.Drain)
	for i, p := range e.Partitions {
		if i == 0 {
			dst = append(dst, `,"partitions":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = appendQuoted(dst, p)
	}
	if len(e.Partitions) > 0 {
		dst = append(dst, ']')
	}

	dst = appendInteger(dst, `,"line":`, int64(e.Line))
	dst = appendInteger(dst, `,"left":`, int64(e.Left))

	dst = appendText(dst, `,"probe":`, e.Probe)
	dst = appendName(dst, `,"wanted":`, probeOutcomeNames, e.Wanted)
	dst = appendName(dst, `,"got":`, probeOutcomeNames, e.Got)
	dst = appendName(dst, `,"wantedCause":`, causeNames, e.WantedCause)
	dst = appendText(dst, `,"reason":`, e.Reason)
	return append(dst, '}')
}

func appendText(dst []byte, field, s string) []byte {
	if s == "" {
		return dst
	}
	return appendQuoted(append(dst, field...), s)
}

func appendMark(dst []byte, field string, v bool) []byte {
	if v {
		dst = append(dst, field...)
	}
	return dst
}

func appendInteger(dst []byte, field string, v int64) []byte {
	if v == 0 {
		return dst
	}
	return strconv.AppendInt(append(dst, field...), v, 10)
}

func appendName[T ~uint8](dst []byte, field string, names []string, v T) []byte {
	if v == 0 {
		return dst
	}
	dst = append(append(dst, field...), '"')
	return append(append(dst, nameOf(names, v)...), '"')
}

// appendQuoted escapes as encoding/json does: what JSON requires, U+2028 and
// U+2029, and invalid UTF-8.
func appendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(append(dst, s[from:i]...), '\\')
			switch c {
			case '"', '\\':
				dst = append(dst, c)
			case '\b':
				dst = append(dst, 'b')
			case '\f':
				dst = append(dst, 'f')
			case '\n':
				dst = append(dst, 'n')
			case '\r':
				dst = append(dst, 'r')
			case '\t':
				dst = append(dst, 't')
			default:
				dst = append(dst, 'u', '0', '0', hex[c>>4], hex[c&0xf])
			}
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(append(dst, s[from:i]...), `\ufffd`...)
			from = i + n
		case r == '\u2028' || r == '\u2029':
			dst = append(append(dst, s[from:i]...), '\\', 'u', '2', '0', '2', hex[r&0xf])
			from = i + n
		}
		i += n
	}
	return append(append(dst, s[from:]...), '"')
}

// named rejects an event that could be written but not read back.
func (e *Event) named() error {
	for _, v := range [...]struct {
		what  string
		value uint8
		names []string
	}{
		{"acceptance", uint8(e.Acceptance), acceptanceNames},
		{"heldBy", uint8(e.HeldBy), heldByNames},
		{"ack", uint8(e.Ack), ackOutcomeNames},
		{"mark", uint8(e.Mark), markNames},
		{"to", uint8(e.To), directionNames},
		{"phase", uint8(e.Phase), phaseNames},
		{"cause", uint8(e.Cause), causeNames},
		{"standing", uint8(e.Standing), standingNames},
		{"command", uint8(e.Command), commandNames},
		{"drain", uint8(e.Drain), drainReasonNames},
		{"wanted", uint8(e.Wanted), probeOutcomeNames},
		{"got", uint8(e.Got), probeOutcomeNames},
		{"wantedCause", uint8(e.WantedCause), causeNames},
		{"kind", uint8(e.Kind), kindNames},
	} {
		if int(v.value) >= len(v.names) {
			return fmt.Errorf("evidence: a %s event has the invalid %s %d: this is a bug in the code that records it", e.Kind, v.what, v.value)
		}
	}
	if e.Kind == KindInvalid {
		return errors.New("evidence: an event has no kind: this is a bug in the code that records it")
	}
	return nil
}
