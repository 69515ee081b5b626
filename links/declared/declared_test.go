package declared_test

import (
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/declared"
	"github.com/custodymq/custody/links/linktest"
)

var rules = []declared.Rule{
	{Kind: links.FramePublish, To: evidence.ToBroker, Match: `^PUT (?P<request>\d+) `},
	{Kind: links.FrameAccept, To: evidence.ToClient, Match: `^(OK|(?P<no>FULL)) (?P<request>\d+)( (?P<message>m\d+))?`},
	{Kind: links.FrameDeliver, To: evidence.ToClient, Match: `^MSG (?P<message>m\d+) `},
	{Kind: links.FrameAck, To: evidence.ToBroker, Match: `^ACK (?P<request>\d+) (?P<message>m\d+)`},
	{Kind: links.FrameAckConfirm, To: evidence.ToClient, Match: `^DONE (?P<request>\d+)`},
}

func protocol(t testing.TB, framing string, rules []declared.Rule) *declared.Protocol {
	t.Helper()
	p, err := declared.New("own", framing, rules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// payload is one of a publish of order-N.
func payload(n string) []byte {
	return evidence.Envelope{PublishID: "p1-" + n + "-1", BusinessID: "order-" + n, Body: []byte("body")}.Encode()
}

func text(n string) string { return base64.StdEncoding.EncodeToString(payload(n)) }

func lengths(frames ...string) (b []byte) {
	for _, f := range frames {
		b = binary.BigEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	return b
}

// TestFrames: what is understood of a conversation, in every framing and however
// its bytes are split.
func TestFrames(t *testing.T) {
	escaped := strings.ReplaceAll(string(payload("2")), "\n", `\n`)
	toBroker := []string{"HELLO", "PUT 1 " + text("1"), `PUT 2 {"body":"` + escaped + `"}`, "PUT 3 " + text("3"), "ACK 4 m1", "ACK 5 m9"}
	toClient := []string{"OK 1 m1", "OK 2 m2", "FULL 3", "MSG m1 " + text("1"), "DONE 4", "DONE 6", "BYE"}
	want := []string{
		"", "publish order-1/p1-1-1/", "publish order-2/p1-2-1/", "publish order-3/p1-3-1/", "ack //m1", "ack //m9",
		"accept order-1/p1-1-1/m1 says accepted", "accept order-2/p1-2-1/m2 says accepted", "accept order-3/p1-3-1/ says FULL",
		"deliver order-1/p1-1-1/m1", "ack-confirm //m1 says accepted", "ack-confirm says accepted", "",
	}
	for framing, streams := range map[string]linktest.Capture{
		"lines":      linktest.Streams([]byte(strings.Join(toBroker, "\n")+"\n"), []byte(strings.Join(toClient, "\n")+"\n")),
		"length-u32": linktest.Streams(lengths(toBroker...), lengths(toClient...)),
	} {
		for _, capture := range []linktest.Capture{streams, streams.InPieces(1), streams.InPieces(3, 50)} {
			var got []string
			for _, f := range capture.Understood(t, protocol(t, framing, rules)) {
				got = append(got, linktest.Summary(f))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s:\n%s\nwant\n%s", framing, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

// TestBinary: an envelope is found among other bytes.
func TestBinary(t *testing.T) {
	p := protocol(t, "length-u32", []declared.Rule{{Kind: links.FramePublish, To: evidence.ToBroker, Match: `^\x01`}})
	frames := linktest.Streams(lengths("\x01\x00\xff"+string(payload("7"))), nil).Understood(t, p)
	if len(frames) != 1 || linktest.Summary(frames[0]) != "publish order-7/p1-7-1/" {
		t.Errorf("%+v", frames)
	}
}

func TestWhatIsTooLongIsRefused(t *testing.T) {
	for framing, text := range map[string][]byte{
		"lines": []byte(strings.Repeat("x", links.MaxFrame+1)), "length-u32": {0xff, 0, 0, 0},
	} {
		if _, refused := linktest.Streams(text, nil).Frames(t, protocol(t, framing, rules)); refused == nil {
			t.Errorf("%s: it is waited for", framing)
		}
	}
}

// TestLegal: an answer must never be taken for another request's.
func TestLegal(t *testing.T) {
	byPosition := []declared.Rule{{Kind: links.FramePublish, To: evidence.ToBroker, Match: "^PUT"}, {Kind: links.FrameAccept, To: evidence.ToClient, Match: "^OK"}}
	for _, c := range []struct {
		rules []declared.Rule
		do    links.Action
		want  links.Action // empty: not legal
	}{
		{rules, links.Drop, links.Drop}, {rules, links.Duplicate, links.Duplicate}, {rules, links.Corrupt, ""},
		{byPosition, links.Drop, links.Withhold}, {byPosition, links.Duplicate, ""}, {byPosition, links.CutAfter, links.CutAfter},
	} {
		if got, err := links.EffectiveAction(protocol(t, "lines", c.rules), links.FramePublish, c.do); (err == nil) != (c.want != "") || err == nil && got != c.want {
			t.Errorf("%s: %s, %v; want %q", c.do, got, err, c.want)
		}
	}
}

func TestNewTellsWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		framing string
		rule    declared.Rule
		want    string
	}{
		{"line", rules[0], `framing: no framing "line"`},
		{"lines", declared.Rule{Kind: "put", To: evidence.ToBroker}, `rules.0.kind: no kind "put"`},
		{"lines", declared.Rule{Kind: "publish", To: evidence.ToBroker, Match: "("}, "rules.0.match: "},
		{"lines", declared.Rule{Kind: "publish", To: evidence.ToBroker, Match: "(?P<id>x)"}, `rules.0.match: no group "id"`},
		{"lines", rules[1], "rules: accept answers publish, for which there is no rule"},
	} {
		if _, err := declared.New("own", c.framing, []declared.Rule{c.rule}); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

func FuzzFramers(f *testing.F) {
	f.Add([]byte("PUT 1 "+text("1")+"\nACK 2 m1\n"), []byte("OK 1 m1\nMSG m1 "+text("1")+"\n"))
	f.Add(lengths("PUT 1 "+text("1")), lengths("FULL 1"))
	f.Fuzz(func(t *testing.T, toBroker, toClient []byte) {
		for _, framing := range []string{"lines", "length-u32"} {
			linktest.Streams(toBroker, toClient).Frames(t, protocol(t, framing, rules))
		}
	})
}
