package evidence

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// sealed records a complete run with two events, one snapshot and one log.
func sealed(t *testing.T) string {
	t.Helper()
	r := begin(t)
	r.Record(Event{Kind: PublishCalled, Actor: "p1", PublishID: "p1-1-1"})
	r.Record(Event{Kind: Noted})
	if err := r.WriteSnapshot(Snapshot{Checkpoint: "end", Source: SourceBroker, Trust: Exact, Rows: []StoredRow{{State: RowPending}}}); err != nil {
		t.Fatal(err)
	}
	log, err := r.Log("broker")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Write([]byte("started\n")); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(End{How: EndCompleted}); err != nil {
		t.Fatal(err)
	}
	return r.Dir()
}

func opened(t *testing.T, dir string) *Run {
	t.Helper()
	run, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func TestARunThatHasEndedIsSealed(t *testing.T) {
	dir := sealed(t)
	run := opened(t, dir)
	if !run.Sealed() || run.Damage() != "" {
		t.Fatalf("sealed %v, damage %q", run.Sealed(), run.Damage())
	}
	var names []string
	for _, f := range run.Manifest().End.Files {
		names = append(names, f.Name)
	}
	if got := strings.Join(names, " "); got != "events.jsonl.zst logs/broker.log rows.jsonl.zst script.custody" {
		t.Errorf("sealed are %s", got)
	}
	// This is the check that the evidence page describes for third parties.
	b, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		t.Fatal(err)
	}
	seal := run.Manifest().End.Seal
	if digest(bytes.Replace(b, []byte(seal), []byte(noSeal), 1)) != seal {
		t.Error("the seal is not the digest of the manifest with zeros in its place")
	}
	copy := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copy, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if opened(t, copy).Identity() != run.Identity() {
		t.Error("a copy is another run")
	}
	if opened(t, sealed(t)).Identity() == run.Identity() {
		t.Error("another run is the same")
	}
}

func TestASealWithoutItsNewFormatIsMissed(t *testing.T) {
	for name, swap := range map[string][2]string{
		"no seal":      {`"seal":`, `"seel":`},
		"no end":       {`"end":`, `"once":`},
		"older format": {`"format": 2`, `"format": 1`},
		"an end twice": {`"scenario":`, `"end": {"how": "completed"}, "scenario":`},
	} {
		dir := sealed(t)
		rewrite(t, dir, manifestFile, replaced(swap[0], swap[1]))
		if damage := opened(t, dir).Damage(); !strings.HasPrefix(damage, manifestFile) {
			t.Errorf("%s: damage %q", name, damage)
		}
	}
}

func TestAnAbsurdManifestIsRefusedWithItsField(t *testing.T) {
	for want, change := range map[string]func(*Manifest){
		"profile.limits.recoveryBound: -1s is negative":   func(m *Manifest) { m.Profile.Limits.RecoveryBound = -time.Second },
		"profile.limits.recoveryBound: 262800h0m0s is mo": func(m *Manifest) { m.Profile.Limits.RecoveryBound = 30 * 365 * 24 * time.Hour },
		"profile.limits.expiryTolerance: -1ns":            func(m *Manifest) { m.Profile.Limits.ExpiryTolerance = -1 },
		"profile.limits.maxAttempts: -1":                  func(m *Manifest) { m.Profile.Limits.MaxAttempts = -1 },
		"profile.limits.orderScope: \"galaxy\"":           func(m *Manifest) { m.Profile.Limits.OrderScope = "galaxy" },
		"scale: 0 is no factor":                           func(m *Manifest) { m.Scale = 0 },
		"scale: -2 is no factor":                          func(m *Manifest) { m.Scale = -2 },
		"known[0].until: \"~\" is no day":                 func(m *Manifest) { m.Known = []Known{{Until: "~"}} },
		"reached[0].times: -1":                            func(m *Manifest) { m.Reached = []Condition{{Times: -1}} },
	} {
		m := Manifest{Format: FormatVersion, Scale: 1}
		change(&m)
		if _, err := Create(filepath.Join(t.TempDir(), "run"), m, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("written: %v, want %q", err, want)
		}
		b, err := sealManifest(m)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, manifestFile), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("read: %v, want %q", err, want)
		}
	}
}

// Anything but a regular file is refused at once and no link is followed,
// whether the evidence is sealed or not.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("scenario s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	plants := map[string]func(path string) error{
		"symbolic link": func(path string) error { return os.Symlink(secret, path) },
		"FIFO":          func(path string) error { return unix.Mkfifo(path, 0o644) },
		"folder":        func(path string) error { return os.Mkdir(path, 0o755) },
	}
	for kind, plant := range plants {
		for _, name := range []string{manifestFile, scriptFile, eventsFile, rowsFile, "logs/broker.log"} {
			for _, format := range []string{"1", "2"} {
				dir := golden(t)
				file := name
				if format == "2" {
					dir = sealed(t)
					if name == eventsFile || name == rowsFile {
						file += packedSuffix
					}
				}
				path := filepath.Join(dir, file)
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				if err := plant(path); err != nil {
					t.Fatal(err)
				}
				err := firstError(dir)
				if err == nil { // format 1 has no seal: script and logs are read only on request
					run := opened(t, dir)
					if file == scriptFile {
						_, err = run.Script()
					} else {
						_, err = run.LogTail("broker", 1)
					}
				}
				if err == nil || !strings.Contains(err.Error(), kind) || !strings.Contains(err.Error(), filepath.Base(file)) {
					t.Errorf("%s as a %s, format %s: %v", file, kind, format, err)
				}
			}
		}
		path := filepath.Join(t.TempDir(), "named")
		if err := plant(path); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadRegular(path, 100); (err == nil) != (kind == "symbolic link") {
			t.Errorf("a %s that the caller names: %v", kind, err)
		}
	}
	if _, err := ReadRegular(os.DevNull, 100); err == nil || !strings.Contains(err.Error(), "a device") {
		t.Errorf("a device: %v", err)
	}
	if _, err := ReadRegular(secret, 5); err == nil || !strings.Contains(err.Error(), "limit of 5") {
		t.Errorf("a long file: %v", err)
	}
}

func TestAFolderOfLogsThatIsALinkIsNotEntered(t *testing.T) {
	for _, target := range []string{t.TempDir(), "elsewhere"} { // outside the folder, and inside it
		dir := golden(t)
		elsewhere := target
		if !filepath.IsAbs(target) {
			elsewhere = filepath.Join(dir, target)
		}
		logs := filepath.Join(dir, logsFolder)
		if err := errors.Join(os.RemoveAll(logs), os.MkdirAll(elsewhere, 0o755), os.Symlink(target, logs),
			os.WriteFile(filepath.Join(elsewhere, "broker.log"), []byte("secret"), 0o644)); err != nil {
			t.Fatal(err)
		}
		run := opened(t, dir)
		if b, err := run.LogTail("broker", 10); err == nil {
			t.Errorf("read %q", b)
		}
		if names, err := run.Logs(); err == nil {
			t.Errorf("listed %q", names)
		}
	}
}

func TestNothingIsWrittenThroughALink(t *testing.T) {
	dir := golden(t)
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(precious, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{verdictFile, verdictFile + tempSuffix} {
		if err := os.Symlink(precious, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := opened(t, dir).WriteVerdict([]byte("verdict")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(precious); err != nil || string(b) != "mine" {
		t.Errorf("the link's target holds %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, verdictFile)); err != nil || string(b) != "verdict" {
		t.Errorf("the verdict is %q, %v", b, err)
	}
	r := begin(t)
	if err := os.Symlink(precious, filepath.Join(r.Dir(), logsFolder, "broker.log")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Log("broker"); err == nil {
		t.Error("a log is opened through a link")
	}
}

// A few bytes that unpack to gigabytes are refused before they fill the
// memory.
func TestRowsThatNeverEndAreRefused(t *testing.T) {
	const begins = `{"checkpoint":"end","source":"broker","trust":"exact","count":2000000000}` + "\n"
	for name, c := range map[string]struct {
		size       int
		head, line string
	}{
		"many rows":      {8 << 20, begins, `{"state":"dead"}` + "\n"},
		"large rows":     {80 << 20, begins, `{"state":"dead","reason":"` + strings.Repeat("x", maxLine/2) + `"}` + "\n"},
		"many snapshots": {16 << 20, "", `{"checkpoint":"end","source":"broker","trust":"exact"}` + "\n"},
	} {
		dir := golden(t)
		bomb := bombOf(t, c.size, strings.Repeat(c.line, max(1, 1<<20/len(c.line))), c.head)
		if err := os.WriteFile(filepath.Join(dir, rowsFile+packedSuffix), bomb, 0o644); err != nil {
			t.Fatal(err)
		}
		h := history(t, dir)
		if !strings.Contains(h.Damage, "rows.jsonl.zst line") || !strings.Contains(h.Damage, "more than the") {
			t.Errorf("%s, %d bytes: %s", name, len(bomb), h.Damage)
		}
		if read := len(h.Snapshots) + len(h.Snapshots[0].Rows); int64(read*rowMemory) > unpacked(int64(len(bomb))) {
			t.Errorf("%s: %d of them were read from %d bytes", name, read, len(bomb))
		}
	}
}

func TestEventsThatNeverEndAreRefused(t *testing.T) {
	dir := golden(t)
	bomb := bombOf(t, 100<<20, `{"seq":1,"at":1,"kind":"phase","reason":"`+strings.Repeat("x", maxLine/2)+"\"}\n", "")
	if err := errors.Join(os.Remove(filepath.Join(dir, eventsFile)), os.WriteFile(filepath.Join(dir, eventsFile+packedSuffix), bomb, 0o644)); err != nil {
		t.Fatal(err)
	}
	f, err := opened(t, dir).lines(eventsFile)
	if err != nil {
		t.Fatal(err)
	}
	var read int64
	for line, e := range f.all() {
		read, err = read+int64(len(line)), e
	}
	if err == nil || !strings.Contains(err.Error(), "more than the") || read > unpacked(int64(len(bomb)))+maxLine {
		t.Errorf("%d bytes unpacked of %d: %v", read, len(bomb), err)
	}
}

func TestTheNumberOfEventsIsBounded(t *testing.T) {
	dir := golden(t)
	for bound, want := range map[string]string{"8": "more than the 8 events", "9": "", "": "", "many": "CUSTODY_MAX_EVENTS is"} {
		t.Setenv(EventsVariable, bound)
		if err := firstError(dir); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("bound %q: %v, want %q", bound, err, want)
		}
	}
}

// bombOf returns head, followed by size bytes of repeated chunk, compressed.
func bombOf(t *testing.T, size int, chunk, head string) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(z, head)
	for range size / len(chunk) {
		_, more := io.WriteString(z, chunk)
		err = errors.Join(err, more)
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Thousands of names in a manifest cost neither memory nor time to refuse.
func TestAManifestWithoutEndIsRefused(t *testing.T) {
	dir := golden(t)
	files := strings.TrimSuffix(strings.Repeat(`{"name":"a"},`, 100_000), ",")
	rewrite(t, dir, manifestFile, replaced(`"how": "completed"`, `"how": "completed", "seal": "`+strings.Repeat("a", 64)+`", "files": [`+files+`]`))
	damage := folder(dir).checkFiles(opened(t, dir).manifest.End.Files)
	if len(damage) != 1 || !strings.Contains(damage[0], "at most") {
		t.Error(damage)
	}
	for _, list := range []string{"claims", "reached", "faults"} {
		dir := golden(t)
		rewrite(t, dir, manifestFile, replaced(`"`+list+`": [`, `"`+list+`": [`+strings.Repeat("{},", maxList+1)))
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), list+": ") || !strings.Contains(err.Error(), "limit") {
			t.Errorf("%s: %v", list, err)
		}
	}
	rewrite(t, dir, manifestFile, func(b []byte) []byte { return append(b, bytes.Repeat([]byte{' '}, maxManifest)...) })
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Error(err)
	}
}

func TestWhatCanNameAFile(t *testing.T) {
	for name, good := range map[string]bool{
		"ack-lost": true, "order-1": true, "a:b": true, "...": false, "": false, "..": false, "../x": false, "a/b": false, `a\b`: false,
		".hidden": false, "a\x00b": false, "a\nb": false, strings.Repeat("a", 200): true, strings.Repeat("a", 201): false,
	} {
		if err := FileName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Discard removes an aborted run, but nothing that the folder's owner put
// there.
func TestOnlyWhatARunHasMadeIsDiscarded(t *testing.T) {
	for _, planted := range []string{"notes.txt", "logs/notes.txt", "sub/", "logs/sub/", "events.jsonl/"} {
		r := begin(t)
		dir := r.Dir()
		if err := opened(t, dir).Discard(); err == nil || !strings.Contains(err.Error(), "being recorded") {
			t.Errorf("a run that goes on: %v", err)
		}
		if _, err := r.Log("broker"); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(End{How: EndCancelled}); err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(dir, planted)
		if strings.HasSuffix(planted, "/") {
			at = filepath.Join(at, "precious")
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		if err := opened(t, dir).Discard(); err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(planted, "/")) {
			t.Errorf("with %s in it: %v", planted, err)
		}
		if _, err := os.Stat(at); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(filepath.Join(dir, planted)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(opened(t, dir).WriteVerdict(nil), os.WriteFile(filepath.Join(dir, ".rows.jsonl.zst-1.tmp"), nil, 0o644), opened(t, dir).Discard()); err != nil {
			t.Error(err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("left behind: %v, %v", entries, err)
		}
	}
}

// Logs and identifiers are readable by their owner only, until handed on.
func TestEvidenceIsItsOwners(t *testing.T) {
	going := begin(t)
	if _, err := going.Log("broker"); err != nil {
		t.Fatal(err)
	}
	private(t, going.Dir())
	dir := sealed(t)
	if err := opened(t, dir).WriteVerdict(nil); err != nil {
		t.Fatal(err)
	}
	private(t, dir)
}

func private(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 && name != dir { // the test created dir itself
			t.Errorf("%s has the mode %s", name, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSignatures(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	stranger, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(kind string, der []byte, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	privateFile := keep("PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(public)
	publicFile := keep("PUBLIC KEY", der, err)
	key, err := ReadPrivateKey(privateFile)
	if err != nil {
		t.Fatal(err)
	}
	known, err := ReadPublicKey(publicFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPublicKey(privateFile); err == nil {
		t.Error("a private key is taken for a public one")
	}
	if _, err := ReadPrivateKey(publicFile); err == nil {
		t.Error("a public key is taken for a private one")
	}

	dir := sealed(t)
	run := opened(t, dir)
	if err := run.CheckSignature(known); !errors.Is(err, ErrNotSigned) || run.Signed() {
		t.Errorf("before it is signed: %v", err)
	}
	if err := run.Sign(key); err != nil {
		t.Fatal(err)
	}
	if err := run.CheckSignature(known); err != nil || !run.Signed() {
		t.Errorf("signed: %v", err)
	}
	if err := run.CheckSignature(stranger); err == nil {
		t.Error("anybody's key will do")
	}
	rewrite(t, dir, manifestFile, replaced(`"run": "r"`, `"run": "q"`))
	if err := opened(t, dir).CheckSignature(known); err == nil {
		t.Error("a changed manifest is signed")
	}
	if err := opened(t, dir).Sign(key); err == nil {
		t.Error("what is damaged was signed")
	}
	if err := opened(t, golden(t)).Sign(key); err == nil {
		t.Error("what is not sealed was signed")
	}
	if _, err := os.Stat(filepath.Join(dir, "."+signatureFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Error("something was left behind")
	}
}

// A large run stays far below the bounds.
func TestManyRowsAreRead(t *testing.T) {
	rows := make([]StoredRow, 200_000)
	for i := range rows {
		id := strconv.Itoa(i)
		rows[i] = StoredRow{State: RowPending, BusinessID: "order-" + id, PublishID: "p1-" + id + "-1", MessageID: id, Subscription: "orders", Digest: Digest([]byte(id), "", nil)}
	}
	r := begin(t)
	if err := errors.Join(r.WriteSnapshot(Snapshot{Checkpoint: "end", Source: SourceBroker, Trust: Exact, Rows: rows}), r.Close(End{How: EndCompleted})); err != nil {
		t.Fatal(err)
	}
	h := history(t, r.Dir())
	if h.Damage != "" || len(h.Snapshots[0].Rows) != len(rows) {
		t.Fatal(h.Damage)
	}
	info, err := os.Stat(filepath.Join(r.Dir(), rowsFile+packedSuffix))
	if err != nil {
		t.Fatal(err)
	}
	if ratio := int64(len(rows)) * (rowMemory + 150) / info.Size(); ratio > 128 {
		t.Errorf("%d bytes of memory for each on disk", ratio)
	} else {
		t.Logf("%d bytes of memory for each on disk", ratio)
	}
}
