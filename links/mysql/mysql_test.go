package mysql_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/linktest"
	"github.com/custodymq/custody/links/mysql"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func protocol() links.Protocol { return mysql.Protocol{} }

func packet(sequence byte, payload string) string {
	n := len(payload)
	return string([]byte{byte(n), byte(n >> 8), byte(n >> 16), sequence}) + payload
}

const (
	secure       = 1 << 9 // protocol 4.1
	deprecateEOF = 1 << 24
)

// handshake is a client's handshake response, with MariaDB's own capabilities.
func handshake(capabilities, mariadb uint32) string {
	b := binary.LittleEndian.AppendUint32(nil, capabilities)
	b = append(b, make([]byte, 24)...)
	b = binary.LittleEndian.AppendUint32(b, mariadb)
	return packet(1, string(b)+"custody\x00")
}

func command(text string) string { return packet(0, "\x03"+text) }

var (
	greeting = packet(0, "\x0a11.8\x00")
	okay     = packet(1, "\x00\x00\x00\x02\x00\x00\x00")
	more     = packet(1, "\x00\x00\x00\x08\x00\x00\x00") // and another result follows
	eof      = packet(4, "\xfe\x00\x00\x02\x00")
	endOK    = packet(4, "\xfe\x00\x00\x02\x00\x00\x00")
	columns  = packet(1, "\x02") + packet(2, "\x03def") + packet(3, "\x03def")
	row      = packet(5, "\x01a\xfb")
	failed   = packet(1, "\xff\x26\x04#23000no") // 1062
	welcome  = greeting + okay
)

const removal = "DELETE r FROM (SELECT _binary'a' AS id UNION ALL SELECT _binary'b\\'\\\\') AS v STRAIGHT_JOIN custody_row AS r ON r.message_id = v.id"

func TestFrames(t *testing.T) {
	hello := handshake(secure|1, 0)
	for name, x := range map[string]struct{ toBroker, toClient, want string }{
		"a transaction": {
			hello + command("START TRANSACTION") + command(removal) + command("COMMIT") + packet(0, "\x01"), welcome + okay + failed + okay,
			`begin, delete //a //b'\, commit, begin-reply says accepted, delete-reply //a //b'\ says 1062, commit-reply says accepted`,
		},
		"rows":                       {hello + command("SELECT 1"), welcome + columns + eof + row + row + eof, "query, query-reply says accepted"},
		"rows without EOF":           {handshake(secure|deprecateEOF, 0) + command("SELECT 1"), welcome + columns + row + row + endOK, "query, query-reply says accepted"},
		"columns that are known":     {handshake(secure|deprecateEOF, 1<<4) + command("SELECT 1"), welcome + packet(1, "\x02\x00") + row + endOK, "query, query-reply says accepted"},
		"columns that are told anew": {handshake(secure, 1<<4) + command("SELECT 1"), welcome + packet(1, "\x01\x01") + packet(2, "\x03def") + eof + row + eof, "query, query-reply says accepted"},
		"an error among the rows":    {hello + command("SELECT 1"), welcome + columns + eof + row + failed, "query, query-reply says 1062"},
		"a long row is no end":       {hello + command("SELECT 1"), welcome + columns + eof + packet(5, "\xfe"+strings.Repeat("\x01", 20)) + eof, "query, query-reply says accepted"},
		"several results":            {hello + command("SELECT 1; COMMIT"), welcome + more + columns + eof + row + packet(4, "\xfe\x00\x00\x08\x00") + okay, "query, query-reply says accepted"},
		"a report of progress":       {hello + command("COMMIT"), welcome + packet(1, "\xff\xff\xff\x01") + okay, "commit, commit-reply says accepted"},
		"another authentication":     {hello + packet(3, "") + command("COMMIT"), greeting + packet(2, "\xfemysql_native_password\x00") + okay + okay, "commit, commit-reply says accepted"},
		"other commands":             {hello + packet(0, "\x0e") + packet(0, "\x1b\x00\x00") + packet(0, "\x02custody") + packet(0, "\x1f") + command("COMMIT"), welcome + okay + eof + okay + okay + okay, "commit, commit-reply says accepted"},
		"a session that is ended":    {hello, welcome + failed, ""},
		"a login that is refused":    {hello, greeting + failed, ""},
		"no server to be had":        {"", failed, ""},
		"values as parameters name no message": {
			hello + command("DELETE FROM custody_row WHERE message_id = 'a'"), welcome + okay, "delete, delete-reply says accepted",
		},
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

// Items of a statement whose text is written in one way or another.
func TestMessagesOfAStatement(t *testing.T) {
	const into, end = "INSERT INTO custody_row (part, state) SELECT 1, 0 FROM (SELECT ", ") AS v"
	for table, want := range map[string]string{
		"1 AS ord, _binary'a' AS message_id, _binary'o' AS business_id, _binary'custody/1 p1-1-1 o\\n' AS payload": "insert o/p1-1-1/a",
		"'a' AS message_id, NULL AS expires_at UNION ALL SELECT 'b', -7":                                           "insert //a //b",
		"'it''s' AS message_id":                       "insert //it's",
		`'\0\b\n\r\t\Z\"\'\\\q' AS message_id`:        "insert //\x00\b\n\r\t\x1a\"'\\q",
		"'' AS message_id":                            "insert //",
		"1 AS ord":                                    "insert",
		"'a' AS message_id UNION ALL SELECT 'b', 'c'": "insert",
		"'a' AS message_id UNION ALL SELECT":          "insert",
		"'a\\":                                        "insert",
		"'a":                                          "insert",
		strings.Repeat("1 AS a, ", 100) + "1 AS id":         "insert",
		strings.Repeat("1", 100) + " AS id":                 "insert",
		"now() AS ord, 'a' AS message_id":                   "insert",
		"'a' AS message_id, 'b' as payload":                 "insert",
		"'" + strings.Repeat("a", 5000) + "' AS id":         "insert //" + strings.Repeat("a", 1<<10),
		"_binary'\\'\\\\\\') AS v' AS id, '\\\\' AS reason": "insert //'\\') AS v",
	} {
		c := linktest.Streams([]byte(handshake(secure, 0)+command(into+table+end)), nil)
		frames := c.Understood(t, protocol())
		if got := linktest.Summary(frames[len(frames)-1]); got != want {
			t.Errorf("%s\nis  %q\nnot %q", table, got, want)
		}
	}
}

func TestALongReplyNeedsNoMemory(t *testing.T) {
	row := packet(5, "\xfd\x10\x27\x00"+strings.Repeat("x", 10_000)+"\xfb")
	c := linktest.Streams([]byte(handshake(secure, 0)+command("SELECT 1")), []byte(welcome+columns+eof+strings.Repeat(row, 100)+eof))
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
	hello := handshake(secure, 0)
	for name, x := range map[string]struct{ toBroker, toClient, why string }{
		"TLS":                       {handshake(secure|1<<11, 0), greeting, "tls=false"},
		"compression":               {handshake(secure|1<<5, 0), greeting, "compress=false"},
		"newer compression":         {handshake(secure|1<<26, 0), greeting, "compress=false"},
		"query attributes":          {handshake(secure|1<<27, 0), greeting, "query attributes"},
		"an old client":             {handshake(0, 0), greeting, "older than MySQL 4.1"},
		"a short handshake":         {packet(1, "\x00\x02"), greeting, "a handshake of 2 bytes"},
		"a prepared statement":      {hello + packet(0, "\x16COMMIT"), welcome, "0x16"},
		"a packet of 16 MiB":        {hello + "\xff\xff\xff\x00", welcome, "announces 16777215"},
		"an empty command":          {hello + packet(0, ""), welcome, "an empty packet"},
		"an empty reply":            {hello + command("COMMIT"), welcome + packet(1, ""), "an empty packet"},
		"a file of the client's":    {hello + command("LOAD DATA LOCAL"), welcome + packet(1, "\xfbfile"), "LOAD DATA LOCAL"},
		"too many columns":          {hello + command("SELECT 1"), welcome + packet(1, "\xfd\xff\xff\xff"), "begins with 0xfd"},
		"half a number of columns":  {hello + command("SELECT 1"), welcome + packet(1, "\xfd\xff"), "begins with 0xfd"},
		"no EOF":                    {hello + command("SELECT 1"), welcome + columns + row, "no EOF"},
		"half an OK":                {hello + command("COMMIT"), welcome + packet(1, "\x00\x00"), "malformed end"},
		"half an error":             {hello + command("COMMIT"), welcome + packet(1, "\xff\x01"), "malformed error"},
		"a reply that nobody asked": {hello, welcome + okay, "without a request"},
		"too many rows":             {hello + command("DELETE r FROM (SELECT 'a' AS id"+strings.Repeat(" UNION ALL SELECT 'b'", 20_000)+") AS v"), welcome, "more than 16384 rows"},
	} {
		t.Run(name, func(t *testing.T) {
			_, refused := linktest.Streams([]byte(x.toBroker), []byte(x.toClient)).Frames(t, protocol())
			if len(refused) == 0 || !strings.Contains(refused[0].Error(), x.why) {
				t.Errorf("got %v, want %s", refused, x.why)
			}
			if len(refused) > 0 && !strings.HasPrefix(refused[0].Error(), "mysql: ") {
				t.Errorf("%v does not say where", refused[0])
			}
		})
	}
}

func FuzzFramer(f *testing.F) {
	linktest.Fuzz(f, protocol, linktest.Read(f, "testdata/store.capture"),
		linktest.Streams([]byte(handshake(secure|deprecateEOF, 1<<4)+command(removal)+packet(0, "\x01")), []byte(welcome+columns+row+endOK)))
}
