package resp_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/redisstore"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/linktest"
	"github.com/custodymq/custody/links/resp"
)

// What the store does is what the link sees, for a real store on a real server.
func TestFramesAreTheStoresOperations(t *testing.T) {
	r := newRig(t, resp.Protocol{Store: true})
	s, err := redisstore.Open(r.Ctx, redisstore.Options{DSN: "redis://" + r.Link.Addr() + "/0", Partition: store.Partition{Connection: "c", Identity: "i"}})
	r.Must(err)
	defer s.Close()
	batch := func(kind store.OperationKind, ns ...string) (list []store.Operation) {
		for _, n := range ns {
			list = append(list, store.Operation{Kind: kind, Row: store.Row{MessageID: "m-" + n, BusinessID: "order-" + n, Topic: "orders",
				Version: wire.Version, Headers: map[string]string{"a": "b"}, Payload: linktest.Payload(n, "body\r\n"), InsertedAt: time.Unix(1, 0)}})
		}
		return list
	}
	r.Must(s.Apply(r.Ctx, batch(store.Insert, "0"))) // the script has to be sent once
	before := len(r.Sink.Carried(""))
	r.Must(s.Apply(r.Ctx, batch(store.Insert, "1", "2")))
	if s.Apply(r.Ctx, batch(store.Insert, "2")) == nil {
		t.Fatal("an ID was stored twice")
	}
	r.Must(s.Apply(r.Ctx, append(batch(store.Attempt, "1"), batch(store.Insert, "3")...)))
	r.Must(s.Apply(r.Ctx, batch(store.Attempt, "1")))
	r.Must(s.Apply(r.Ctx, batch(store.Delete, "2")))
	r.Must(s.Rows(r.Ctx, store.Selection{Content: true}, func(store.Row) error { return nil }))
	var got []string
	for _, e := range r.Sink.Carried("")[before:] {
		if !strings.HasPrefix(e.Frame, "query") {
			got = append(got, linktest.Summary(links.Frame{Kind: e.Frame, Items: e.Items, Status: e.Reason}))
		}
	}
	const one, two, three = " order-1/p1-1-1/m-1", " order-2/p1-2-1/m-2", " order-3/p1-3-1/m-3"
	want := []string{
		"insert" + one + two, "insert-reply" + one + two + " says accepted",
		"insert" + two, "insert-reply" + two + " says exists",
		"insert" + three, "insert-reply" + three + " says accepted",
		"update" + one, "update-reply" + one + " says accepted",
		"delete" + two, "delete-reply" + two + " says accepted",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	a := r.Arm(links.Strike{Action: links.CutBefore, Kind: "insert-reply", Of: "order-5"})
	r.Must(s.Apply(r.Ctx, batch(store.Insert, "4")))
	if err := s.Apply(context.WithoutCancel(r.Ctx), batch(store.Insert, "5")); err == nil {
		t.Error("the reply was not struck")
	}
	r.Fired(a)
}

// What is no batch of the store's, or is cut short, names no message.
func TestScriptsThatNameNothing(t *testing.T) {
	mark := []string{"w", "1", "1", "2", "2", "1", "1", "9", "", "9"}
	row := []string{"insert", "m", "0001", "\x00\x00\x00\x09m", "state", "\x00\x00", ""}
	for name, x := range map[string]struct {
		args []string
		want string
	}{
		"no operation":           {append([]string{"EVALSHA", "0a", "1", "k"}, mark...), "query, query-reply says accepted"},
		"another script":         {append([]string{"EVALSHA", "0a", "1", "k"}, append(mark, "x", "2", "3", "4", "5", "6", "7")...), "query, query-reply says accepted"},
		"more keys than there":   {append([]string{"EVAL", "return 1", "99", "k"}, append(mark, row...)...), "query, query-reply says accepted"},
		"a head that is no list": {append([]string{"EVALSHA", "0a", "1", "k"}, append(mark, row...)...), "insert //m, insert-reply //m says accepted"},
		"no script":              {[]string{"GET", "a"}, "query, query-reply says accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			request := fmt.Sprintf("*%d\r\n", len(x.args))
			for _, arg := range x.args {
				request += fmt.Sprintf("$%d\r\n%s\r\n", len(arg), arg)
			}
			var got []string
			for _, f := range linktest.Streams([]byte(request), []byte("*2\r\n$2\r\nok\r\n$1\r\n2\r\n")).Understood(t, resp.Protocol{Store: true}) {
				got = append(got, linktest.Summary(f))
			}
			if list := strings.Join(got, ", "); list != x.want {
				t.Errorf("got %s, want %s", list, x.want)
			}
		})
	}
}
