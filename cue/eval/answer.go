package eval

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/muster-config/muster/distributor/manifest"
)

// theFleet is what is under way while package fleet is evaluated; no service has such a name.
const theFleet = "the fleet"

// answer is all that one service came to. Its problems are folded and sorted.
type answer struct {
	Service  string
	Units    []Unit // by cohort, host
	Problems []Problem
	Schema   []byte // nil without one, or unless asked for
}

// fleetAnswer is what package fleet came to.
type fleetAnswer struct {
	Policy   manifest.Policy
	Problems []Problem
}

func (f *fleetAnswer) failed() bool { return failed(f.Problems) }

func failed(problems []Problem) bool {
	return slices.ContainsFunc(problems, func(p Problem) bool { return p.Severity == SeverityError })
}

// failedWhole reports whether an error is about no cohort: then it is about all.
func failedWhole(problems []Problem) bool {
	return slices.ContainsFunc(problems, func(p Problem) bool { return p.Severity == SeverityError && len(p.Cohorts) == 0 })
}

// sink is told how an evaluation goes on. Batches run at once, and so may its calls.
type sink interface {
	begins(what ...string) // theFleet, or services; they may begin and end more than once
	ends(what ...string)
	fleet(f *fleetAnswer)
	service(a *answer) // once each
}

// answers gathers what is answered, from one evaluation or from several, and makes a Result of it.
type answers struct {
	mu       sync.Mutex
	policy   *fleetAnswer
	services map[string]*answer
}

func newAnswers() *answers { return &answers{services: map[string]*answer{}} }

func (a *answers) begins(...string) {}
func (a *answers) ends(...string)   {}

func (a *answers) fleet(f *fleetAnswer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.policy = f
}

func (a *answers) service(s *answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.services[s.Service] = s
}

// count is how many answers there are, that of the fleet among them.
func (a *answers) count() int {
	if a.policy == nil {
		return 0
	}
	return 1 + len(a.services)
}

// result is what req is answered; the services that it selects are all there, unless the fleet failed.
func (a *answers) result(req *Request) *Result {
	res := &Result{Problems: a.policy.Problems}
	if a.policy.failed() {
		return res
	}
	res.Policy = a.policy.Policy
	names, problems := selected(req, &res.Policy)
	problems = slices.Concat(problems, a.policy.Problems)
	units := 0
	for _, name := range names {
		units += len(a.services[name].Units)
	}
	res.Units = make([]Unit, 0, units)
	if req.SchemasToo {
		res.Schemas = map[string][]byte{}
	}
	for _, name := range names {
		s := a.services[name]
		res.Units = append(res.Units, s.Units...)
		problems = append(problems, s.Problems...)
		if req.SchemasToo && s.Schema != nil {
			res.Schemas[name] = s.Schema
		}
	}
	placeOrder(problems, req.Files)
	res.Problems = fold(problems)
	return res
}

// selected are the services to evaluate; what the request names and the tree lacks is a problem.
func selected(req *Request, policy *manifest.Policy) (names []string, problems []Problem) {
	all := servicesOf(req.Files)
	for _, name := range req.Cohorts {
		if _, ok := policy.Cohorts[name]; !ok {
			problems = append(problems, Problem{Severity: SeverityError, Message: fmt.Sprintf("no cohort %q", name)})
		}
	}
	if len(req.Services) == 0 {
		return all, problems
	}
	for _, name := range req.Services {
		if _, ok := slices.BinarySearch(all, name); !ok {
			problems = append(problems, Problem{Severity: SeverityError, Message: fmt.Sprintf("no service %q", name)})
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), problems
}

// serviceOf is the service in whose directory a path lies.
func serviceOf(path string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(path, "services/")
	if !ok {
		return "", false
	}
	name, _, ok = strings.Cut(rest, "/")
	return name, ok
}

// servicesOf are the directories under services/, sorted.
func servicesOf(files []TreeFile) []string {
	var out []string
	last := ""
	for _, f := range files {
		if name, ok := serviceOf(f.Path); ok && name != last {
			last = name
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
