package postgres_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/linktest"
	"github.com/custodymq/custody/links/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func protocol() links.Protocol { return postgres.Protocol{} }

// message encodes a message with type and length; a start-up packet has no
// type.
func message(kind string, fields ...string) string {
	body := strings.Join(fields, "")
	return kind + string(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))) + body
}

func short(n uint16) string { return string(binary.BigEndian.AppendUint16(nil, n)) }
func long(n uint32) string  { return string(binary.BigEndian.AppendUint32(nil, n)) }

func sized(value string) string { return long(uint32(len(value))) + value }

// array encodes an array of strings in binary form.
func array(texts ...string) string {
	a := long(1) + long(0) + long(17) + long(uint32(len(texts))) + long(1)
	for _, text := range texts {
		a += sized(text)
	}
	return a
}

func prepare(name, sql string) string { return message("P", name, "\x00", sql, "\x00", short(0)) }

// bind encodes all values in one format: 0 is text, 1 is binary.
func bind(name string, form uint16, values ...string) string {
	fields := []string{"\x00", name, "\x00", short(1), short(form), short(uint16(len(values)))}
	for _, value := range values {
		fields = append(fields, sized(value))
	}
	return message("B", append(fields, short(0))...)
}

func query(sql string) string { return message("Q", sql, "\x00") }

func refusal(severity, code string) string {
	return message("E", "SFEHLER\x00V", severity, "\x00C", code, "\x00Mno\x00\x00")
}

var (
	start   = message("", long(3<<16), "user\x00custody\x00\x00")
	encrypt = message("", long(80877103))
	execute = message("E", "\x00", long(0))
	sync    = message("S")
	ready   = message("Z", "I")
	welcome = message("R", long(0)) + message("S", "TimeZone\x00UTC\x00") + message("K", long(1), long(2)) + ready
)

func done(tag string) string { return message("C", tag, "\x00") }

const deletion = "DELETE FROM custody_row AS r USING unnest($1::bytea[]) AS v(id) WHERE r.message_id = v.id"

func TestFrames(t *testing.T) {
	for name, x := range map[string]struct{ toBroker, toClient, want string }{
		"simple queries": {
			start + query("BEGIN") + query("COMMIT"),
			welcome + done("BEGIN") + ready + done("COMMIT") + ready,
			"begin, commit, begin-reply says accepted, commit-reply says accepted",
		},
		"a COMMIT that rolls back": {
			start + query("COMMIT") + query("ROLLBACK"), welcome + done("ROLLBACK") + ready + done("ROLLBACK") + ready,
			"commit, rollback, commit-reply says ROLLBACK, rollback-reply says accepted",
		},
		"preparing is not executing": {
			start + prepare("s", deletion) + message("D", "Ss\x00") + sync + bind("s", 1, array("a", "b")) + execute + sync,
			welcome + message("1") + message("t", short(0)) + message("n") + ready + message("2") + done("DELETE 1") + ready,
			"delete //a //b, delete-reply //a //b says accepted",
		},
		"a statement that is replaced": {
			start + prepare("", "SELECT 1") + prepare("", deletion) + bind("", 1, array("a")) + execute + sync,
			welcome + refusal("ERROR", "40001") + ready,
			"delete //a, delete-reply //a says 40001",
		},
		"values as text name no message": {
			start + prepare("", deletion) + bind("", 0, `{"\\x61"}`) + execute + sync, welcome + done("DELETE 1") + ready,
			"delete, delete-reply says accepted",
		},
		"an array of none": {
			start + prepare("", deletion) + bind("", 1, long(0)+long(0)+long(17)) + execute + sync, welcome + done("DELETE 0") + ready,
			"delete, delete-reply says accepted",
		},
		"encryption is refused by the server": {
			encrypt + start + query("COMMIT"), "N" + welcome + done("COMMIT") + ready,
			"commit, commit-reply says accepted",
		},
		"a cancel request": {message("", long(80877102), long(1), long(2)), "", ""},
		"what comes between": {
			start + query("COMMIT"), welcome + message("N", "\x00") + message("A", long(1), "a\x00b\x00") + done("COMMIT") + message("S", "a\x00b\x00") + ready,
			"commit, commit-reply says accepted",
		},
		"a server that goes down": {
			start + query("COMMIT"), welcome + refusal("FATAL", "57P01"),
			"commit, commit-reply says 57P01",
		},
		"a server that goes down when nothing is asked": {start + message("X"), welcome + refusal("FATAL", "57P01"), ""},
		"a login that is refused":                       {start + message("p", "x\x00"), message("R", long(3)) + refusal("FATAL", "28P01"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range linktest.Streams([]byte(x.toBroker), []byte(x.toClient)).Understood(t, protocol()) {
				if f.Kind != "" {
					got = append(got, linktest.Summary(f))
				}
			}
			if list := strings.Join(got, ", "); list != x.want {
				t.Errorf("got  %s\nwant %s", list, x.want)
			}
		})
	}
}

func TestALongReplyNeedsNoMemory(t *testing.T) {
	row := message("D", short(1), sized(strings.Repeat("x", 10_000)))
	c := linktest.Streams([]byte(start+query("SELECT 1")), []byte(welcome+strings.Repeat(row, 100)+done("SELECT 100")+ready))
	frames := c.Understood(t, protocol())
	longest := slices.MaxFunc(frames, func(a, b links.Frame) int { return len(a.Raw) - len(b.Raw) })
	if len(longest.Raw) > 80_000 {
		t.Errorf("a frame of %d bytes", len(longest.Raw))
	}
	seen := slices.DeleteFunc(frames, func(f links.Frame) bool { return f.Kind == "" })
	if len(seen) != 2 || linktest.Summary(seen[1]) != "query-reply says accepted" {
		t.Errorf("%d frames, the last one %q", len(seen), linktest.Summary(seen[len(seen)-1]))
	}
}

func TestWhatIsNotObserved(t *testing.T) {
	insert := "INSERT INTO custody_row (part, message_id) SELECT 1, message_id FROM unnest($1::bytea[]) AS v(message_id)"
	for name, x := range map[string]struct{ toBroker, toClient, why string }{
		"TLS":                       {encrypt, "S", "sslmode=disable"},
		"TLS without asking":        {"\x16\x03\x01", "", "sslmode=disable"},
		"an old protocol":           {message("", long(2<<16)), "", "version 2.0"},
		"a long start-up":           {long(1<<20) + long(3<<16), "", "announces 1048576"},
		"Flush":                     {start + prepare("", "SELECT 1") + message("H"), welcome, "'H'"},
		"COPY":                      {start + query("COPY x FROM STDIN"), welcome + message("G", "\x00", short(0)), "'G'"},
		"a long message":            {start + "Q" + long(1<<30), "", "announces 1073741824"},
		"a length below itself":     {start + "Q" + long(3), "", "a length of 3"},
		"a query without an end":    {start + message("Q", "COMMIT"), "", "malformed Query"},
		"a statement not prepared":  {start + bind("s", 1) + sync, "", "not prepared here"},
		"a portal not bound":        {start + execute + sync, "", "not bound here"},
		"more values than there":    {start + prepare("", insert) + message("B", "\x00\x00", short(0), short(9)) + sync, "", "malformed Bind"},
		"more elements than there":  {start + prepare("", insert) + bind("", 1, array("a")[:20]+long(9)) + sync, "", "malformed array"},
		"too many elements":         {start + prepare("", insert) + bind("", 1, long(1)+long(0)+long(17)+long(1<<31)+long(1)) + sync, "", "announces 2147483648"},
		"a matrix":                  {start + prepare("", insert) + bind("", 1, long(2)+long(0)+long(17)+long(1)+long(1)) + sync, "", "malformed array"},
		"a reply that nobody asked": {start, welcome + done("COMMIT"), "without a request"},
		"a long name":               {start + prepare(strings.Repeat("n", 2000), "SELECT 1") + sync, "", "malformed Parse"},
	} {
		t.Run(name, func(t *testing.T) {
			_, refused := linktest.Streams([]byte(x.toBroker), []byte(x.toClient)).Frames(t, protocol())
			if len(refused) == 0 || !strings.Contains(refused[0].Error(), x.why) {
				t.Errorf("got %v, want %s", refused, x.why)
			}
			if len(refused) > 0 && !strings.HasPrefix(refused[0].Error(), "postgres: ") {
				t.Errorf("%v does not say where", refused[0])
			}
		})
	}
}

func TestTooManyUnansweredAreRefused(t *testing.T) {
	_, refused := linktest.Streams([]byte(start+strings.Repeat(query("COMMIT"), 5000)), []byte(welcome)).Frames(t, protocol())
	if len(refused) != 2 {
		t.Errorf("refused %v, want both directions", refused)
	}
}

func FuzzFramer(f *testing.F) {
	linktest.Fuzz(f, protocol, linktest.Read(f, "testdata/store.capture"),
		linktest.Streams([]byte(encrypt+start+query("COMMIT")+message("X")), []byte("N"+welcome+refusal("ERROR", "40001")+ready)))
}
