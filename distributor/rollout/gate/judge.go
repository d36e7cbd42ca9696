package gate

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// Heard is what is known of one gate, over the time of a question.
type Heard struct {
	Broken string // why it can never say anything; empty: nothing is known to be wrong with it
	Looks  []Look // by time
	// Unasked is why it cannot be asked from here; empty: it can.
	Unasked string
}

// Look is one look of a gate. A number that is not there has a reason in Trouble.
type Look struct {
	manifest.GateSample
	Trouble string
	Down    bool // Trouble: the source did not answer. That is never held against the canary, whatever no_data says
}

// every is the time between two looks of a gate.
func every(g manifest.Gate) time.Duration {
	d, err := time.ParseDuration(g.Every)
	if err != nil || d <= 0 {
		d = 30 * time.Second
	}
	return max(d, time.Second)
}

// ahead is how much earlier than a multiple of every the looks are, so that the last one of a bake is heard when the bake ends.
func ahead(e time.Duration) time.Duration { return min(e/3, 5*time.Second) }

// lookAt is when the k-th look is due, from 1. The times are the same for every controller.
func lookAt(from time.Time, e time.Duration, k int) time.Time {
	return from.Add(time.Duration(k)*e - ahead(e))
}

// due is how many looks are due at now.
func due(from, now time.Time, e time.Duration) int {
	return int(max(0, (now.Sub(from)+ahead(e))/e))
}

// wanted is how many looks fill a bake; one at least, since no data is never a pass.
func wanted(bake, e time.Duration) int { return int(max(1, bake/e)) }

// Judge says of each gate what the looks heard so far make of it: pass, fail, inconclusive, or broken. Pure; sorted by gate, one verdict for each.
func Judge(q Question, heard map[string]Heard) []manifest.GateVerdict {
	list := make([]manifest.GateVerdict, 0, len(q.Gates))
	for _, name := range slices.Sorted(maps.Keys(q.Gates)) {
		j := judging{q: q, g: q.Gates[name], e: every(q.Gates[name])}
		list = append(list, j.verdict(name, heard[name]))
	}
	return list
}

// judging is one gate's judgement.
type judging struct {
	q Question
	g manifest.Gate
	e time.Duration
	// looks are those in time, in order: index k-1 is the k-th; nil where nothing was heard.
	looks []*Look
}

// opinion is what the numbers say, apart from whether they are enough.
type opinion struct {
	fail   bool
	unsure string // why it is neither: too few events, or on the edge
	text   string // what was seen, beside what is allowed
	bad    func(Look) bool
	shared bool // of a bound: the control group is out of it as well
}

func (j *judging) verdict(name string, h Heard) manifest.GateVerdict {
	v := manifest.GateVerdict{Gate: name, Wave: j.q.Wave, Outcome: manifest.OutcomeInconclusive, From: j.q.From.UTC(), To: j.q.Now.UTC()}
	if err := Check(j.g); err != nil && h.Broken == "" {
		h.Broken = err.Error()
	}
	switch {
	case h.Broken != "":
		v.Outcome, v.Why = manifest.OutcomeBroken, clean(h.Broken)
		return v
	case h.Unasked != "":
		v.Why = clean(h.Unasked)
		return v
	case j.q.Wave == 0:
		v.Outcome, v.Why = j.before(h.Looks)
		return v
	case j.alone() && j.q.Last:
		// By nature: everybody has the release. A bound beside compare would go on to count.
		v.Outcome, v.Why = manifest.OutcomePass, NoControlLeft
		return v
	}
	j.place(h.Looks)
	o := j.opinion()
	if j.ofHosts() && len(h.Looks) == 0 {
		h.Looks = []Look{look(j.g.Reported, j.q, nil)}
	}
	v.Samples = thin(h.Looks, o.bad)
	for i, s := range v.Samples {
		if s.At.After(v.To) { // what agents report is counted into the look that is under way
			v.Samples[i].At = v.To
		}
	}
	gap, covered := j.covered()
	if j.g.Reported != "" {
		gap, covered = j.coveredByReports()
	}
	switch dead := j.noData(); {
	case o.fail:
		v.Outcome, v.Why = manifest.OutcomeFail, o.text
	case dead != "" && j.g.NoData == "fail":
		v.Outcome, v.Why = manifest.OutcomeFail, dead
	case j.alone():
		v.Why = "no hosts keep the baseline: there is nothing to compare with"
	case !covered:
		v.Why = gap
		if o.text != "" {
			v.Why = o.text + "; " + gap
		}
	case o.text == "":
		v.Why = "nothing was reported"
	case o.unsure != "":
		v.Why = o.text + "; " + o.unsure
	default:
		v.Outcome, v.Why = manifest.OutcomePass, fmt.Sprintf("%s; %s", o.text, gap)
	}
	v.Why = clean(v.Why)
	return v
}

// before is what can be said before a rollout starts: whether the gate can be asked. No host runs the release yet, so that finding nothing is right.
func (j *judging) before(looks []Look) (manifest.Outcome, string) {
	switch {
	case j.g.Reported != "":
		return manifest.OutcomePass, "agents report it"
	case len(looks) == 0:
		return manifest.OutcomeInconclusive, "not asked yet"
	case looks[len(looks)-1].Down:
		return manifest.OutcomeInconclusive, clean(looks[len(looks)-1].Trouble)
	}
	return manifest.OutcomePass, "it can be asked"
}

// NoControlLeft is what a gate that only compares says in the last wave and after it. It knows nothing then, and says no more than that.
const NoControlLeft = "there is no control group left to compare with"

// compares reports whether there is a control group. The few hosts that are held back when everybody else has the release are none.
func (q Question) compares() bool {
	few := q.Last && leastControl*len(q.Control) < len(q.Canary)
	return len(q.Control) > 0 && !few
}

// leastControl is how many times as many hosts as the control group the canary may have.
const leastControl = 20

// alone reports whether the gate has nothing to compare with.
func (j *judging) alone() bool { return Compares(j.g) && !j.q.compares() }

// place puts what was heard where it belongs in time.
func (j *judging) place(looks []Look) {
	last := due(j.q.From, j.q.Now, j.e)
	if j.g.Reported != "" {
		last++ // the one that is under way
	}
	skip := max(0, last-mostLooks)
	j.looks = make([]*Look, last-skip)
	for i := range looks {
		k := int(math.Round(float64(looks[i].At.Sub(j.q.From)+ahead(j.e))/float64(j.e))) - skip
		if k >= 1 && k <= len(j.looks) {
			j.looks[k-1] = &looks[i]
		}
	}
}

// good reports whether a look says something: all its numbers are there, and events happened.
func (j *judging) good(l *Look) bool {
	if !j.goodCanary(l) {
		return false
	}
	compares := j.g.Compare != nil && j.q.compares()
	return !compares || l.Control != nil && (!j.ofCounts() || l.OfOthers != nil && *l.OfOthers > 0)
}

// goodCanary is the same of the canary alone, for a bound: it counts though nothing is heard of the control group.
func (j *judging) goodCanary(l *Look) bool {
	return l != nil && l.Canary != nil && (!j.ofCounts() || l.OfCanary != nil && *l.OfCanary > 0)
}

// trouble says why a look says nothing.
func (j *judging) trouble(l *Look) string {
	switch {
	case l == nil:
		return "not heard"
	case l.Canary != nil && l.OfCanary != nil && *l.OfCanary <= 0:
		return "no events on the canary"
	case l.Trouble != "":
		return l.Trouble
	case l.OfOthers != nil && *l.OfOthers <= 0:
		return "no events on the control group"
	}
	return "no number"
}

// covered reports whether the bake is over, and the newest looks, as many as fill a bake, are there: the newest of all among them, no two missing in a row, and no more than a tenth.
func (j *judging) covered() (text string, ok bool) {
	need, n := wanted(j.q.Bake, j.e), len(j.looks)
	first := max(0, n-need)
	have, pair, last := 0, false, ""
	for k := first; k < n; k++ {
		if j.good(j.looks[k]) {
			have++
			continue
		}
		if j.looks[k] != nil || last == "" {
			last = j.trouble(j.looks[k])
		}
		pair = pair || k > first && !j.good(j.looks[k-1])
	}
	text = fmt.Sprintf("%d of %d looks", have, need)
	if last != "" {
		text += ", the last one missing: " + last
	}
	left := j.q.Bake - j.q.Now.Sub(j.q.From)
	if left > 0 {
		text += ", " + left.Round(time.Second).String() + " to go"
	}
	newest := n > 0 && j.good(j.looks[n-1])
	return text, left <= 0 && n >= need && newest && !pair && have >= need-need/10
}

// noData says that the canary has given no data for so many looks that no_data: fail counts; empty otherwise. A source that does not answer is no such case, nor is a control group that is idle.
func (j *judging) noData() string {
	row := max(j.g.Fails, 3)
	if j.g.Reported != "" {
		return "" // whether hosts report is min_reported's
	}
	if len(j.looks) < row {
		return ""
	}
	for _, l := range j.looks[len(j.looks)-row:] {
		if l == nil || l.Down || j.goodCanary(l) {
			return ""
		}
	}
	return fmt.Sprintf("no data for %d looks in a row (%s), and no_data is \"fail\"", row, j.trouble(j.looks[len(j.looks)-1]))
}

// opinion is what the numbers say of the bound and of the comparison.
func (j *judging) opinion() opinion {
	var bound, beside *opinion
	if j.g.Min != nil || j.g.Max != nil {
		o := j.bound()
		bound = &o
	}
	if j.g.Compare != nil && j.q.compares() {
		o := j.compare()
		beside = &o
	}
	switch {
	case bound == nil && beside == nil:
		return opinion{}
	case beside == nil:
		return *bound
	case bound == nil:
		return *beside
	case bound.fail && !beside.fail && bound.shared:
		return opinion{text: bound.text + ", but " + beside.text, unsure: "the control group is over the bound as well: not the canary's fault", bad: bound.bad}
	case bound.fail:
		return *bound
	case beside.fail:
		return *beside
	}
	o := *bound
	if o.text != "" && beside.text != "" {
		o.text += "; "
	}
	o.text += beside.text
	if o.unsure == "" {
		o.unsure = beside.unsure
	}
	return o
}

func (j *judging) bound() opinion {
	switch {
	case j.ofHosts():
		return j.boundOfHosts()
	case j.ofCounts():
		return j.boundOfCounts()
	}
	return j.boundOfValues()
}

func (j *judging) compare() opinion {
	switch {
	case j.ofHosts():
		return j.compareHosts()
	case j.ofCounts():
		return j.compareCounts()
	}
	return j.compareValues()
}

// mostBad is the part of a bake's looks that may be out of a bound in a pass, where `fails` asks for more than one in a row: one of so many, one at least, and not the newest.
const mostBad = 10

// boundOfValues looks for `fails` bad looks in a row; looks that say nothing neither count nor end the row.
func (j *judging) boundOfValues() opinion {
	o := opinion{bad: func(l Look) bool { return l.Canary != nil && j.outside(*l.Canary) }}
	row, worst, shared, bad := 0, 0, 0, 0
	need := wanted(j.q.Bake, j.e)
	var last, highest, lowest *float64
	for i, l := range j.looks {
		if !j.goodCanary(l) {
			continue
		}
		last = l.Canary
		if highest == nil || *l.Canary > *highest {
			highest = l.Canary
		}
		if lowest == nil || *l.Canary < *lowest {
			lowest = l.Canary
		}
		if !j.outside(*l.Canary) {
			row, shared = 0, 0
			continue
		}
		row++
		worst = max(worst, row)
		if i >= len(j.looks)-need {
			bad++
		}
		if l.Control != nil && j.outside(*l.Control) {
			shared++
		}
		if row >= j.g.Fails {
			o.fail, o.shared = true, 2*shared > row
			o.text = fmt.Sprintf("%s, %s, %s", number(*l.Canary), j.allowed(number), times(row))
			return o
		}
	}
	switch {
	case last == nil:
	case worst > 0:
		o.text = fmt.Sprintf("%s to %s, %s; bad %s of %d in a row that fail it", number(*lowest), number(*highest), j.allowed(number), times(worst), j.g.Fails)
	default:
		o.text = fmt.Sprintf("%s to %s, %s", number(*lowest), number(*highest), j.allowed(number))
	}
	switch {
	case row > 0:
		o.unsure = "out of the bound now"
	case bad > max(1, need/mostBad):
		o.unsure = fmt.Sprintf("out of the bound in %d of the newest %d looks", bad, need)
	}
	return o
}

func (j *judging) outside(v float64) bool {
	return j.g.Max != nil && v > *j.g.Max || j.g.Min != nil && v < *j.g.Min
}

// allowed tells the bound.
func (j *judging) allowed(write func(float64) string) string {
	switch {
	case j.g.Min == nil:
		return "at most " + write(*j.g.Max) + " allowed"
	case j.g.Max == nil:
		return "at least " + write(*j.g.Min) + " needed"
	}
	return write(*j.g.Min) + " to " + write(*j.g.Max) + " allowed"
}
