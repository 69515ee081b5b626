package reports

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

const ms = int64(time.Millisecond)

var started = time.Date(2026, 3, 14, 9, 26, 53, 0, time.UTC)

// sample is a report with every kind of outcome, as rich as a real one.
func sample() Report {
	return Report{
		Title:   "Acceptance of the order pipeline",
		Command: "custody run --system zeromq --profile sqlite all",
		Runs: []Run{
			sampleBaseline(), sampleAckLost(), sampleBrokerKilled(), samplePartition(),
			sampleStorageDown(), sampleUnmeasured(), sampleNotClaimed(), sampleOtherSystem(),
		},
		Custody: "0.4.1",
		Failed:  []Failure{{Name: "fsync-error", Why: "no evidence can be kept: mkdir runs/2026-03-14/zeromq-sqlite-fsync-error: no space left on device"}},
	}
}

func sampleRun(scenario, why string, after time.Duration) Run {
	dir := "runs/2026-03-14/zeromq-sqlite-" + scenario
	return Run{
		Dir: dir,
		Manifest: evidence.Manifest{
			Format: 1, Run: "r-" + scenario, System: "zeromq", Scenario: scenario, Why: why, Seed: 7341, Scale: 1,
			Profile: evidence.Profile{Name: "sqlite", Summary: "at least once; every message in SQLite before it is accepted, synchronous=full",
				Settings: []evidence.Setting{{Name: "synchronous", Value: "full"}, {Name: "visibility-timeout", Value: "300ms"}}},
			Claims:   []evidence.Claim{{Guarantee: evidence.NoAcceptedLoss, Under: []evidence.Class{evidence.Link, evidence.BrokerCrash}, Owner: evidence.OwnerSystem, Source: "PROTOCOL.md, 4.2"}},
			Versions: map[string]string{"custody": "0.4.0", "zmq4": "0.17.0", "sqlite": "3.51.1"},
			Machine:  evidence.Machine{OS: "linux", Arch: "amd64", Cores: 8}, StartedAt: started,
			End: &evidence.End{How: evidence.EndCompleted, After: after, Events: 412},
		},
		Judgement: guarantees.Judgement{Judge: "1", Run: "r-" + scenario, System: "zeromq", Profile: "sqlite", Scenario: scenario, Reached: true},
		Snapshots: []evidence.Snapshot{
			{Checkpoint: "start", Seq: 9, Source: evidence.SourceBroker, Trust: evidence.Exact},
			{Checkpoint: "end", Seq: 402, At: after, Source: evidence.SourceBroker, Trust: evidence.Exact},
			{Checkpoint: "end", Seq: 403, At: after, Source: evidence.SourceBusiness, Trust: evidence.Exact, Count: 6},
		},
	}
}

func verdict(name string, o guarantees.Outcome, why string, instances int, layers ...guarantees.Layer) guarantees.Verdict {
	return guarantees.Verdict{Guarantee: name, Outcome: o, Why: why, Claimed: true, Covered: true, Owner: evidence.OwnerSystem, Instances: instances, Layers: layers}
}

func settled(n, at int64) guarantees.Message {
	id := string(rune('0' + n))
	return guarantees.Message{
		BusinessID: "order-" + id, PublishID: "p1-" + id + "-1", MessageID: "0195-7c2e-00" + id, Acceptance: evidence.Accepted, HeldBy: evidence.HeldByStore,
		Deliveries: 1, Effects: 1, Acked: true, Rows: []string{"end: gone"},
		Custody: []guarantees.Interval{
			{Party: "client", From: at * ms, To: (at + 2) * ms, Event: uint64(at)},
			{Party: "broker", From: (at + 2) * ms, To: (at + 5) * ms, Event: uint64(at + 1)},
			{Party: "store", From: (at + 5) * ms, To: (at + 14) * ms, Event: uint64(at + 2)},
			{Party: "consumer", From: (at + 14) * ms, To: (at + 19) * ms, Event: uint64(at + 3)},
			{Party: "business", From: (at + 19) * ms, To: (at + 27) * ms, Event: uint64(at + 4)},
			{Party: "settled", From: (at + 27) * ms, To: 2400 * ms, Event: uint64(at + 6)},
		},
	}
}

func sampleBaseline() Run {
	r := sampleRun("baseline", "Without any fault everything that is claimed holds.", 1310*time.Millisecond)
	j := &r.Judgement
	j.Outcome, j.Why = guarantees.Held, "All 7 claimed guarantees held over 240 publishes; no fault fired."
	broker := guarantees.Layer{Name: "broker", Did: "kept", Count: 240}
	j.Verdicts = []guarantees.Verdict{
		verdict(evidence.NoAcceptedLoss, guarantees.Held, "Each of 240 accepted messages reached its effect.", 240, broker, guarantees.Layer{Name: "broker", Did: "redelivered"}),
		verdict(evidence.SingleEffect, guarantees.Held, "No business ID has two effects.", 240, guarantees.Layer{Name: "consumption log", Did: "absorbed"}),
		verdict(evidence.NoPhantom, guarantees.Held, "Every delivery matches a publish, digest and key.", 240),
		verdict(evidence.Order, guarantees.Held, "First deliveries came in publish order on each connection.", 3),
		verdict(evidence.AckIsFinal, guarantees.Held, "No delivery followed a confirmed acknowledgement.", 240),
		verdict(evidence.RecoveryBounded, guarantees.Held, "The longest wait was within the bound of 2 s.", 240),
		verdict(evidence.Survives, guarantees.Held, "The broker ran until it was stopped.", 1),
	}
	j.Verdicts[5].Measures = []guarantees.Measure{{Name: "longest recovery", Value: 0.0412, Unit: "s"}, {Name: "throughput", Value: 1830.4, Unit: "messages/s"}}
	for n := int64(1); n <= 3; n++ {
		j.Messages = append(j.Messages, settled(n, 10*n))
	}
	j.MessagesLeftOut = 237
	r.Script = "scenario baseline\nwhy Without any fault everything that is claimed holds.\nproducer p1 to orders\nconsumer c1 on orders, idempotent\npublish 240 orders by p1\nexpect no-accepted-loss, single-effect, no-phantom, order, ack-is-final, recovery-bounded, survives\n"
	return r
}

const ackLostScript = `scenario ack-lost
why The broker never hears the first ACK of order-1.
producer p1 to orders
consumer c1 on orders, idempotent
# the connection lives; only this one frame is lost
fault lost: drop once frame ack of order-1 on c1
publish order-1 by p1
await fired lost within 5s
provoke redelivery of order-1
await delivered order-1 at least 2 times within 10s
reached redelivery of order-1
expect no-accepted-loss, single-effect, stable-redelivery-id
`

func sampleAckLost() Run {
	r := sampleRun("ack-lost", "The broker never hears the first ACK of order-1.", 2410*time.Millisecond)
	r.Script = ackLostScript
	line := "fault lost: drop once frame ack of order-1 on c1"
	r.Manifest.Faults = []evidence.FaultLabel{{Label: "lost", Class: evidence.Link, Verb: "drop", Line: line}}
	r.Fired = []evidence.Event{{Seq: 61, At: 251 * time.Millisecond, Kind: evidence.FaultFired, Fault: "lost", Struck: "drop", Frame: "ack", Link: "c1",
		Items: []evidence.FrameItem{{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "0195-7c2e-001"}}}}
	j := &r.Judgement
	j.Outcome, j.Why = guarantees.Held, "The lost ACK led to one redelivery under the same message ID, and the consumption log absorbed it."
	j.Faults = []guarantees.FaultResult{{Label: "lost", Class: evidence.Link, Line: line, Fired: 1, Events: []uint64{61}}}
	j.Conditions = []guarantees.ConditionResult{{Line: "reached redelivery of order-1", OK: true}}
	again := guarantees.Layer{Name: "broker", Did: "redelivered", Count: 1}
	j.Verdicts = []guarantees.Verdict{
		verdict(evidence.NoAcceptedLoss, guarantees.Held, "Each of 3 accepted messages reached its effect.", 3, again),
		{Guarantee: evidence.NoDuplicateDelivery, Outcome: guarantees.Violated, Why: "order-1 was delivered twice.", Instances: 3},
		verdict(evidence.SingleEffect, guarantees.Held, "order-1 was delivered twice and took effect once.", 3, guarantees.Layer{Name: "consumption log", Did: "absorbed", Count: 1}),
		verdict(evidence.StableRedeliveryID, guarantees.Held, "The redelivery carries the first message ID and says that it is one.", 1, again),
		verdict(evidence.RecoveryBounded, guarantees.Held, "The longest wait was within the bound of 2 s.", 3),
	}
	j.Verdicts[2].Owner = evidence.OwnerApplication
	j.Verdicts[4].Measures = []guarantees.Measure{{Name: "longest recovery", Value: 318, Unit: "ms"}}
	j.Anomalies = []guarantees.Finding{{Guarantee: evidence.NoDuplicateDelivery, Kind: "redelivered", Text: "order-1 was handed to c1 twice; the acknowledgement between was lost on the way.",
		BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "0195-7c2e-001", Subscription: "orders", HandOver: guarantees.ConsumerToBroker, Events: []uint64{44, 61, 88}}}
	struck := settled(1, 230)
	struck.Deliveries, struck.Rows = 2, []string{"after-loss: pending", "end: gone"}
	struck.Custody = []guarantees.Interval{
		{Party: "client", From: 212 * ms, To: 215 * ms, Event: 31},
		{Party: "broker", From: 215 * ms, To: 219 * ms, Event: 33},
		{Party: "store", From: 219 * ms, To: 232 * ms, Event: 36},
		{Party: "consumer", From: 232 * ms, To: 237 * ms, Event: 44},
		{Party: "business", From: 237 * ms, To: 248 * ms, Event: 47},
		{Party: "store", From: 248 * ms, To: 552 * ms, Mark: "lost", Event: 60},
		{Party: "consumer", From: 552 * ms, To: 559 * ms, Event: 88},
		{Party: "settled", From: 566 * ms, To: 2410 * ms, Event: 97},
	}
	j.Messages = []guarantees.Message{settled(2, 240), struck, settled(3, 260)}
	r.Manifest.Expect = []string{evidence.NoAcceptedLoss, evidence.NoDuplicateDelivery, evidence.SingleEffect, evidence.StableRedeliveryID}
	return r
}

func sampleBrokerKilled() Run {
	r := sampleRun("broker-killed", "SIGKILL between accepting and storing must not lose what was accepted.", 4870*time.Millisecond)
	r.Manifest.Defect = "accept-before-store"
	line := "fault dead: kill broker once after frame accept of order-4 on p1"
	r.Script = "scenario broker-killed\nwhy SIGKILL between accepting and storing must not lose what was accepted.\nproducer p1 to orders\nconsumer c1 on orders, idempotent\n" + line + "\npublish order-1 to order-6 by p1\nawait fired dead within 5s\nrestart broker\nreached in-flight at dead at least 1\nexpect no-accepted-loss, single-effect, persisted-before-accepted, unknown-resolved, recovery-bounded\n"
	r.Fired = []evidence.Event{{Seq: 118, At: 642 * time.Millisecond, Kind: evidence.FaultFired, Fault: "dead", Struck: "kill", Frame: "accept", Link: "p1",
		Items: []evidence.FrameItem{{BusinessID: "order-4", PublishID: "p1-4-1", MessageID: "0195-7c2e-004"}}}}
	j := &r.Judgement
	j.Outcome, j.Exit = guarantees.Violated, guarantees.ExitViolated
	j.Why = "order-4 was accepted as held by the store, and no row, delivery or effect of it exists after the broker was killed."
	j.Faults = []guarantees.FaultResult{{Label: "dead", Class: evidence.BrokerCrash, Line: line, Fired: 1, Events: []uint64{118}}}
	j.Conditions = []guarantees.ConditionResult{{Line: "reached in-flight at dead at least 1", OK: true}}
	lost := guarantees.Finding{Guarantee: evidence.NoAcceptedLoss, Kind: "lost-middle", Text: "order-4 was accepted (held by store) and is gone: absent from the exact snapshot at the end, never delivered, no effect.",
		BusinessID: "order-4", PublishID: "p1-4-1", MessageID: "0195-7c2e-004", Subscription: "orders", HandOver: guarantees.BrokerToStore, Events: []uint64{102, 109, 118, 402}, Follows: []string{evidence.RowsMatchClients}}
	early := guarantees.Finding{Guarantee: evidence.PersistedBeforeAccepted, Kind: "accepted-early", Text: "The acceptance of order-4 passed the link while the store's COMMIT was held.",
		BusinessID: "order-4", PublishID: "p1-4-1", HandOver: guarantees.BrokerToClient, Events: []uint64{105, 109}}
	late := guarantees.Finding{Guarantee: evidence.NoDuplicateDelivery, Kind: "redelivered", Text: "order-3 was handed to c1 twice, before and after the restart.",
		BusinessID: "order-3", PublishID: "p1-3-1", MessageID: "0195-7c2e-003", Subscription: "orders", HandOver: guarantees.BrokerToConsumer, Events: []uint64{97, 205}}
	j.Broken, j.Anomalies = []guarantees.Finding{lost, early}, []guarantees.Finding{lost, early, late}
	r.Manifest.Expect = []string{evidence.NoAcceptedLoss, evidence.SingleEffect, evidence.PersistedBeforeAccepted, evidence.UnknownResolved, evidence.RecoveryBounded, evidence.Order}
	for n := range 8 { // each is a duplicate delivery, among which a loss must not disappear
		again := late
		again.BusinessID, again.PublishID, again.Events = fmt.Sprintf("order-%d", n+10), fmt.Sprintf("p1-%d-1", n+10), []uint64{uint64(120 + n), uint64(220 + n)}
		again.Text = again.BusinessID + " was handed to c1 twice, before and after the restart."
		j.Anomalies = append(j.Anomalies, again)
	}
	v := verdict(evidence.NoAcceptedLoss, guarantees.Violated, "1 of 6 accepted messages was lost between broker and store.", 6)
	v.Findings = []guarantees.Finding{lost}
	w := verdict(evidence.PersistedBeforeAccepted, guarantees.Violated, "1 acceptance was sent before its row was durable.", 6)
	w.Findings = []guarantees.Finding{early}
	j.Verdicts = []guarantees.Verdict{
		v,
		verdict(evidence.SingleEffect, guarantees.Held, "No business ID has two effects.", 6, guarantees.Layer{Name: "consumption log", Did: "absorbed", Count: 1}),
		w,
		verdict(evidence.UnknownResolved, guarantees.Inconclusive, "order-6 is Unknown and nothing settles it.", 1),
		verdict(evidence.RecoveryBounded, guarantees.Held, "The longest wait was within the bound of 2 s.", 5, guarantees.Layer{Name: "broker", Did: "redelivered", Count: 2}),
		{Guarantee: evidence.Order, Outcome: guarantees.NotApplicable, Why: "Two sessions were open at once."},
	}
	j.Verdicts[4].Measures = []guarantees.Measure{{Name: "longest recovery", Value: 1.284, Unit: "s"}}
	gone := settled(4, 600)
	gone.Deliveries, gone.Effects, gone.Acked, gone.Rows = 0, 0, false, []string{"start: absent", "end: absent"}
	gone.Custody = []guarantees.Interval{
		{Party: "client", From: 611 * ms, To: 618 * ms, Event: 102},
		{Party: "broker", From: 618 * ms, To: 642 * ms, Mark: "dead", Event: 105},
		{Party: "nobody", From: 642 * ms, To: 4870 * ms, Event: 118},
	}
	twice := settled(3, 560)
	twice.Deliveries = 2
	twice.Custody = append(twice.Custody[:3:3], []guarantees.Interval{
		{Party: "consumer", From: 574 * ms, To: 642 * ms, Event: 97},
		{Party: "store", From: 642 * ms, To: 1890 * ms, Mark: "dead", Event: 118},
		{Party: "consumer", From: 1890 * ms, To: 1899 * ms, Event: 205},
		{Party: "business", From: 1899 * ms, To: 1926 * ms, Event: 211},
		{Party: "settled", From: 1926 * ms, To: 4870 * ms, Event: 219},
	}...)
	unknown := settled(6, 640)
	unknown.Acceptance, unknown.HeldBy, unknown.MessageID, unknown.Deliveries, unknown.Effects, unknown.Acked = evidence.Unknown, evidence.HeldByNobody, "", 0, 0, false
	unknown.Custody = []guarantees.Interval{{Party: "client", From: 641 * ms, To: 4870 * ms, Mark: "dead", Event: 116}}
	j.Messages = []guarantees.Message{settled(1, 510), settled(2, 530), twice, gone, settled(5, 630), unknown}
	return r
}

func samplePartition() Run {
	r := sampleRun("partition", "A consumer cut off both ways gets everything once the link is back.", 12*time.Second+340*time.Millisecond)
	j := &r.Judgement
	line := "fault cut: hold until healed frame deliver on c2"
	j.Outcome, j.Exit, j.Reached = guarantees.Inconclusive, guarantees.ExitInconclusive, false
	j.Why = "The situation was not reached: fault cut did not fire, for no delivery frame was carried on c2."
	j.Faults = []guarantees.FaultResult{{Label: "cut", Class: evidence.Link, Line: line}}
	j.Conditions = []guarantees.ConditionResult{
		{Line: "reached fired cut", Missing: "cut was armed at event 18 and never fired"},
		{Line: "reached in-flight at cut at least 1", Missing: "cut did not fire"},
	}
	j.CutShort = "the script was cut short at line 7: \"fired cut\" did not come about: it has not fired; 4 steps were not run"
	j.Verdicts = []guarantees.Verdict{
		verdict(evidence.NoAcceptedLoss, guarantees.Inconclusive, "Nothing was lost, and the fault did not fire.", 12),
		verdict(evidence.RecoveryBounded, guarantees.Inconclusive, "There was nothing to recover from.", 0),
	}
	return r
}

func sampleStorageDown() Run {
	r := sampleRun("storage-down", "A store that cannot be reached must not cost an accepted message.", 0)
	r.Manifest.Inapplicable = "the SQLite store is a file: there is no connection to cut (storage-full and fsync-error strike it instead)"
	r.Judgement.Outcome, r.Judgement.Why = guarantees.NotApplicable, "Not applicable: "+r.Manifest.Inapplicable+"."
	r.Snapshots = nil
	return r
}

func sampleUnmeasured() Run {
	r := sampleRun("power-loss", "Only what was flushed survives.", 0)
	r.Manifest.End = nil
	r.Truncated = true
	r.Judgement.Exit = guarantees.ExitUnmeasured
	r.Judgement.Error = "the child process of the broker could not be started: exec: no space left on device (free some space in the evidence folder and run again)"
	return r
}

func sampleNotClaimed() Run {
	r := sampleRun("expiry-clock", "A clock that jumps forward must not expire what still has time to live.", 1900*time.Millisecond)
	j := &r.Judgement
	line := "fault jump: clock of broker +1h at publish of order-2"
	j.Outcome, j.Why, j.Exit = guarantees.NotClaimed, "The profile claims nothing under clock faults; order-2 was dropped an hour early by the broker's clock.", guarantees.ExitInconclusive
	j.Faults = []guarantees.FaultResult{{Label: "jump", Class: evidence.Clock, Line: line, Fired: 1, Events: []uint64{40}}}
	f := guarantees.Finding{Guarantee: evidence.ExpiryHonoured, Kind: "dropped-early", Text: "order-2 had 59 min left to live and was dropped.", BusinessID: "order-2", PublishID: "p1-2-1", HandOver: guarantees.BrokerToDelete, Events: []uint64{33, 40, 52}}
	j.Anomalies = []guarantees.Finding{f}
	j.Verdicts = []guarantees.Verdict{{Guarantee: evidence.ExpiryHonoured, Outcome: guarantees.Violated, Why: "1 message was dropped early.", Claimed: true, Owner: evidence.OwnerSystem, Instances: 4, Findings: []guarantees.Finding{f}}}
	return r
}

func sampleOtherSystem() Run {
	r := sampleAckLost()
	r.Dir = "runs/2026-03-14/nats jetstream-ack-lost"
	r.Manifest.System, r.Manifest.Profile.Name = "nats", "jetstream"
	r.Manifest.Versions = map[string]string{"custody": "0.4.0", "nats-server": "2.15.2"}
	r.Judgement.System, r.Judgement.Profile = "nats", "jetstream"
	r.Judgement.Run = "r-ack-lost-nats"
	return r
}
