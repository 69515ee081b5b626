package runner

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

func TestARewindKnowsItsCheckpoint(t *testing.T) {
	const head = "scenario x\nproducer p1 to orders\nconsumer c1 on orders\n"
	for _, c := range []struct{ name, steps, says string }{
		{"known", "snapshot a\nsnapshot b\nrestore business to a\nrewind c1 to b by time", ""},
		{"below", "rewind c1 to a by time\nsnapshot a", `there is no "snapshot a" above`},
		{"another", "snapshot a\nrestore business to b", `there is no "snapshot b" above`},
		{"no consumer", "snapshot a\nrewind p1 to a by position", "p1 is no consumer"},
		{"twice above", "snapshot a\nsnapshot a\nrestore business to a", "several snapshots are called a"},
		{"once more below", "snapshot a\nrewind c1 to a by time\nsnapshot a", "several snapshots are called a"},
		{"the harness's own name", "snapshot await\nrestore business to await", "several snapshots are called await"},
		{"twice, and nobody goes back", "snapshot a\nsnapshot a", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := script.Parse("x", head+c.steps)
			if err != nil {
				t.Fatal(err)
			}
			err = Check(s)
			var usage *UsageError
			if c.says == "" && err != nil || c.says != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("says %v, want %q", err, c.says)
			}
		})
	}
}

// Every name in a script is checked before anything starts; the error gives its
// position and a suggestion.
func TestNamesThatDoNotExist(t *testing.T) {
	const head = "scenario x\nproducer p1 to orders\nconsumer c1 on orders\n"
	for _, c := range []struct{ name, steps, says string }{
		{"producer", "publish a by p2", `f.scenario: line 4, word 4: p2 is no producer declared above this line; did you mean p1?`},
		{"producer that is a consumer", "publish a by c1", "line 4, word 4: c1 is no producer"},
		{"consumer", "stop c3", "line 4, word 2: c3 is no consumer declared above this line; did you mean c1?"},
		{"name taken", "consumer p1 on orders", "line 4, word 2: the name p1 is taken"},
		{"verb", "fault f: dorp frame ack on c1", `line 4, word 3: "dorp" is no fault; did you mean drop?`},
		{"frame", "fault f: drop frame akc on c1", `line 4, word 5: no protocol has a frame "akc"; did you mean ack?`},
		{"frame of another protocol", "fault f: drop frame in-progress on c1", ""},
		{"link of nobody", "fault f: drop frame ack on c7", "line 4, word 7: c7 is no actor declared above this line; did you mean c1?"},
		{"process of nobody", "fault f: pause c1 before frame ack on c1", `line 4, word 4: c1 has no process of its own to pause: only broker, store and consumers and relays declared with "child" have one`},
		{"process of a child", "consumer c2 on orders, child\nfault f: kill c2", ""},
		{"process of the broker", "fault f: kill broker", ""},
		{"process of a producer", "fault f: kill p1", "line 4, word 4: p1 has no process of its own"},
		{"heal", "fault lost: drop frame ack on c1\nheal lots", "line 5, word 2: there is no fault lots above this line; did you mean lost?"},
		{"awaited fault", "await fired lost", "line 4, word 3: there is no fault lost: no fault is declared above"},
		{"awaited actor", "await connected c9", "line 4, word 3: c9 is no actor"},
		{"awaited answer", "await acceptance acepted of a", `line 4, word 3: "acepted" is not an acceptance; did you mean accepted?`},
		{"awaited frame", "await carried publsh on p1", `line 4, word 3: no protocol has a frame "publsh"; did you mean publish?`},
		{"awaited checkpoint", "snapshot before\nawait stored a at befor", "line 5, word 5: no snapshot is called befor; did you mean before?"},
		{"rows at the end", "reached stored a at end", ""},
		{"reached fault", "reached fired f", "line 4, word 3: there is no fault f"},
		{"reached frame", "reached carried akc on c1", `line 4, word 3: no protocol has a frame "akc"`},
		{"handler", "consumer c2 on orders, handler lgo", `line 4, word 7: "lgo" is no way to handle deliveries; did you mean log?`},
		{"policy", "relay r1 from orders, policy new-id", `line 4, word 7: "new-id" is no policy of a relay; did you mean new-ids?`},
		{"relay", "relay r1 from orders, offline\nstart r1\nstop r1", ""},
		{"publish by a relay", "relay r1 from orders\npublish a by r1", "line 5, word 4: r1 is no producer"},
		{"process of a relay", "relay r1 from orders\nfault f: kill r1", "line 5, word 4: r1 has no process of its own"},
		{"process of a relay of its own", "relay r1 from orders, child\nfault f: kill r1 before operation mark on business", ""},
		{"operation of the business database", "fault f: unreachable business before operation lgo", `line 4, word 7: the business database has no operation "lgo"; did you mean log?`},
		{"operation of the broker's store", "fault f: unreachable store before operation mark", ""},
		{"need", "needs rows, rws", `line 4, word 4: "rws" is not a need; did you mean rows?`},
		{"a message may never come", "await effect of order-99", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := script.Parse("f.scenario", head+c.steps)
			if err != nil {
				t.Fatal(err)
			}
			err = Check(s)
			var usage *UsageError
			if c.says == "" && err != nil || c.says != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("says %v, want %q", err, c.says)
			}
		})
	}
}

// A setting that does not exist would be found only when its step comes.
func TestSettingsThatDoNotExist(t *testing.T) {
	some := systems.Description{System: "s", Settings: map[string][]string{"name": nil, "limits": {"default", "tight"}}}
	for _, c := range []struct{ step, says string }{
		{"set broker name to anything", ""},
		{"set broker limits to tight", ""},
		{"set broker limits to tigth", `f.scenario: line 2, word 5: the setting limits is one of default, tight, and not "tigth"; did you mean tight?`},
		{"set broker limit to tight", `f.scenario: line 2, word 3: s has no setting "limit"; it has limits, name; did you mean limits?`},
	} {
		s, err := script.Parse("f.scenario", "scenario x\n"+c.step)
		if err != nil {
			t.Fatal(err)
		}
		err = settings(s, some)
		var usage *UsageError
		if c.says == "" && err != nil || c.says != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: says %v, want %q", c.step, err, c.says)
		}
		if err := settings(s, systems.Description{}); err != nil {
			t.Errorf("of a system without settings its needs tell: %v", err)
		}
	}
}

// A script's needs follow from its steps, down to store operations.
func TestWhatIsNeeded(t *testing.T) {
	const head = "scenario x\nproducer p1 to orders\nconsumer c1 on orders, as billing\n"
	some := systems.Description{System: "s", StoreFaults: map[string][]string{"full": nil, "block": {"insert"}},
		Lacks: map[systems.Need]string{systems.NeedFanOut: "they all compete"}}
	for _, c := range []struct{ name, steps, why string }{
		{"one logical subscriber", "consumer c2 on orders, as billing", ""},
		{"another destination", "consumer c2 on mails, as stock", ""},
		{"two logical subscribers", "consumer c2 on orders, as stock", "they all compete"},
		{"a third", "consumer c2 on orders, as billing\nconsumer c3 on orders", "they all compete"},
		{"a verb with every operation", "fault f: full store before operation write", ""},
		{"a verb that is not there", "fault f: lose-reply store after operation insert", `the store of s has no fault "lose-reply"`},
		{"an operation that is there", "fault f: block store before operation insert", ""},
		{"an operation that is not", "fault f: block store before operation delete", `the store of s has no operation "delete" that "block" could strike`},
		{"a kill at an operation", "fault f: kill broker before operation insert", ""},
		{"a kill at none", "fault f: kill broker before operation delete", `no operation "delete"`},
		{"a kill", "fault f: kill broker", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := script.Parse("f.scenario", head+c.steps)
			if err != nil {
				t.Fatal(err)
			}
			if why := unsupported(s, some); (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
				t.Errorf("does not apply because %q, want %q", why, c.why)
			}
			if why := unsupported(s, systems.Description{}); why != "" {
				t.Errorf("a system that says nothing lacks: %s", why)
			}
			if (c.why == "they all compete") != slices.Contains(Needs(s), systems.NeedFanOut) {
				t.Errorf("needs %v", Needs(s))
			}
		})
	}
}
