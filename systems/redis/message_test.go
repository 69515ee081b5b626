package redis

import (
	"errors"
	"maps"
	"slices"
	"testing"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// entry is a stored entry with these fields.
func entry(id string, fields []any) client.XMessage {
	m := client.XMessage{ID: id, Values: map[string]any{}}
	for i := 0; i+1 < len(fields); i += 2 {
		value, isText := fields[i+1].(string)
		if !isText {
			value = string(fields[i+1].([]byte))
		}
		m.Values[fields[i].(string)] = value
	}
	return m
}

func TestAMessageIsStoredAsItWasSent(t *testing.T) {
	for _, m := range []systems.Message{
		{Destination: "orders", Payload: []byte("x")},
		{Destination: "orders", Payload: []byte{}, Key: "customer-7"},
		{Destination: "a.b:c", Payload: []byte("\r\n\x00\xff"), Key: "k", Headers: map[string]string{"key": "1", "payload": "2", "a b": ""}},
	} {
		got := decode(m.Destination, "run:"+m.Destination, entry("7-0", encode(m)))
		if string(got.Payload) != string(m.Payload) || got.Key != m.Key || !maps.Equal(got.Headers, m.Headers) {
			t.Errorf("%+v came back as %+v", m, got)
		}
		if want := "run:" + m.Destination + ":7-0"; got.MessageID != want || got.Destination != m.Destination {
			t.Errorf("message %q of %q, want %q", got.MessageID, got.Destination, want)
		}
		raw, err := wrap(m)
		if err != nil {
			t.Fatal(err)
		}
		heard, err := unwrap(m.Destination, raw)
		if err != nil || string(heard.Payload) != string(m.Payload) || heard.Key != m.Key || !maps.Equal(heard.Headers, m.Headers) {
			t.Errorf("%+v was heard as %+v (%v)", m, heard, err)
		}
	}
	for _, raw := range []string{"", "custody/1 p1-1-1 order-1", "no head\npayload"} {
		if _, err := unwrap("orders", []byte(raw)); err == nil {
			t.Errorf("%q was unwrapped", raw)
		}
	}
}

// replied is an error reply.
type replied string

func (r replied) Error() string { return string(r) }
func (replied) RedisError()     {}

func TestReceipts(t *testing.T) {
	broken := errors.New("EOF")
	added := func(id string, err error) client.Cmder {
		c := client.NewStringCmd(t.Context(), "xadd")
		c.SetVal(id)
		c.SetErr(err)
		return c
	}
	published := func(n int64, err error) client.Cmder {
		c := client.NewIntCmd(t.Context(), "publish")
		c.SetVal(n)
		c.SetErr(err)
		return c
	}
	for name, c := range map[string]struct {
		command client.Cmder
		unsent  bool
		want    evidence.Acceptance
		told    string
	}{
		"stored":                                 {added("7-0", nil), false, evidence.Accepted, "ok"},
		"answered before the pipeline broke":     {added("7-0", broken), false, evidence.Accepted, "EOF"},
		"no answer":                              {added("", broken), false, evidence.Unknown, "EOF"},
		"nothing was written":                    {added("", broken), true, evidence.Rejected, errGone.Error()},
		"no memory":                              {added("", replied("OOM command not allowed")), false, evidence.Declined, "OOM command not allowed"},
		"the disk is full":                       {added("", replied("MISCONF Errors writing to the AOF file")), false, evidence.Rejected, "MISCONF Errors writing to the AOF file"},
		"another error":                          {added("", replied("ERR what")), false, evidence.Unknown, "ERR what"},
		"heard by two":                           {published(2, nil), false, evidence.Accepted, "ok"},
		"heard by nobody":                        {published(0, nil), false, evidence.Declined, "sent to 0 clients"},
		"published without an answer":            {published(0, broken), false, evidence.Unknown, "EOF"},
		"heard by one before the pipeline broke": {published(1, broken), false, evidence.Accepted, "EOF"},
	} {
		got := (&outgoing{name: "orders", command: c.command}).outcome(!c.unsent)
		if got.Acceptance != c.want || got.ClientResult != c.told {
			t.Errorf("%s: %+v, want %v, told %q", name, got, c.want, c.told)
		}
	}
}

func TestRowsOfAStream(t *testing.T) {
	payload := evidence.Envelope{PublishID: "p1-1-1", BusinessID: "order-1"}.Encode()
	s := stream{key: "run:orders"}
	for _, id := range []string{"9-0", "10-0", "10-1"} {
		s.entries = append(s.entries, entry(id, encode(systems.Message{Payload: payload})))
	}
	if rows := s.rows("orders"); len(rows) != 3 || rows[0].State != evidence.RowPending || rows[0].Subscription != "" {
		t.Errorf("without a group: %+v", rows)
	}
	s.groups = []group{{name: "billing", last: "10-0", pending: map[string]int{"10-0": 2}}, {name: "audit", last: "0-0"}}
	var got []string
	for _, row := range s.rows("orders") {
		if row.BusinessID != "order-1" || row.PublishID != "p1-1-1" || row.Destination != "orders" {
			t.Errorf("row %+v", row)
		}
		got = append(got, row.MessageID+" "+row.Subscription+" "+row.State.String())
	}
	want := []string{
		"run:orders:9-0 billing processed", "run:orders:9-0 audit pending",
		"run:orders:10-0 billing pending", "run:orders:10-0 audit pending",
		"run:orders:10-1 billing pending", "run:orders:10-1 audit pending",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
