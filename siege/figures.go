package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Figures holds everything that a siege has measured. The verdict follows from it
// alone.
type Figures struct {
	Lasted  time.Duration `json:"lasted"`
	Seed    uint64        `json:"seed"`
	Limit   int64         `json:"memoryLimit"` // bytes; 0: no limit
	Used    Used          `json:"memoryUsed"`
	Most    int64         `json:"anonymousMost"`  // maximum, as sampled
	After   int64         `json:"anonymousAfter"` // once the attackers were gone
	Rate    float64       `json:"rate"`           // honest publishes per second
	Kills   int           `json:"kills"`
	Orderly int           `json:"orderlyRestarts"`
	Slowest time.Duration `json:"slowestStart"`

	Custody  Custody          `json:"custody"`
	UnderWay map[string]int64 `json:"attacksUnderWay"` // how many times each got under way
	Phases   []PhaseFigures   `json:"phases"`
	Broke    []string         `json:"broke"` // rules that the broker broke
}

// PhaseFigures holds the honest clients' latencies in one phase.
type PhaseFigures struct {
	Name   string      `json:"name"`
	Accept Percentiles `json:"accept"`
	Cycle  Percentiles `json:"cycle"`
}

// Percentiles summarises a sample of latencies.
type Percentiles struct {
	N             int           `json:"n"`
	P50, P99, Max time.Duration `json:",omitempty"`
}

const quiet, recovered = "quiet", "afterwards"

func percentiles(took []time.Duration) Percentiles {
	if len(took) == 0 {
		return Percentiles{}
	}
	slices.Sort(took)
	at := func(q int) time.Duration { return took[(len(took)-1)*q/100] }
	return Percentiles{len(took), at(50), at(99), at(100)}
}

// Faults lists what the broker did wrong.
func (f *Figures) Faults() []string {
	faults := slices.Clone(f.Broke)
	for what, n := range map[string]int{
		"accepted messages are lost": f.Custody.Lost, "messages were invented": f.Custody.Invented,
		"accepted messages stayed in the store, undelivered": f.Custody.Kept,
		"publishes were not answered on a living connection": f.Custody.Unanswered,
	} {
		if n > 0 {
			faults = append(faults, fmt.Sprint(n, " ", what))
		}
	}
	if f.Used.OOMKills > 0 {
		faults = append(faults, fmt.Sprint("the kernel killed for memory: ", f.Used.OOMKills))
	}
	if f.Limit > 0 && f.After > f.Limit/2 {
		faults = append(faults, fmt.Sprintf("%d MiB are held when the attackers are gone, over half the limit", f.After>>20))
	}
	slices.Sort(faults)
	return faults
}

// Unmeasured lists the reasons why the figures prove nothing.
func (f *Figures) Unmeasured() (whys []string) {
	if f.Custody.Accepted == 0 || f.Custody.Delivered == 0 {
		whys = append(whys, "no honest message was accepted and delivered")
	}
	for _, name := range names(f.UnderWay) {
		if f.UnderWay[name] == 0 {
			whys = append(whys, "the attack "+name+" never came under way")
		}
	}
	return whys
}

func names[V any](m map[string]V) []string {
	var all []string
	for name := range m {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// Print writes the figures for people.
func (f *Figures) Print(out io.Writer) {
	c := f.Custody
	limit := "no limit"
	if f.Limit > 0 {
		limit = fmt.Sprintf("%d MiB and no swap; %d held at most, %d afterwards; the kernel's peak with page cache %d; %d killed for memory",
			f.Limit>>20, f.Most>>20, f.After>>20, f.Used.Peak>>20, f.Used.OOMKills)
	}
	fmt.Fprintf(out, "lasted:    %v, seed %d\nmemory:    %s\n", f.Lasted.Round(time.Second), f.Seed, limit)
	fmt.Fprintf(out, "broker:    %d kills, %d orderly restarts, slowest start %v\n", f.Kills, f.Orderly, f.Slowest.Round(time.Millisecond))
	fmt.Fprintf(out, "messages:  %d sent at %g a second: %d accepted, %d refused, %d unknown, %d unanswered\n", c.Sent, f.Rate, c.Accepted, c.Refused, c.Unknown, c.Unanswered)
	fmt.Fprintf(out, "           %d delivered, %d times again, %d settled; %d lost, %d kept, %d invented\n\n", c.Delivered, c.Again, c.Settled, c.Lost, c.Kept, c.Invented)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "phase\tunder way\tcycles\tp50 ms\tp99 ms\tmax ms\tp99 / quiet\t")
	was := time.Duration(0)
	for _, p := range f.Phases {
		if p.Name == quiet {
			was = p.Cycle.P99
		}
	}
	for _, p := range f.Phases {
		ratio := "-"
		if was > 0 && p.Cycle.N > 0 {
			ratio = fmt.Sprintf("%.1f", float64(p.Cycle.P99)/float64(was))
		}
		ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }
		under := "-"
		if n, attack := f.UnderWay[p.Name]; attack {
			under = fmt.Sprint(n)
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t\n", p.Name, under, p.Cycle.N, ms(p.Cycle.P50), ms(p.Cycle.P99), ms(p.Cycle.Max), ratio)
	}
	table.Flush()
	for _, fault := range f.Faults() {
		fmt.Fprintln(out, "FAULT:", fault)
	}
	for _, example := range c.Examples {
		fmt.Fprintln(out, "      ", example)
	}
	for _, why := range f.Unmeasured() {
		fmt.Fprintln(out, "NOT MEASURED:", why)
	}
}

// JSON encodes the figures.
func (f *Figures) JSON() ([]byte, error) { return json.MarshalIndent(f, "", "  ") }
