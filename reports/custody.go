package reports

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

// picture is the custody timeline of one message: who was responsible for it,
// when, and where a fault struck. Horizontal positions are percentages, so that
// the picture scales with the page and its text does not.
type picture struct {
	Message guarantees.Message
	Lanes   []lane
	Bars    []bar
	Steps   []step // hand-overs, drawn as lines between two lanes
	Strikes []strike
	Ticks   []tick
	Height  int
	Label   string // the picture in words
}

// Bottom is the bottom edge of the lanes.
func (p picture) Bottom() int { return p.Height - axisHeight }

// TickY is the base line of the axis.
func (p picture) TickY() int { return p.Height - 6 }

type lane struct {
	Name string
	Y    int // the middle
	Used bool
}

type bar struct {
	Party          string
	X1, X2         string
	Y              int
	From, To, Took string
	Event          uint64
	Mark           string
}

type step struct {
	X      string
	Y1, Y2 int
}

type strike struct {
	X, Text, Title string
	Anchor         string // of its text: start or end
}

type tick struct{ X, Text, Anchor string }

const (
	laneHeight = 24
	axisHeight = 26
	markHeight = 22 // one row of fault labels above the lanes
	maxStrikes = 4
	// maxIntervals bounds one picture: more would be unreadable. The run's
	// table still counts all deliveries.
	maxIntervals = 60
)

// parties lists the parties in the order in which a message passes them. The
// last two are shown only if reached.
var parties = []string{"client", "broker", "store", "consumer", "business", "settled", "dead-letter", "nobody"}

const usualParties = 6

// draw draws the timeline of m, with the firings of the run that struck the
// message or fell within its lifetime.
func draw(m guarantees.Message, fired []evidence.Event) picture {
	p := picture{Message: m}
	intervals := m.Custody[:min(len(m.Custody), maxIntervals)]
	if len(intervals) == 0 {
		return p
	}
	x := scaleOf(intervals)

	used := map[string]bool{}
	for _, i := range intervals {
		used[i.Party] = true
	}
	y := map[string]int{}
	top := markHeight
	add := func(name string) {
		y[name] = top + laneHeight/2
		p.Lanes = append(p.Lanes, lane{name, y[name], used[name]})
		top += laneHeight
	}
	for n, name := range parties {
		if n < usualParties || used[name] {
			add(name)
		}
	}
	for _, i := range intervals { // including parties unknown to this version
		if _, ok := y[i.Party]; !ok && len(p.Lanes) < 2*len(parties) {
			add(i.Party)
		}
	}
	p.Height = top + axisHeight

	var words []string
	for n, i := range intervals {
		to := max(i.To, i.From)
		b := bar{
			Party: i.Party, X1: x.at(i.From), X2: x.at(to), Y: y[i.Party],
			From: human(time.Duration(i.From)), To: human(time.Duration(to)), Took: human(time.Duration(to - i.From)),
			Event: i.Event, Mark: i.Mark,
		}
		p.Bars = append(p.Bars, b)
		if n > 0 {
			p.Steps = append(p.Steps, step{x.at(i.From), y[intervals[n-1].Party], y[i.Party]})
		}
		text := fmt.Sprintf("%s from %s to %s", i.Party, b.From, b.To)
		if i.Mark != "" {
			text += " (struck by " + i.Mark + ")"
		}
		words = append(words, text)
	}
	p.Label = "Custody of " + m.BusinessID + ": " + strings.Join(words, ", then ")
	p.strikes(intervals, fired, x)
	p.Ticks = x.ticks()
	return p
}

// strikes places each fault that struck the message where it fired or, if
// unknown, at the start of the struck interval.
func (p *picture) strikes(intervals []guarantees.Interval, fired []evidence.Event, x scale) {
	type place struct {
		at   int64
		name string
	}
	var places []place
	for _, i := range intervals {
		if i.Mark == "" {
			continue
		}
		at := i.From
		for _, e := range fired {
			if e.Fault == i.Mark && int64(e.At) >= i.From && int64(e.At) <= i.To {
				at = int64(e.At)
				break
			}
		}
		if pl := (place{at, i.Mark}); !slices.Contains(places, pl) {
			places = append(places, pl)
		}
	}
	for n, pl := range places[:min(len(places), maxStrikes)] {
		share := x.share(pl.at)
		s := strike{X: percent(share), Text: fit(pl.name, 24), Title: fmt.Sprintf("fault %s struck at %s", pl.name, human(time.Duration(pl.at))), Anchor: "start"}
		if share > 0.6 {
			s.Anchor = "end"
		}
		if n > 0 && x.share(pl.at)-x.share(places[n-1].at) < 0.25 {
			s.Text = "" // overlapping labels are unreadable; line and title remain
		}
		p.Strikes = append(p.Strikes, s)
	}
}

// scale maps the message's lifetime to the width. The last interval, usually
// "settled", extends to the end of the run and its length means nothing: beyond
// a tenth of the width it is cut, and the axis shows that.
type scale struct {
	from, to  int64
	last      guarantees.Interval
	shortened bool
}

func scaleOf(intervals []guarantees.Interval) scale {
	n := len(intervals) - 1
	s := scale{from: intervals[0].From, last: intervals[n]}
	body := s.last.From
	for _, i := range intervals[:n] {
		s.from, body = min(s.from, i.From), max(body, i.To)
	}
	s.to = max(body, s.last.To)
	if tail := (body - s.from) / 9; n > 0 && s.to-body > tail {
		s.to, s.shortened = body+max(tail, 1), true
	}
	return s
}

// plotMargin keeps round line caps inside the picture.
const plotMargin = 0.015

func (s scale) share(at int64) float64 {
	f := float64(at-s.from) / float64(max(s.to-s.from, 1))
	return plotMargin + min(max(f, 0), 1)*(1-2*plotMargin)
}

func (s scale) at(at int64) string { return percent(s.share(at)) }

func percent(f float64) string { return fmt.Sprintf("%.2f%%", 100*f) }

// ticks returns three ticks, which fit on a phone.
func (s scale) ticks() []tick {
	at := func(ns int64) string { return human(time.Duration(ns)) }
	end := at(s.to)
	if s.shortened {
		end = at(s.last.From) + " … " + at(s.last.To)
	}
	middle := s.from + (s.to-s.from)/2
	return []tick{
		{s.at(s.from), at(s.from), "start"},
		{s.at(middle), at(middle), "middle"},
		{s.at(s.to), end, "end"},
	}
}

// tellingFirst returns up to n messages with a timeline, the most telling
// first: in a broken claim, struck by a fault, in another anomaly, redelivered,
// and the rest.
func tellingFirst(run Run, n int) []guarantees.Message {
	rank := map[string]int{}
	note := func(id string, r int) {
		if old, ok := rank[id]; id != "" && (!ok || r < old) {
			rank[id] = r
		}
	}
	for _, f := range run.Judgement.Broken {
		note(f.PublishID, 0)
		note(f.BusinessID, 0)
	}
	for _, e := range run.Fired {
		for _, i := range e.Items {
			note(i.PublishID, 1)
		}
	}
	for _, f := range run.Judgement.Anomalies {
		note(f.PublishID, 2)
	}
	const plain = 4
	of := func(m guarantees.Message) int {
		best := plain
		for _, id := range []string{m.PublishID, m.BusinessID} {
			if r, ok := rank[id]; ok {
				best = min(best, r)
			}
		}
		for _, i := range m.Custody {
			if i.Mark != "" {
				best = min(best, 1)
			}
		}
		if m.Deliveries > 1 {
			best = min(best, 3)
		}
		return best
	}
	var ms []guarantees.Message
	for _, m := range run.Judgement.Messages {
		if len(m.Custody) > 0 {
			ms = append(ms, m)
		}
	}
	slices.SortStableFunc(ms, func(a, b guarantees.Message) int { return of(a) - of(b) })
	return ms[:min(n, len(ms))]
}
