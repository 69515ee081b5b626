package adapter_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/systems/adapter"
	"github.com/custodymq/custody/systems/conformance"
)

// TestCheckNamesWhatIsWrong breaks a skeleton, a line at a time, by what sed makes
// of its output.
func TestCheckNamesWhatIsWrong(t *testing.T) {
	good := skeleton(t, "go")
	for name, c := range map[string]struct{ sed, want string }{
		"a log on standard output":     {`1i hello`, "hello; write logs to standard error"},
		"another version":              {`s/"protocol":1/"protocol":2/`, "the answer to describe: protocol: 2 instead of 1"},
		"an unknown field":             {`s/"summary"/"resume"/`, `profiles.0: version 1 of the protocol has no field "resume" here`},
		"a duration in milliseconds":   {`s/"recoveryBound":"5s"/"recoveryBound":5000/`, "profiles.0.limits.recoveryBound: number instead of string"},
		"bounds that contradict":       {`s/"recoveryBound":"5s"/"recoveryBound":"1ms"/`, "profiles.0.limits.recoveryBound: it must be longer than redeliveryPeriod"},
		"an ability that is not told":  {`s/"ttl":"[^"]*",//`, "profiles.0.abilities: ttl is neither among them nor in lacks"},
		"an ability misspelt":          {`s/"nack"/"nak"/`, "profiles.0.abilities: nack is neither among them nor in lacks"},
		"both able and lacking":        {`s/"nack"/"nack","ttl"/`, `profiles.0.abilities: ttl is among them, and lacks says "messages do not expire"`},
		"no such guarantee":            {`s/"no-phantom"/"no-fantom"/`, `profiles.0.claims.1.guarantee: no guarantee "no-fantom"; did you mean no-phantom?`},
		"an unknown op is taken":       {`s/"error":{"kind":"unknown-op"[^}]*}/"ok":{}/`, "an op that the adapter does not know is an error of the kind unknown-op"},
		"accepted without leaving":     {`/"event":"left"/d`, "send was answered accepted without the event left before"},
		"a delivery without a payload": {`/"event":"delivery"/s/,"payload":"[^"]*"//`, `event delivery: message: the field "payload" is missing`},
		"a payload that was changed":   {`/"event":"delivery"/s/"payload":"Y3/"payload":"Y2/`, "which nobody sent"},
		"strangers' acknowledgements":  {`s/"outcome":"refused","reason":"[^"]*"/"outcome":"confirmed"/`, "ack of an unknown delivery was answered confirmed"},
		"another message ID":           {`/"acceptance"/s/"messageId":"m/"messageId":"x/`, `accepted as "x`},
		"a mark that is not true":      {`s/"redelivered"/"first"/`, `delivery 2 of a message is marked "first", want "redelivered"`},
		"rows that are not there":      {`s/"rows":\[{.*}\]/"rows":[]/`, "one message is stored, the snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			script := filepath.Join(t.TempDir(), "sed")
			if err := os.WriteFile(script, []byte(c.sed+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if !finds(t, "sh -c '"+good+" | sed -u -f "+script+"'", 10*time.Second, c.want) {
				t.Errorf("nothing is said of %q", c.want)
			}
		})
	}
	t.Run("it stays when its input ends", func(t *testing.T) {
		if !finds(t, "sh -c '"+good+"; sleep 600'", time.Second, "it does not exit within 1s of the end of its input") {
			t.Error("nothing is said of it")
		}
	})
}

// finds reports whether the check says something, and stops it there.
func finds(t *testing.T, command string, within time.Duration, want string) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var said []string
	found := false
	err := adapter.Check(ctx, command, within, func(_ string, f conformance.Finding) {
		for _, w := range f.Wrong {
			said = append(said, f.Obligation+": "+w)
			if strings.Contains(w, want) {
				found = true
				cancel()
			}
		}
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if !found {
		t.Logf("said was:\n%s", strings.Join(said, "\n"))
	}
	return found
}

func TestCheckOfWhatCannotBeRun(t *testing.T) {
	err := adapter.Check(t.Context(), "./no-such-program", time.Minute, func(_ string, f conformance.Finding) { t.Errorf("%+v", f) })
	if !errors.Is(err, adapter.ErrNotRun) || !strings.Contains(err.Error(), "no-such-program") {
		t.Error(err)
	}
}
