package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/disk"
	"github.com/custodymq/custody/broker/wire"
)

// trials returns the full number under CUSTODY_TORTURE, which takes minutes (make
// torture), otherwise a few.
func trials(few, full int) int {
	if os.Getenv("CUSTODY_TORTURE") != "" {
		return full
	}
	return few
}

// seeded returns a differently seeded generator in each run, and logs how to
// repeat it.
func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	if text := os.Getenv("CUSTODY_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatalf("CUSTODY_SEED: %v", err)
		}
	}
	t.Logf("CUSTODY_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Kills: a broker in a separate process, killed at random moments under load.

const tortured = "CUSTODY_TORTURED_BROKER"

// serveUntilKilled is the broker's process; it prints its address.
func serveUntilKilled(path string) error {
	s, err := Open(context.Background(), Options{Path: path, Partition: partition})
	if err != nil {
		return err
	}
	server, err := broker.Open(context.Background(), broker.Config{Store: s})
	if err != nil {
		return err
	}
	fmt.Println(server.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin) // exits at the latest with the test
	return errors.Join(server.Close(context.Background()), s.Close())
}

func TestNothingAcceptedIsLostByKills(t *testing.T) {
	random := seeded(t)
	kills := trials(3, 500)
	var path string
	var open map[string]bool // accepted and not yet found settled
	accepted := 0
	for n := range kills {
		if n%25 == 0 { // a new file, before loading it dominates the time
			path, open = filepath.Join(t.TempDir(), "store.db"), map[string]bool{}
			t.Logf("%d kills, %d accepted, none lost", n, accepted)
		}
		for id := range underLoad(t, path, fmt.Sprint(n), time.Duration(20+random.IntN(180))*time.Millisecond) {
			open[id] = true
			accepted++
		}
		s := mustOpen(t, Options{Path: path})
		err := s.Load(t.Context(), 1<<20, func(r store.Row) error {
			switch r.State {
			case store.SettledMarker:
				delete(open, r.MessageID)
			case store.Damaged:
				t.Errorf("kill %d: %s: %s", n, r.MessageID, r.Reason)
			default:
				if open[r.MessageID] {
					open[r.MessageID] = false // found
				}
			}
			return nil
		})
		if err != nil {
			t.Fatalf("kill %d: %v", n, err)
		}
		for id, missing := range open {
			if missing {
				t.Errorf("kill %d: %s was accepted, and is lost", n, id)
			}
			open[id] = true
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills, %d accepted, none lost", kills, accepted)
}

// underLoad runs a broker with a publisher and a consumer, kills it after
// lifetime and returns the message IDs that were answered Accepted.
func underLoad(t *testing.T, path, prefix string, lifetime time.Duration) map[string]bool {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), tortured+"="+path)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }() // it was killed
	defer func() { _ = cmd.Process.Kill() }()
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the broker does not start: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := client.Dial(ctx, strings.TrimSpace(address), client.Options{Name: "load"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sub, err := conn.Subscribe(ctx, client.Filter{Topic: "orders", Mode: wire.AtLeastOnce, Window: 16})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() { // acknowledges two of three
		for n := 0; ; n++ {
			d, err := sub.Receive(ctx)
			if err != nil {
				return
			}
			if n%3 != 0 {
				_, _ = d.AckStart() // the broker may be dead already
			} else {
				_ = sub.Grant(1)
			}
		}
	})
	timer := time.AfterFunc(lifetime, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	accepted := map[string]bool{}
	calls := make(chan *client.Call, 64)
	group.Go(func() {
		defer close(calls)
		payload := make([]byte, 300)
		for n := 0; ; n++ {
			call, err := conn.Publish(ctx, wire.Message{Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "o", MessageID: fmt.Sprintf("%s-%d", prefix, n), Payload: payload})
			if err != nil {
				return
			}
			calls <- call
		}
	})
	for call := range calls {
		if reply, err := call.Wait(ctx); err == nil && reply.Answer == wire.Accepted {
			accepted[reply.MessageID] = true
		}
	}
	_ = conn.Close()
	group.Wait()
	return accepted
}

// randomBatch draws changes to messages and applies them to the model too.
func randomBatch(random *rand.Rand, model map[string]string, n int) []store.Operation {
	var batch []store.Operation
	for i := range 1 + random.IntN(8) {
		id := fmt.Sprintf("%d-%d", n, i)
		if known := slices.Sorted(maps.Keys(model)); len(known) > 10 && random.IntN(2) == 0 {
			id = known[random.IntN(len(known))]
			kind := []store.OperationKind{store.Attempt, store.Delete, store.DeadLetter, store.Redrive, store.Discard}[random.IntN(5)]
			row := store.Row{MessageID: id, Attempts: n}
			if random.IntN(2) == 0 {
				row.KeepUntil = time.Now().Add(time.Hour)
			}
			if kind == store.Redrive {
				row.KeepUntil = time.Time{}
			}
			batch = append(batch, store.Operation{Kind: kind, Row: row})
			switch state := model[id]; {
			case kind == store.DeadLetter && state == "pending":
				model[id] = "dead"
			case kind == store.Redrive && state == "dead":
				model[id] = "pending"
			case (kind == store.Delete && state == "pending" || kind == store.Discard && state == "dead") && row.KeepUntil.IsZero():
				delete(model, id)
			case kind == store.Delete && state == "pending" || kind == store.Discard && state == "dead":
				model[id] = "settled"
			}
			continue
		}
		op := message(id, 0)
		op.Row.Payload = payloadOf(id)
		batch = append(batch, op)
		model[id] = "pending"
	}
	return batch
}

// payloadOf returns a payload unique to this message.
func payloadOf(id string) []byte {
	random := rand.New(rand.NewPCG(contentSeed(id), 1))
	payload := []byte(id)
	for range random.IntN(2000) {
		payload = append(payload, byte(random.IntN(256)))
	}
	return payload
}

func contentSeed(id string) uint64 { return uint64(contentChecksum(id, nil, nil)) }

// stateOf renders a model.
func stateOf(model map[string]string) string {
	var text strings.Builder
	for _, id := range slices.Sorted(maps.Keys(model)) {
		text.WriteString(id + ":" + model[id] + " ")
	}
	return text.String()
}

// Power cuts: the files are built as a cut at any moment may have left them.

func TestNothingAcceptedIsLostByPowerCuts(t *testing.T) {
	for name, flush := range map[string]store.Flush{"every commit": store.FlushEveryCommit, "periodic": store.FlushPeriodic} {
		t.Run(name, func(t *testing.T) { cutPower(t, flush, trials(15, 500)) })
	}
}

func cutPower(t *testing.T, flush store.Flush, cuts int) {
	random := seeded(t)
	r := disk.New(fmt.Sprintf("disk-%d", vfsCount.Add(1)))
	t.Cleanup(r.Close)
	path := filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, Options{Path: path, VFS: r.Name(), Sync: flush})
	model, states, returned := map[string]string{}, []string{""}, []int{r.Operations()}
	for n := range 250 {
		mustApply(t, s, randomBatch(random, model, n)...)
		states, returned = append(states, stateOf(model)), append(returned, r.Operations())
	}
	end := r.Operations()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for n := range cuts {
		cut := returned[0] + random.IntN(end-returned[0]+1)
		copied := filepath.Join(folder, fmt.Sprintf("cut-%d.db", n))
		for ending, data := range r.Written(random, cut) {
			if err := os.WriteFile(copied+ending, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		found := map[string]string{}
		s := mustOpen(t, Options{Path: copied})
		if err := s.Load(t.Context(), 1<<20, func(row store.Row) error {
			if row.State == store.Damaged {
				t.Errorf("cut %d: %s: %s", n, row.MessageID, row.Reason)
			}
			found[row.MessageID] = row.State.String()
			return nil
		}); err != nil {
			t.Fatalf("cut %d: %v", n, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if report, err := Check(t.Context(), copied, func(int64, int64) {}); err != nil || !report.Sound() {
			t.Fatalf("cut %d: %+v, %v", n, report, err)
		}
		// Expect every batch that had returned, and each later one entirely or
		// not at all.
		sure := 0
		for sure+1 < len(returned) && returned[sure+1] <= cut {
			sure++
		}
		first, last := sure, min(sure+1, len(states)-1)
		if flush == store.FlushPeriodic {
			first = 0
		}
		if !slices.Contains(states[first:last+1], stateOf(found)) {
			t.Fatalf("cut %d at operation %d: the rows are of no batch from %d to %d", n, cut, first, last)
		}
		for _, ending := range endings {
			_ = os.Remove(copied + ending) // it may not exist
		}
		_ = os.Remove(ownerPath(copied, partition))
	}
	t.Logf("%d cuts over %d operations on files, nothing lost", cuts, end)
}

// Damage: bits, pages and files, at random.

func TestDamageIsNeverDelivered(t *testing.T) {
	random := seeded(t)
	whole, model := abandoned(t, random)
	counts := map[string]int{}
	folder := t.TempDir()
	for n := range trials(40, 1000) {
		copied := filepath.Join(folder, fmt.Sprintf("damage-%d.db", n))
		files := map[string][]byte{}
		for ending, data := range whole {
			files[ending] = slices.Clone(data)
		}
		how := inflict(random, files)
		for ending, data := range files {
			if err := os.WriteFile(strings.Replace(copied+ending, copied+ownerEnding, ownerPath(copied, partition), 1), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		outcome := survive(t, copied, model)
		counts[outcome]++
		if outcome == "lost in silence" || t.Failed() {
			t.Fatalf("damage %d (%s): %s", n, how, outcome)
		}
		leftovers, _ := filepath.Glob(copied + "*")
		for _, file := range leftovers {
			_ = os.Remove(file)
		}
	}
	t.Logf("outcomes: %v", counts)
}

const ownerEnding = ".owner"

// abandoned returns the files that a killed broker left: database, WAL and owner
// file.
func abandoned(t *testing.T, random *rand.Rand) (files map[string][]byte, model map[string]string) {
	path := filepath.Join(t.TempDir(), "store.db")
	model = map[string]string{}
	s := mustOpen(t, Options{Path: path})
	for n := range 150 {
		mustApply(t, s, randomBatch(random, model, n)...)
		if n == 80 { // checkpoint half of it into the database
			s.Close()
			s = mustOpen(t, Options{Path: path})
		}
	}
	files = map[string][]byte{}
	for ending, name := range map[string]string{"": path, "-wal": path + "-wal", ownerEnding: ownerPath(path, partition)} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[ending] = data
	}
	return files, model
}

// inflict damages the database or its WAL.
func inflict(random *rand.Rand, files map[string][]byte) string {
	ending := []string{"", "-wal"}[random.IntN(2)]
	data := files[ending]
	const page = 4096
	at := random.IntN(len(data)) / page * page
	stop := min(at+page, len(data))
	switch random.IntN(7) {
	case 0, 1:
		bits := 1 + random.IntN(16)
		for range bits {
			data[random.IntN(len(data))] ^= 1 << random.IntN(8)
		}
		return fmt.Sprintf("%d bits of %q flipped", bits, ending)
	case 2:
		for range 16 {
			data[random.IntN(len(data))] = byte(random.IntN(256))
		}
		return fmt.Sprintf("16 bytes of %q overwritten", ending)
	case 3:
		files[ending] = data[:random.IntN(len(data))]
		return fmt.Sprintf("%q truncated to %d", ending, len(files[ending]))
	case 4:
		clear(data[at:stop])
		return fmt.Sprintf("%q zeroed at %d", ending, at)
	case 5:
		other := random.IntN(len(data)) / page * page
		copy(data[at:stop], data[other:])
		return fmt.Sprintf("%q at %d has the page of %d", ending, at, other)
	default:
		delete(files, "-wal")
		return "the log deleted"
	}
}

// survive opens the damaged files, then reads and changes everything. Every call
// must return, and whatever is returned must be what was published.
func survive(t *testing.T, path string, model map[string]string) (outcome string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := Open(ctx, Options{Path: path, Partition: partition, BusyTimeout: time.Second})
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			t.Error("the start hangs")
		}
		return "refused at the start"
	}
	defer s.Close()
	told, unsettled := false, map[string]bool{}
	verify := func(row store.Row, content bool) {
		switch row.State {
		case store.Damaged:
			told = true
		case store.Pending, store.Dead:
			unsettled[row.MessageID] = true
			want := message(row.MessageID, 0).Row
			if model[row.MessageID] == "" && !strings.Contains(row.MessageID, "-") || row.Topic != want.Topic || row.Key != want.Key || row.BusinessID != want.BusinessID {
				t.Errorf("a message that was not published: %+v", row)
			}
			if content && (string(row.Payload) != string(payloadOf(row.MessageID)) || !maps.Equal(row.Headers, want.Headers)) {
				t.Errorf("%s has another's content", row.MessageID)
			}
		}
	}
	if err := s.Load(ctx, 1<<20, func(row store.Row) error { verify(row, false); return nil }); err != nil {
		return "refused when it was loaded"
	}
	var ids []string
	for id, state := range model {
		if state != "settled" && !unsettled[id] && !told {
			outcome = "lost in silence"
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	found := map[string]bool{}
	content := s.Content(ctx, ids, func(row store.Row) error { verify(row, true); found[row.MessageID] = true; return nil })
	misled := false // the row is in the table but not in its index
	for id := range unsettled {
		misled = misled || model[id] != "" && !found[id]
	}
	rows := s.Rows(ctx, store.Selection{Content: true}, func(row store.Row) error { verify(row, row.State == store.Pending); return nil })
	var writes error
	for i, id := range ids { // may fail, but must return
		op := message(fmt.Sprintf("new-%d", i), 0)
		op.Row.Payload = payloadOf(op.Row.MessageID)
		writes = errors.Join(writes, s.Apply(ctx, []store.Operation{op, {Kind: store.Delete, Row: store.Row{MessageID: id, KeepUntil: time.Now().Add(time.Hour)}}}))
		if writes != nil && i > 3 {
			break
		}
	}
	if _, err := s.Expired(ctx, time.Now(), time.Time{}, 100); err != nil {
		writes = errors.Join(writes, err)
	}
	switch {
	case outcome != "":
	case ctx.Err() != nil:
		t.Error("it hangs")
	case content != nil || rows != nil || writes != nil:
		outcome = "served, until an error of the file"
	case misled:
		outcome = "served, but for content that its index does not lead to"
	case told:
		outcome = "served, and the damage was told"
	default:
		outcome = "served, and nothing was lost"
	}
	return outcome
}

var vfsCount atomic.Int64
