package reports_test

import (
	"fmt"
	"os"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
)

// run is a run of one scenario, with the verdict on one guarantee.
func run(outcome guarantees.Outcome, why string) reports.Run {
	m := evidence.Manifest{System: "mybroker", Profile: evidence.Profile{Name: "default"}, Scenario: "broker-killed", Seed: 1,
		Versions: map[string]string{"custody": "0.4.1"}}
	return reports.Run{
		Dir:      "runs/broker-killed",
		Manifest: m,
		Judgement: guarantees.Judgement{
			System: m.System, Profile: m.Profile.Name, Scenario: m.Scenario, Reached: true, Outcome: outcome, Why: why,
			Verdicts: []guarantees.Verdict{{Guarantee: evidence.NoAcceptedLoss, Claimed: true, Covered: true, Outcome: outcome, Why: why, Instances: 20}},
		},
	}
}

// A regression, as "custody diff" prints it. Only verdicts are compared: counts
// and times differ between any two runs of a real system.
func ExampleCompare() {
	before := reports.Report{Runs: []reports.Run{run(guarantees.Held, "20 messages arrived")}}
	after := reports.Report{Runs: []reports.Run{run(guarantees.Violated, "order-4 is lost")}}
	for _, d := range reports.Compare(before, after) {
		fmt.Println(d)
	}
	// Output:
	// broker-killed on mybroker:default: the run was held and is violated
	// broker-killed on mybroker:default: no-accepted-loss was held and is violated
}

// What a green result proves depends on the number of trials.
func ExampleExcluded() {
	for _, n := range []int{1, 10, 100, 1000} {
		fmt.Printf("%4d runs without a failure exclude a failure rate above %.1f %%\n", n, 100*reports.Excluded(n))
	}
	// Output:
	//    1 runs without a failure exclude a failure rate above 95.0 %
	//   10 runs without a failure exclude a failure rate above 25.9 %
	//  100 runs without a failure exclude a failure rate above 3.0 %
	// 1000 runs without a failure exclude a failure rate above 0.3 %
}

// One failure in 112 runs was seen. A hundred clean runs do not show that it is
// fixed.
func ExampleCleanRuns() {
	from, to := reports.Rates(1, 112)
	fmt.Printf("failure rate between %.2f %% and %.1f %%\n", 100*from, 100*to)
	fmt.Println("clean runs before it may be called fixed:", reports.CleanRuns(1, 112))
	// Output:
	// failure rate between 0.02 % and 4.9 %
	// clean runs before it may be called fixed: 13253
}

// A report formatted as a pull request comment. Formats lists the other
// formats.
func ExampleWriteMarkdown() {
	r := reports.Report{Title: "Nightly", Runs: []reports.Run{run(guarantees.Held, "20 messages arrived")}}
	if err := reports.WriteMarkdown(os.Stdout, r); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ## Nightly
	//
	// ✅ **Every claimed guarantee held.** 1 run: 1 held. Exit code 0.
	//
	// | Scenario | System | Outcome | Guarantees | Held by | Time |
	// |---|---|---|---|---|--:|
	// | <code>broker-killed</code> | <code>mybroker:default</code> | ✅ held | 1 held |  |  |
	//
	// - 1 held claim rests on 1 run: a failure in 95 % of runs or more is excluded &#40;95 % confidence&#41;
	// - Made by custody 0.4.1
}
